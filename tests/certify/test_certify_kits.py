"""The examples of the worker kits keep every rule of the certificate."""

import json

import pytest
from tests.certify.runs import failures, options, rules
from tests.support.kits import built_go, built_typescript

from lucius.certify.values import Certificate, Judgement
from lucius.cli.certifying import CertifyOptions

pytestmark = [pytest.mark.xdist_group("certify"), pytest.mark.timeout(900)]

SAMPLES = {
    "ok": {"input_text": "Ada\n"},
    **{name: {"payload": {"certify": name}} for name in ("slow", "retryable", "final")},
}


def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CertifyOptions]:
    samples = tmp_path_factory.mktemp("samples") / "certify.json"
    samples.write_text(json.dumps(SAMPLES))
    node = str(built_typescript(tmp_path_factory.mktemp("typescript")))
    go = str(built_go(tmp_path_factory.mktemp("go")))
    return {
        "typescript-kit": options("HELLO", "env", "-C", node, "node", "hello.mjs", sample=samples),
        "go-kit": options("HELLO", go, sample=samples),
    }


@pytest.mark.parametrize("name", ["typescript-kit", "go-kit"])
def test_every_rule_holds_for_a_kit(found: dict[str, Certificate], name: str) -> None:
    certificate = found[name]
    assert failures(certificate) == {}
    assert rules(certificate, Judgement.NOT_TRIED) == set()
    assert rules(certificate, Judgement.NOT_APPLICABLE) == {"all-lanes"}
    assert certificate.passed
