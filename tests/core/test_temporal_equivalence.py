"""The same story on both engines gives the same job: every row and event, but for ids and DISPATCHING.

The temporal side is driven by what a workflow does; what is given to both is the same random script of
answers, notes of the bus, controls and time. Times are compared as they are, leases as who is who.
"""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.invariants import check
from tests.core.machine import (
    START_MS,
    Edge,
    Target,
    focus,
    give,
    new_job,
    new_steps,
    publish_failed,
    published,
    replies,
    target,
)
from tests.core.sequencer import follow, look
from tests.core.test_decide_properties import FORWARD, POLICIES, Move

from lucius.core.decide import create
from lucius.core.draft import Decision, Outcome
from lucius.core.due import next_due_ms
from lucius.core.inputs import Cancel, DispatchNow, Input, Pause, Resume, Tick
from lucius.core.model import JobRecord, StepPolicy
from lucius.core.refusal import Code
from lucius.core.states import Engine, Fact

HOURS = [1, 24, 7 * 24]


class Side:
    """One engine's job, and its trail."""

    def __init__(
        self, engine: Engine, count: int, policy: StepPolicy, sla_ms: int, *, stop_on_pause: bool = False
    ) -> None:
        job = new_job(engine=engine, sla_ms=sla_ms)
        steps = new_steps(count, policy, stop_on_pause=stop_on_pause)
        born = create(job, steps, now_ms=START_MS, lease_id="lease_0")
        self.record, self.events = born.record, list(born.events)
        self.take(follow(self.record, START_MS))

    def take(self, edges: list[Edge]) -> None:
        for edge in edges:
            check(edge)
            if isinstance(edge.answer, Decision):
                self.events += edge.answer.events
            self.record = edge.after

    def give(self, given: Input, at_ms: int) -> tuple[Outcome | Code, bool]:
        """What became of it, and whether the service is told to stop."""
        if isinstance(given, Tick):
            self.take(look(self.record, at_ms))
            return Outcome.APPLIED, False
        edge = give(self.record, given, at_ms)
        self.take([edge])
        if not isinstance(edge.answer, Decision):
            return edge.answer.code, False
        # Where the outbox engine goes on by itself, the workflow does, told by a signal.
        if edge.answer.outcome is Outcome.APPLIED and {each.type for each in edge.answer.events} & GOES_ON:
            self.take(follow(self.record, at_ms, begins_only=True))
        return edge.answer.outcome, edge.answer.stop


GOES_ON = {Fact.STEP_SUCCEEDED, Fact.STEP_RETRYING, Fact.JOB_RESUMED}


def _script(record: JobRecord, move: Move) -> Input:
    """An input that makes sense on both engines: hand-outs exist on one of them only."""
    of = target(focus(record))
    if move.wrong:
        of = of._replace(lease_id="lease of another")
    choices: list[Input] = [Cancel(), Pause(), Resume(), Resume(), Tick(), Tick(), DispatchNow()]
    choices += [*replies(of), *replies(of), published(of), published(of), publish_failed(of)]
    return choices[move.pick % len(choices)]


def _same_target(given: Input, of: Target) -> Input:
    """The same input for the other engine's attempt, whose lease has another name."""
    names = getattr(given, "__struct_fields__", ())
    if "lease_id" not in names or getattr(given, "lease_id", "") == "lease of another":
        return given
    changed: Input = msgspec.structs.replace(given, lease_id=of.lease_id)
    return changed


def _plain(value: Any, leases: dict[str, str]) -> Any:
    """Leases as who is who, and the one state that only one engine has by what stands for it."""
    if isinstance(value, dict):
        return {
            name: "QUEUED" if name in ("to", "resume_to") and each == "DISPATCHING" else _plain(each, leases)
            for name, each in value.items()
            if name != "engine"
        }
    if isinstance(value, list | tuple):
        return [_plain(each, leases) for each in value]
    if isinstance(value, str) and value.startswith("lease_"):
        return leases.setdefault(value, f"lease {len(leases)}")
    return value


def _normal(side: Side) -> Any:
    leases: dict[str, str] = {}
    record = msgspec.to_builtins(side.record)
    stands = {"job": "QUEUED", "step": "INITIATED"}
    for kind, row in [("job", record["job"]), *(("step", step) for step in record["steps"])]:
        if row.get("state") == "DISPATCHING":
            row["state"] = stands[kind]
    record["job"].setdefault("state", "QUEUED")
    record["job"].pop("seq")  # compared as the length of the trail
    return _plain([record, msgspec.to_builtins(side.events)], leases)


def _moves() -> st.SearchStrategy[list[Move]]:
    wrong = st.sampled_from([False] * 7 + [True])
    return st.lists(st.builds(Move, FORWARD, wrong, st.integers(0, 1_000)), max_size=40)


@given(
    count=st.integers(1, 3),
    policy=POLICIES,
    sla_ms=st.sampled_from([h * 3_600_000 for h in HOURS]),
    stop_on_pause=st.booleans(),
    moves=_moves(),
)
@settings(max_examples=300, deadline=None)
def test_both_engines_tell_the_same_story(
    *, count: int, policy: StepPolicy, sla_ms: int, stop_on_pause: bool, moves: list[Move]
) -> None:
    outbox = Side(Engine.OUTBOX, count, policy, sla_ms, stop_on_pause=stop_on_pause)
    temporal = Side(Engine.TEMPORAL, count, policy, sla_ms, stop_on_pause=stop_on_pause)
    at_ms = START_MS
    assert _normal(outbox) == _normal(temporal)
    for move in moves:
        due_at_ms = next_due_ms(outbox.record, at_ms)
        at_ms = at_ms + move.span_ms if move.span_ms is not None else max(at_ms, due_at_ms or at_ms)
        wish = _script(outbox.record, move)
        said = outbox.give(wish, at_ms)
        assert temporal.give(_same_target(wish, target(focus(temporal.record))), at_ms) == said
        assert _normal(outbox) == _normal(temporal), wish
