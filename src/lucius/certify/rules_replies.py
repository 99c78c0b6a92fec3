"""Rules about all that was said in the whole run: in time, in the right shape, about the right attempt."""

from collections.abc import Callable, Iterator

from lucius.certify.testbed import ServiceTestbed
from lucius.certify.transcript import HEAD, ObservedAttempt, ObservedReply, timeline
from lucius.certify.values import RuleFinding, failed, not_tried, passed

SHOWN_MAX = 3

Fault = Callable[[ObservedAttempt, ObservedReply], str | None]


async def ack_in_time(testbed: ServiceTestbed) -> RuleFinding:
    allowed = testbed.timeouts.ack_seconds
    worst = 0.0
    seen = 0
    for attempt in testbed.transcript.attempts.values():
        if not attempt.clocked or not attempt.handed:
            continue
        acks = attempt.of("ACK")
        if not acks:
            return failed("a directive that was taken was never acknowledged", *timeline(attempt))
        took = acks[0].at - attempt.handed[0]
        if took > allowed:
            return failed(f"an ACK took {took:.3f} s, allowed are {allowed:g} s", *timeline(attempt))
        if attempt.received[0].kind != "ACK":
            return failed(f"{attempt.received[0].kind} came before the ACK", *timeline(attempt))
        worst, seen = max(worst, took), seen + 1
    if not seen:
        return not_tried("no directive was taken")
    return passed(f"{seen} directives, each acknowledged within {worst:.3f} s; allowed are {allowed:g} s")


async def well_formed(testbed: ServiceTestbed) -> RuleFinding:
    def fault(_: ObservedAttempt, received: ObservedReply) -> str | None:
        return None if received.problem is None else f"{received.kind}: {received.problem}"

    if testbed.transcript.strays:
        return failed(*testbed.transcript.strays[:SHOWN_MAX])
    return _each(testbed, fault, "every reply is a message of the contract")


async def attempt_named(testbed: ServiceTestbed) -> RuleFinding:
    def fault(attempt: ObservedAttempt, received: ObservedReply) -> str | None:
        for name in HEAD:
            if received.message.get(name) != attempt.directive[name]:
                wrong, right = received.message.get(name), attempt.directive[name]
                return f"{received.kind} of {attempt.name}: {name} {wrong!r}, in the directive {right!r}"
        return None

    return _each(testbed, fault, "every reply names the attempt that it is about")


async def correlated(testbed: ServiceTestbed) -> RuleFinding:
    def fault(attempt: ObservedAttempt, received: ObservedReply) -> str | None:
        said, given = received.message.get("correlation_id"), attempt.directive["correlation_id"]
        return None if said == given else f"{received.kind} with correlation_id {said!r}, given was {given!r}"

    return _each(testbed, fault, "every reply carries its correlation_id")


async def traced(testbed: ServiceTestbed) -> RuleFinding:
    def fault(attempt: ObservedAttempt, received: ObservedReply) -> str | None:
        given = attempt.directive["traceparent"]
        for said in (received.message.get("traceparent"), received.trace_header):
            # A span of the service's own is welcome; the trace must be the job's.
            if isinstance(said, str) and said.split("-")[1:2] == given.split("-")[1:2]:
                return None
        said = received.message.get("traceparent") or received.trace_header
        return f"{received.kind} with traceparent {said!r}, given was {given!r}"

    return _each(testbed, fault, "every reply continues the trace")


def _replies(testbed: ServiceTestbed) -> Iterator[tuple[ObservedAttempt, ObservedReply]]:
    for attempt in testbed.transcript.attempts.values():
        for received in attempt.received:
            yield attempt, received


def _each(testbed: ServiceTestbed, fault: Fault, all_well: str) -> RuleFinding:
    found = 0
    faults: list[str] = []
    for attempt, received in _replies(testbed):
        found += 1
        if (text := fault(attempt, received)) is not None:
            faults.append(text)
    if faults:
        return failed(f"{len(faults)} of {found} replies", *faults[:SHOWN_MAX])
    return passed(f"{all_well} ({found} seen)") if found else not_tried("nothing was said")
