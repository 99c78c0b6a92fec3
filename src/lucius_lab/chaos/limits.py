"""Whether limits of services held, read from the ledger once everything is quiet.

In: where the ledger is. Out: for each service the most attempts that were out at one moment and the most
directives that left in any second, by the times of the events; and the places that are still taken.
"""

from collections.abc import Iterable, Iterator

import msgspec

from lucius_lab.chaos.checks import LedgerPlace, Row, ledger_rows

SECOND_MS = 1_000
_ENDS = frozenset({"STEP_SUCCEEDED", "STEP_RETRYING", "STEP_FAILED", "STEP_CANCELLED"})


class ServiceLoad(msgspec.Struct, frozen=True, kw_only=True):
    attempts: int
    most_at_once: int
    most_in_a_second: int


def loads_by_service(place: LedgerPlace) -> dict[str, ServiceLoad]:
    ledger = ledger_rows(place)
    try:
        services = {(job_id, step["step_id"]): step["service"] for job_id, step in ledger.rows("STEP#%")}
        spans: dict[str, list[tuple[int, int]]] = {}
        for service, span in _spans(ledger.rows("EVENT#%"), services):
            spans.setdefault(service, []).append(span)
    finally:
        ledger.close()
    return {
        service: ServiceLoad(
            attempts=len(of_service),
            most_at_once=most_at_once(of_service),
            most_in_a_second=most_in_a_second(began_ms for began_ms, _ in of_service),
        )
        for service, of_service in spans.items()
    }


def _spans(
    events: Iterable[Row], services: dict[tuple[str, str], str]
) -> Iterator[tuple[str, tuple[int, int]]]:
    """When each attempt was out: from the commit of its hand-out to its end."""
    out: dict[tuple[str, str], int] = {}
    for job_id, event in events:
        step_id, at_ms = event.get("step_id") or "", event["at_ms"]
        if event["type"] == "DIRECTIVE_PUBLISHED":
            out[job_id, step_id] = at_ms
        elif event["type"] in _ENDS:
            began_ms = out.pop((job_id, step_id), None)
            if began_ms is not None:
                yield services[job_id, step_id], (began_ms, at_ms)


def most_at_once(spans: Iterable[tuple[int, int]]) -> int:
    """Of two that meet in one millisecond the one that ends is over before the other begins."""
    moments = sorted(
        moment for began_ms, ended_ms in spans for moment in ((began_ms, 1), (max(began_ms, ended_ms), -1))
    )
    most = now = 0
    for _, change in sorted(moments, key=lambda moment: (moment[0], moment[1])):
        now += change
        most = max(most, now)
    return most


def most_in_a_second(times_ms: Iterable[int]) -> int:
    times, most, first = sorted(times_ms), 0, 0
    for last, at_ms in enumerate(times):
        while times[first] <= at_ms - SECOND_MS:
            first += 1
        most = max(most, last - first + 1)
    return most
