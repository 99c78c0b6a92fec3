"""How an explanation says that a limit, a breaker or a pause keeps a directive from leaving."""

import msgspec
import pytest
from tests.core.machine import START_MS, born

from lucius.core.explain import Explanation, WaitsFor, explain
from lucius.core.flow import ActivePause, FlowHold, FlowReason, OpenBreaker, Rate

SLOTS = FlowHold(reason=FlowReason.SLOTS, service="embedding", in_use=20, limit=20, before=311)
RATE = FlowHold(
    reason=FlowReason.RATE, service="embedding", rate=Rate(tokens=100, per_ms=1_000, burst=5), share=0.5
)
BREAKER = FlowHold(
    reason=FlowReason.BREAKER,
    service="ocr",
    breaker=OpenBreaker(
        opened_at_ms=START_MS, failures=5, probe_at_ms=START_MS + 10_000, error="DOWN: no route"
    ),
)
PAUSE = FlowHold(
    reason=FlowReason.PAUSED,
    service="ocr",
    pause=ActivePause(kind="tenant", name="acme", since_ms=START_MS, reason="migration"),
)


def _told(hold: FlowHold) -> Explanation:
    return explain(
        born(),
        (),
        now_ms=START_MS + 1,
        service_asked_at_ms=None,
        over_bus=False,
        tenant_in_flight=1,
        tenant_max=10,
        hold=hold,
    )


@pytest.mark.parametrize(
    ("hold", "waiting_for", "words"),
    [
        (SLOTS, WaitsFor.LIMIT, "waits for a slot at `embedding`: 20 of 20 in use; 311 before it"),
        (
            msgspec.structs.replace(SLOTS, reason=FlowReason.TENANT_SLOTS, before=1_000, more=True),
            WaitsFor.LIMIT,
            "waits for a slot of its tenant at `embedding`: 20 of 20 in use; 1,000 or more before it",
        ),
        (RATE, WaitsFor.LIMIT, "waits for the rate at `embedding`: 100 a second, 50% of it for now"),
        (
            BREAKER,
            WaitsFor.BREAKER,
            "waits for `ocr` to answer again: 5 attempts in a row failed, the breaker is open since",
        ),
        (PAUSE, WaitsFor.PAUSE, "waits, for the tenant `acme` is paused since"),
    ],
)
def test_what_it_waits_for(hold: FlowHold, waiting_for: WaitsFor, words: str) -> None:
    told = _told(hold)
    assert told.waiting_for is waiting_for
    assert told.summary.startswith(words)
    assert told.next is not None and "no clock runs until then" in told.next.what


def test_when_an_open_breaker_looks_again() -> None:
    told = _told(BREAKER)
    assert told.next is not None and told.next.at_ms == START_MS + 10_000


def test_how_a_pause_ends() -> None:
    assert "lucius resume tenant acme" in _told(PAUSE).hints
