"""The workflow's questions, carried to the invoker over HTTP.

In: a question as a workflow asks it. Out: the invoker's answer, unread but for its shape. Whatever keeps the
invoker from answering is raised and tried again, a wrong secret included: it may be put right while the job
waits. Only a job that is not there will not come back.
"""

import ssl
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Any

import httpx2
import msgspec
import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from lucius.contracts.internal import JobDefaults, Verdict, read_problem
from lucius.engines.temporal.job_defaults import DefaultsCheck
from lucius.engines.temporal.moves import InvokerReply, MoveKind
from lucius.engines.temporal.workflow import ACTIVITY_NAMES, CALL_SECONDS_MAX, JOB_NOT_FOUND
from lucius.telemetry.metrics import LATENCY_SECONDS
from lucius.telemetry.series import OTHER, LabelledHistogram, Labels
from lucius.telemetry.traces import Span, child_of, span_id_of

log = structlog.get_logger("lucius.worker")

PATHS = {
    MoveKind.BEGIN: "/v1/internal/steps/attempt",
    MoveKind.PUBLISH: "/v1/internal/publish",
    MoveKind.EXPIRE: "/v1/internal/steps/expire",
}
CONNECTIONS_MAX = 192
CONNECT_SECONDS_MAX = 2.0
IDLE_SECONDS_MAX = 3.0  # the invoker closes idle connections after 15 s: never send into one that is closing
ANSWER_BYTES_MAX = 65_536
PUBLISH_FAILED = "PUBLISH_FAILED"
VERDICTS = frozenset(verdict.value for verdict in Verdict)
_ATTEMPT_NAMES = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")


class InvokerCalls:
    def __init__(
        self,
        url: str,
        secret: str,
        *,
        connections_max: int = CONNECTIONS_MAX,
        tls: ssl.SSLContext | None = None,
        own_defaults: JobDefaults | None = None,
        take: Callable[[Span], None] | None = None,
        now_ms: Callable[[], int] = lambda: 0,
        new_id: Callable[[int], str] = lambda size: "00" * size,
    ) -> None:
        """`own_defaults`: of variables that are set for this process, which cannot change a job. `take`: gets
        a span of each call that was answered, in the trace that the answer names. `new_id`: so many random
        bytes in hex."""
        if not secret:
            raise ValueError("the invoker cannot be called without its secret")
        self._defaults = DefaultsCheck(own_defaults or JobDefaults())
        self._take, self._now_ms, self._new_id = take, now_ms, new_id
        self.outcomes: Counter[Labels] = Counter()
        """How often which call was answered with which verdict, or failed how."""
        self.seconds = LabelledHistogram(
            "lucius_invoker_call_seconds",
            "From a call of the invoker to its answer",
            ("call",),
            LATENCY_SECONDS,
            sets_max=len(MoveKind),
        )
        self._client = httpx2.AsyncClient(
            base_url=url.rstrip("/"),
            headers={"authorization": f"Bearer {secret}", "content-type": "application/json"},
            timeout=httpx2.Timeout(CALL_SECONDS_MAX, connect=CONNECT_SECONDS_MAX),
            limits=httpx2.Limits(
                max_connections=connections_max,
                max_keepalive_connections=connections_max,
                keepalive_expiry=IDLE_SECONDS_MAX,
            ),
            verify=True if tls is None else tls,
            trust_env=False,
            follow_redirects=False,
        )

    def activities(self) -> list[Callable[..., Any]]:
        return [self.begin, self.publish, self.expire]

    async def close(self) -> None:
        await self._client.aclose()

    @activity.defn(name=ACTIVITY_NAMES[MoveKind.BEGIN])
    async def begin(self, question: dict[str, Any]) -> dict[str, Any]:
        created_with = question.get("created_with")
        if created_with is not None:
            self._defaults.compare(msgspec.convert(created_with, JobDefaults), str(question.get("jobId")))
        # A local call is part of a workflow task: who waits a moment there may not need a task more.
        return await self._ask(MoveKind.BEGIN, {**question, "wait": activity.info().is_local})

    @activity.defn(name=ACTIVITY_NAMES[MoveKind.PUBLISH])
    async def publish(self, question: dict[str, Any]) -> dict[str, Any]:
        return await self._ask(MoveKind.PUBLISH, question)

    @activity.defn(name=ACTIVITY_NAMES[MoveKind.EXPIRE])
    async def expire(self, question: dict[str, Any]) -> dict[str, Any]:
        return await self._ask(MoveKind.EXPIRE, question)

    async def _ask(self, ask: MoveKind, question: dict[str, Any]) -> dict[str, Any]:
        began, began_ms, outcome = perf_counter(), self._now_ms(), "CANCELLED"
        try:
            answer, traceparent = await self._answer(ask, question)
            outcome = answer["verdict"] if answer["verdict"] in VERDICTS else OTHER
        except ApplicationError as fault:
            outcome = fault.type or OTHER
            raise
        else:
            self._give(ask, question, traceparent, began_ms, outcome)
            return answer
        finally:
            self.outcomes[ask.value, outcome] += 1
            self.seconds.observe((ask.value,), perf_counter() - began)

    def _give(
        self, ask: MoveKind, question: dict[str, Any], traceparent: str | None, began_ms: int, outcome: str
    ) -> None:
        """What the workflow waited for, below its job. Its id is drawn: a workflow task that fails is done
        again, and a local activity of it then has the same run, number and try as the first time."""
        if self._take is None:
            return
        span = child_of(traceparent, self._new_id)
        if span is None or not span.sampled:
            return
        named = {name: question[name] for name in _ATTEMPT_NAMES if isinstance(question.get(name), str | int)}
        self._take(
            msgspec.structs.replace(
                span,
                parent_id=span_id_of(str(question.get("jobId"))),
                name=f"workflow {ask.value}",
                began_ms=began_ms,
                duration_ms=max(0, self._now_ms() - began_ms),
                attributes={**named, "outcome": outcome},
            )
        )

    async def _answer(self, ask: MoveKind, question: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        try:
            response = await self._client.post(PATHS[ask], content=msgspec.json.encode(question))
        except (httpx2.HTTPError, ssl.SSLError) as fault:
            raise _fault("INVOKER_UNREACHABLE", f"no answer: {type(fault).__name__}", ask, question) from None
        if response.status_code != 200:
            raise _refusal(response, ask, question)
        return _read(response.content, ask, question), response.headers.get("traceparent")


def _read(body: bytes, ask: MoveKind, question: dict[str, Any]) -> dict[str, Any]:
    try:
        if len(body) > ANSWER_BYTES_MAX:
            raise msgspec.ValidationError("it is too long")
        answer: dict[str, Any] = msgspec.json.decode(body)
        msgspec.convert(answer, InvokerReply)
    except msgspec.MsgspecError as fault:
        raise _fault("INVOKER_UNREADABLE", f"its answer makes no sense: {fault}", ask, question) from None
    return answer


def _refusal(response: httpx2.Response, ask: MoveKind, question: dict[str, Any]) -> ApplicationError:
    problem = read_problem(response.content)
    if response.status_code == 404 and problem.code == JOB_NOT_FOUND:
        return ApplicationError(problem.detail, type=JOB_NOT_FOUND, non_retryable=True)
    if problem.code == PUBLISH_FAILED:
        return _fault(PUBLISH_FAILED, problem.detail, ask, question)
    return _fault("INVOKER_REFUSES", f"it answered {response.status_code}", ask, question)


def _fault(kind: str, message: str, ask: MoveKind, question: dict[str, Any]) -> ApplicationError:
    attempt = {name: question.get(name) for name in _ATTEMPT_NAMES}
    log.warning("invoker_call_failed", call=ask.value, **attempt, error=message)
    # Benign: the line above says it, and the library would add a traceback to every try.
    return ApplicationError(message, type=kind, category=ApplicationErrorCategory.BENIGN)
