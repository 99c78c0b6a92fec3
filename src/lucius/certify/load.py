"""Load: how a service does when it has much to do at once.

In: a stage on which the service has arrived, how many directives, how many of them out at a time. Out: a
report: how fast they were taken and done, how many were at work at the same time, and what went wrong. Every
directive is the sample `ok`, of a job and a tenant of its own, so that all lanes carry some.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import msgspec

from lucius.certify.testbed import ServiceTestbed
from lucius.certify.transcript import ObservedAttempt

FAULTS_SHOWN_MAX = 5

Report = Callable[["LoadLevel"], None]


class LoadLevel(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen with so many directives out at a time. Times count from when a directive was given to
    the service: over HTTP when it took it, over a bus when it was published."""

    in_flight: int
    directives: int
    seconds: float
    per_second: float
    at_once: int  # most of them between ACK and RESULT
    lanes: int
    ack_p50_ms: float
    ack_p99_ms: float
    done_p50_ms: float
    done_p99_ms: float
    failed: int  # a RESULT other than SUCCEEDED, none in time, or several
    faults: tuple[str, ...]  # of the first of these


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    step_type: str
    carrier: str
    passed: bool
    levels: tuple[LoadLevel, ...]


async def load(
    testbed: ServiceTestbed, *, directives: int, levels: Sequence[int], report: Report
) -> LoadReport:
    """`levels`: how many directives are out at a time, one level after the other."""
    # The first piece of work may be slower than all others: connections are opened, modules loaded.
    await testbed.result(await testbed.dispatch("ok", clocked=False))
    found: list[LoadLevel] = []
    for in_flight in levels:
        found.append(await _level(testbed, directives, in_flight))
        report(found[-1])
    return LoadReport(
        service=testbed.asked.service,
        step_type=testbed.asked.step_type,
        carrier=testbed.asked.carrier.value,
        passed=not any(level.failed for level in found),
        levels=tuple(found),
    )


async def _level(testbed: ServiceTestbed, directives: int, in_flight: int) -> LoadLevel:
    attempts: list[ObservedAttempt] = []
    numbers = iter(range(directives))

    async def one_after_the_other() -> None:
        for _ in numbers:
            attempt = await testbed.dispatch("ok", clocked=False)
            attempts.append(attempt)
            await testbed.result(attempt)

    began = testbed.transcript.now()
    await asyncio.gather(*(one_after_the_other() for _ in range(min(in_flight, directives))))
    seconds = testbed.transcript.now() - began
    await testbed.settle()  # a second RESULT would come by then
    acks = [_since_handed(attempt, "ACK") for attempt in attempts]
    done = [_since_handed(attempt, "RESULT") for attempt in attempts]
    faults = [text for attempt in attempts if (text := _fault(attempt)) is not None]
    return LoadLevel(
        in_flight=in_flight,
        directives=len(attempts),
        seconds=round(seconds, 3),
        per_second=round(len(attempts) / seconds, 1) if seconds else 0.0,
        at_once=_at_once(attempts),
        lanes=len({attempt.directive["lane"] for attempt in attempts}),
        ack_p50_ms=_percentile_ms(acks, 0.5),
        ack_p99_ms=_percentile_ms(acks, 0.99),
        done_p50_ms=_percentile_ms(done, 0.5),
        done_p99_ms=_percentile_ms(done, 0.99),
        failed=len(faults),
        faults=tuple(faults[:FAULTS_SHOWN_MAX]),
    )


def _since_handed(attempt: ObservedAttempt, kind: str) -> float | None:
    said = attempt.of(kind)
    return said[0].at - attempt.handed[0] if said and attempt.handed else None


def _percentile_ms(spans: Sequence[float | None], share: float) -> float:
    known = sorted(span for span in spans if span is not None)
    return round(known[min(len(known) - 1, int(share * len(known)))] * 1000, 1) if known else 0.0


def _fault(attempt: ObservedAttempt) -> str | None:
    results = attempt.results
    if not results:
        return f"{attempt.name}: no RESULT in time"
    if results[0].status != "SUCCEEDED":
        return f"{attempt.name}: {results[0].status} {results[0].error_code or ''}".rstrip()
    return f"{attempt.name}: {len(results)} RESULTs" if len(results) > 1 else None


def _at_once(attempts: Sequence[ObservedAttempt]) -> int:
    """The most that were acknowledged and not done at one time."""
    most = now = 0
    for _, change in sorted(_changes(attempts)):
        now += change
        most = max(most, now)
    return most


def _changes(attempts: Sequence[ObservedAttempt]) -> Iterator[tuple[float, int]]:
    for attempt in attempts:
        begun, ended = attempt.of("ACK", "PROGRESS"), attempt.results
        if ended:
            yield (begun[0].at if begun else ended[0].at), 1
            yield ended[0].at, -1
