"""Rules about all that was said in the whole run: in time, in the right shape, about the right attempt."""

from collections.abc import Callable, Iterator

from lucius.certify.book import HEAD, Attempt, Heard
from lucius.certify.stage import Stage
from lucius.certify.told import story
from lucius.certify.values import Finding, failed, not_tried, passed

SHOWN_MAX = 3

Fault = Callable[[Attempt, Heard], str | None]


async def ack_in_time(stage: Stage) -> Finding:
    allowed = stage.patience.ack_seconds
    worst = 0.0
    seen = 0
    for attempt in stage.book.attempts.values():
        if not attempt.clocked or not attempt.handed:
            continue
        acks = attempt.of("ACK")
        if not acks:
            return failed("a directive that was taken was never acknowledged", *story(attempt))
        took = acks[0].at - attempt.handed[0]
        if took > allowed:
            return failed(f"an ACK took {took:.3f} s, allowed are {allowed:g} s", *story(attempt))
        if attempt.heard[0].kind != "ACK":
            return failed(f"{attempt.heard[0].kind} came before the ACK", *story(attempt))
        worst, seen = max(worst, took), seen + 1
    if not seen:
        return not_tried("no directive was taken")
    return passed(f"{seen} directives, each acknowledged within {worst:.3f} s; allowed are {allowed:g} s")


async def well_formed(stage: Stage) -> Finding:
    def fault(_: Attempt, heard: Heard) -> str | None:
        return None if heard.problem is None else f"{heard.kind}: {heard.problem}"

    if stage.book.strays:
        return failed(*stage.book.strays[:SHOWN_MAX])
    return _each(stage, fault, "every reply is a message of the contract")


async def attempt_named(stage: Stage) -> Finding:
    def fault(attempt: Attempt, heard: Heard) -> str | None:
        for name in HEAD:
            if heard.message.get(name) != attempt.directive[name]:
                wrong, right = heard.message.get(name), attempt.directive[name]
                return f"{heard.kind} of {attempt.name}: {name} {wrong!r}, in the directive {right!r}"
        return None

    return _each(stage, fault, "every reply names the attempt that it is about")


async def correlated(stage: Stage) -> Finding:
    def fault(attempt: Attempt, heard: Heard) -> str | None:
        said, given = heard.message.get("correlation_id"), attempt.directive["correlation_id"]
        return None if said == given else f"{heard.kind} with correlation_id {said!r}, given was {given!r}"

    return _each(stage, fault, "every reply carries its correlation_id")


async def traced(stage: Stage) -> Finding:
    def fault(attempt: Attempt, heard: Heard) -> str | None:
        given = attempt.directive["traceparent"]
        for said in (heard.message.get("traceparent"), heard.trace_header):
            # A span of the service's own is welcome; the trace must be the job's.
            if isinstance(said, str) and said.split("-")[1:2] == given.split("-")[1:2]:
                return None
        said = heard.message.get("traceparent") or heard.trace_header
        return f"{heard.kind} with traceparent {said!r}, given was {given!r}"

    return _each(stage, fault, "every reply continues the trace")


def _replies(stage: Stage) -> Iterator[tuple[Attempt, Heard]]:
    for attempt in stage.book.attempts.values():
        for heard in attempt.heard:
            yield attempt, heard


def _each(stage: Stage, fault: Fault, all_well: str) -> Finding:
    found = 0
    faults: list[str] = []
    for attempt, heard in _replies(stage):
        found += 1
        if (text := fault(attempt, heard)) is not None:
            faults.append(text)
    if faults:
        return failed(f"{len(faults)} of {found} replies", *faults[:SHOWN_MAX])
    return passed(f"{all_well} ({found} seen)") if found else not_tried("nothing was said")
