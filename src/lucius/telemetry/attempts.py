"""What a service process shows of its attempts: counts, how long they took, how many are under way.

In: attempts as they begin and end. Out: text for Prometheus, and a span for each attempt, which continues the
trace that the directive carries. Spans go to the exporter that it is given.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec
from prometheus_client.core import Metric

from lucius.telemetry.exposition import Exposition
from lucius.telemetry.series import LabelledCounter, LabelledHistogram, gauge
from lucius.telemetry.traces import Span, child_of

ATTEMPT_SECONDS: Final = (0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3_600, 14_400, 86_400)
OUTCOMES_MAX = 32
UNDER_WAY_MAX = 10_000

_Key = tuple[str, str, int, str]


class AttemptLike(Protocol):
    """What is asked of a directive."""

    @property
    def key(self) -> _Key: ...

    @property
    def traceparent(self) -> str | None: ...

    @property
    def tenant_id(self) -> str: ...

    @property
    def step_type(self) -> str: ...

    @property
    def correlation_id(self) -> str | None: ...


class _Begun(msgspec.Struct, frozen=True):
    at: float
    at_ms: int
    span: Span | None


class AttemptMetrics:
    """Called by the runner of one service; see the sdk's port `Watch`."""

    def __init__(
        self,
        service: str,
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        new_id: Callable[[int], str],
        take: Callable[[Span], None],
    ) -> None:
        """`clock`: seconds that never go back. `new_id`: so many random bytes in hex. `take`: where spans
        go."""
        self._service = service
        self._clock = clock
        self._now_ms = now_ms
        self._new_id = new_id
        self._take = take
        self._under_way: dict[_Key, _Begun] = {}
        self._attempts = LabelledCounter(
            "lucius_service_attempts",
            "Attempts by how they ended",
            ("service", "outcome"),
            sets_max=OUTCOMES_MAX,
        )
        self._left = LabelledCounter(
            "lucius_service_directives_left",
            "Directives that were not begun, by reason",
            ("service", "reason"),
            sets_max=OUTCOMES_MAX,
        )
        self._undelivered = LabelledCounter(
            "lucius_service_replies_undelivered",
            "Replies that could not be delivered in time",
            ("service", "type"),
            sets_max=OUTCOMES_MAX,
        )
        self._seconds = LabelledHistogram(
            "lucius_service_attempt_seconds",
            "From an attempt's beginning to its RESULT",
            ("service", "outcome"),
            ATTEMPT_SECONDS,
            sets_max=OUTCOMES_MAX,
        )
        self.text = Exposition(self.families).text

    def began(self, attempt: AttemptLike) -> str | None:
        span = child_of(attempt.traceparent, self._new_id)
        if len(self._under_way) < UNDER_WAY_MAX:
            self._under_way[attempt.key] = _Begun(self._clock(), self._now_ms(), span)
        return None if span is None else span.traceparent

    def ended(self, attempt: AttemptLike, outcome: str, code: str | None) -> None:
        self._attempts.add((self._service, outcome))
        begun = self._under_way.pop(attempt.key, None)
        if begun is None:
            return
        seconds = self._clock() - begun.at
        self._seconds.observe((self._service, outcome), seconds)
        if begun.span is None:
            return
        job_id, step_id, attempt_no, lease_id = attempt.key
        attributes: dict[str, str | int] = {
            "jobId": job_id,
            "stepId": step_id,
            "attempt_no": attempt_no,
            "lease_id": lease_id,
            "tenant_id": attempt.tenant_id,
            "outcome": outcome,
        }
        if attempt.correlation_id is not None:
            attributes["correlation_id"] = attempt.correlation_id
        if code is not None:
            attributes["code"] = code
        self._take(
            msgspec.structs.replace(
                begun.span,
                name=f"{self._service} {attempt.step_type}",
                kind="consumer",
                began_ms=begun.at_ms,
                duration_ms=round(seconds * 1000, 3),
                failed=outcome != "succeeded",
                attributes=attributes,
            )
        )

    def left(self, attempt: AttemptLike, reason: str) -> None:
        self._left.add((self._service, reason))

    def undelivered(self, attempt: AttemptLike, kind: str) -> None:
        self._undelivered.add((self._service, kind))

    def families(self) -> Iterable[Metric]:
        for series in (self._attempts, self._left, self._undelivered, self._seconds):
            yield series.family()
        under_way = [((self._service,), float(len(self._under_way)))]
        yield gauge("lucius_service_under_way", "Attempts under way", ("service",), under_way)
