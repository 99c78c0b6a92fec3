"""Services that break the contract in one point each fail for that point, and a sound one does not."""

import sys
from pathlib import Path

import msgspec
import pytest
from tests.certify.runs import PATIENCE, failures, options, rules

from lucius.certify.rules import RULES
from lucius.certify.values import Certificate, Judgement
from lucius.cli.certifying import CertifyOptions

pytestmark = [pytest.mark.xdist_group("certify"), pytest.mark.timeout(900)]

SERVICE = Path(__file__).with_name("broken_service.py")

# What each fault breaks, and nothing else.
BROKEN = {
    "none": set[str](),
    "no-dedupe": {"copy-before", "copy-during", "copy-after"},
    "double-result": {"result-once"},
    "ack-late": {"ack-in-time"},
    "wrong-lease": {"attempt-named"},
    "lost-result": {"crash-at-work", "crash-unanswered"},
    "misclassified": {"failure-retryable"},
    "ignores-cancel": {"cancel"},
    "no-trace": {"trace"},
}


# The rules that are left, each with a service that breaks it; `result-once` makes some talk.
ALSO_BROKEN = {
    "no-tenant": {"well-formed", "attempt-named"},
    "no-correlation": {"correlation"},
    "no-output": {"output-written"},
    "same-place": {"output-written", "overlap"},
    "ignores-stale": {"stale-lease"},
    "no-repeat": {"result-repeated"},
    "dies-of-poison": {"poison"},
    "strict-members": {"unknown-members"},
    "silent": {"lease-kept"},
    "never-final": {"failure-final"},
    "no-drain": {"drain"},
}


def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CertifyOptions]:
    def asked(fault: str) -> CertifyOptions:
        state = tmp_path_factory.mktemp(fault)
        # The warm-up before its first ACK takes three seconds.
        ack_seconds = 2.0 if fault == "ack-late" else PATIENCE.ack_seconds
        timeouts = msgspec.structs.replace(PATIENCE, ack_seconds=ack_seconds)
        return options("HELLO", sys.executable, str(SERVICE), fault, str(state), timeouts=timeouts)

    return {fault: asked(fault) for fault in BROKEN} | also(tmp_path_factory)


def also(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CertifyOptions]:
    return {
        fault: options(
            "HELLO",
            *(sys.executable, str(SERVICE), fault, str(tmp_path_factory.mktemp(fault))),
            only=["result-once", *broken],
        )
        for fault, broken in ALSO_BROKEN.items()
    }


@pytest.mark.parametrize("fault", BROKEN)
def test_a_fault_fails_its_own_rules(found: dict[str, Certificate], fault: str) -> None:
    certificate = found[fault]
    assert set(failures(certificate)) == BROKEN[fault], failures(certificate)
    assert rules(certificate, Judgement.NOT_TRIED) == set()
    assert certificate.passed is (fault == "none")
    assert all(evidence for evidence in failures(certificate).values())


@pytest.mark.parametrize("fault", ALSO_BROKEN)
def test_every_other_rule_can_fail_too(found: dict[str, Certificate], fault: str) -> None:
    broken = ALSO_BROKEN[fault] | ({"result-once"} if fault == "no-tenant" else set())
    assert set(failures(found[fault])) == broken, failures(found[fault])


def test_no_rule_is_left_out() -> None:
    shown = set().union(*BROKEN.values(), *ALSO_BROKEN.values())
    # Served by the sdk or not at all: a bus without some of its lanes would need a client of its own.
    assert {rule.id for rule in RULES} - shown == {"all-lanes"}
