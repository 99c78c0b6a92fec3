"""What was handed to the service, and what came back: the certifier's whole memory, and its answers.

In: attempts that are handed out, replies as they arrive. Out: the answers that an orchestrator would give,
and a record of who said what when. Whose reply it is does not depend on what it says of itself: over HTTP the
callback token names the attempt, over a bus the job does. A reply that names the wrong lease is written down
and answered like any other, so that one fault shows as one.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from math import inf

import msgspec

from lucius.certify.values import Json
from lucius.contracts.messages import parse_reply
from lucius.core.refusal import Refused

HEAD = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
STRAYS_MAX = 100
REPLIES_MAX = 10_000  # of one attempt: a service that floods is known by then
TEXT_SHOWN_MAX = 200

_FAILED = {"RETRYABLE": "FAILED_RETRY", "NON_RETRYABLE": "FAILED_FINAL"}


class ObservedReply(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    at: float  # on the certifier's clock, in seconds
    message: dict[str, Json]
    trace_header: str | None
    answered: str  # the answer to it
    problem: str | None  # why the contract refuses it

    @property
    def status(self) -> str:
        """Of a RESULT; the older spelling is understood."""
        status = self.message.get("status")
        if status == "FAILED":
            return _FAILED.get(str(self.message.get("failure_class")), "FAILED")
        return str(status)

    @property
    def error_code(self) -> str | None:
        error = self.message.get("error")
        code = error.get("code") if isinstance(error, dict) else None
        return code if isinstance(code, str) and code else None

    @property
    def output_uri(self) -> str | None:
        ref = self.message.get("output_ref")
        uri = ref.get("uri") if isinstance(ref, dict) else None
        return uri if isinstance(uri, str) else None

    @property
    def says(self) -> tuple[Json, ...]:
        """What the reply amounts to, whenever it was sent."""
        return (self.kind, self.status, self.message.get("output_ref"), self.error_code)


class CertifierAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    outcome: str
    stop: bool


class ObservedAttempt:
    """One attempt of one step, and everything that was said about it."""

    def __init__(self, transcript: "Transcript", directive: dict[str, Json], *, clocked: bool) -> None:
        """`clocked`: whether its ACK is judged by its time. One that waits behind other work is not."""
        self.directive = directive
        self.opened_at = transcript.now()
        self.clocked = clocked
        self.stale = False  # another worker has the work by now
        self.stop = False  # the job is being cancelled
        self.results_unanswered = 0  # so many RESULTs are met with a 503 before one is taken
        self.sent = 0  # copies
        self.handed: list[float] = []  # when each copy reached the service, as far as that is known
        self.received: list[ObservedReply] = []
        self.stopped_at: list[float] = []
        self.asked = 0  # how often the service asked whether the attempt still counts
        self._transcript = transcript

    def of(self, *kinds: str) -> list[ObservedReply]:
        return [received for received in self.received if received.kind in kinds]

    @property
    def results(self) -> list[ObservedReply]:
        """Those that were taken; repeats of one that was not are one and the same."""
        return [received for received in self.of("RESULT") if received.answered != "503"]

    @property
    def name(self) -> str:
        return f"{self.directive['jobId']} attempt {self.directive['attempt_no']}"

    async def until(self, there: Callable[[], bool], seconds: float) -> bool:
        """Whether it came true in time. Nothing is waited for once the service is gone."""
        transcript = self._transcript
        try:
            async with asyncio.timeout(seconds), transcript.changed:
                await transcript.changed.wait_for(lambda: there() or transcript.gone())
        except TimeoutError:
            pass
        return there()

    async def first(self, *kinds: str, seconds: float) -> ObservedReply | None:
        await self.until(lambda: bool(self.of(*kinds)), seconds)
        found = self.of(*kinds)
        return found[0] if found else None

    async def result(self, seconds: float, *, silence_seconds: float = inf) -> ObservedReply | None:
        """The RESULT that was taken first. Given up after a silence of that length, as Lucius does."""
        deadline = self._transcript.now() + seconds
        while not self.results and not self._transcript.gone():
            signs = len(self.handed) + len(self.received)
            latest = max([self.opened_at, *self.handed, *(received.at for received in self.received)])
            left = min(deadline, latest + silence_seconds) - self._transcript.now()
            if left <= 0 or not await self.until(partial(self._more_than, signs), left):
                break
        return self.results[0] if self.results else None

    def _more_than(self, signs: int) -> bool:
        return len(self.handed) + len(self.received) > signs


class Transcript:
    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.gone: Callable[[], bool] = lambda: False  # whether the service has ended
        self.changed = asyncio.Condition()
        self.attempts: dict[str, ObservedAttempt] = {}  # by token
        self._of_jobs: dict[str, list[ObservedAttempt]] = {}
        self.strays: list[str] = []  # calls and replies that belong to nothing

    def open(self, directive: dict[str, Json], *, clocked: bool) -> ObservedAttempt:
        attempt = ObservedAttempt(self, directive, clocked=clocked)
        self.attempts[directive["callback_token"]] = attempt
        self._of_jobs.setdefault(directive["jobId"], []).append(attempt)
        return attempt

    def stray(self, text: str) -> None:
        if len(self.strays) < STRAYS_MAX:
            self.strays.append(text[:TEXT_SHOWN_MAX])

    def of_message(self, message: Mapping[str, Json]) -> ObservedAttempt | None:
        """By the job, and by the attempt's number where that fits."""
        mine = self._of_jobs.get(str(message.get("jobId")), [])
        exact = [it for it in mine if it.directive["attempt_no"] == message.get("attempt_no")]
        return next(iter(exact or mine), None)

    async def handed(self, attempt: ObservedAttempt) -> None:
        attempt.handed.append(self.now())
        await self.notify()

    async def record_reply(
        self,
        attempt: ObservedAttempt,
        message: dict[str, Json],
        *,
        side: str | None,
        trace_header: str | None = None,
    ) -> CertifierAnswer:
        """Writes it down, and answers as an orchestrator does. `side`: the one type that is taken there."""
        parsed = parse_reply(message, expected=side)
        problem = parsed.message if isinstance(parsed, Refused) else None
        kind = str(message.get("type"))
        answer = self._answer(attempt, kind, problem)
        if len(attempt.received) < REPLIES_MAX:
            attempt.received.append(
                ObservedReply(
                    kind=kind,
                    at=self.now(),
                    message=message,
                    trace_header=trace_header,
                    answered=answer.outcome if answer.status == 200 else str(answer.status),
                    problem=problem,
                )
            )
        if answer.stop and side is not None:  # on a bus the answer does not reach the service
            attempt.stopped_at.append(self.now())
        await self.notify()
        return answer

    async def asked(self, attempt: ObservedAttempt) -> dict[str, Json]:
        attempt.asked += 1
        stop = attempt.stop or attempt.stale
        if stop:
            attempt.stopped_at.append(self.now())
        await self.notify()
        reason = "the job is being cancelled" if attempt.stop else None
        if attempt.stale:
            reason = "the job waits for another attempt"
        return {"current": not attempt.stale, "stop": stop, "reason": reason}

    def _answer(self, attempt: ObservedAttempt, kind: str, problem: str | None) -> CertifierAnswer:
        if problem is not None:
            return CertifierAnswer(status=422, outcome="refused", stop=False)
        if attempt.stale:
            return CertifierAnswer(status=409, outcome="stale", stop=True)
        if kind == "RESULT" and attempt.results_unanswered > 0:
            attempt.results_unanswered -= 1
            return CertifierAnswer(status=503, outcome="unavailable", stop=False)
        taken = [received.kind for received in attempt.received if received.answered != "503"]
        if kind in taken and kind != "PROGRESS":
            return CertifierAnswer(status=200, outcome="duplicate", stop=attempt.stop)
        if "RESULT" in taken:
            return CertifierAnswer(status=200, outcome="recorded", stop=True)
        return CertifierAnswer(status=200, outcome="applied", stop=attempt.stop)

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


LINES_MAX = 12


def timeline(attempt: ObservedAttempt) -> tuple[str, ...]:
    """Times count from the moment the service was handed the directive."""
    if not attempt.handed:
        return (f"{attempt.name}: never taken",)
    begun = attempt.handed[0]
    lines = [(at, "the same again" if copy else "handed out") for copy, at in enumerate(attempt.handed)]
    lines += [(received.at, _said(received)) for received in attempt.received]
    lines.sort(key=lambda line: line[0])
    shown = lines if len(lines) <= LINES_MAX else [*lines[: LINES_MAX // 2], *lines[-LINES_MAX // 2 :]]
    left_out = len(lines) - len(shown)
    texts = [f"{at - begun:.3f} s {text}" for at, text in shown]
    if left_out:
        texts.insert(LINES_MAX // 2, f"… {left_out} more …")
    return (f"{attempt.name}: {'; '.join(texts)}",)


def _said(received: ObservedReply) -> str:
    text = received.kind
    if received.kind == "RESULT":
        text = f"RESULT {received.status}"
        if received.error_code is not None:
            text += f" {received.error_code}"
    if received.kind == "PROGRESS":
        text = f"PROGRESS {received.message.get('progress')}"
    return f"{text} (answer: {received.answered})"
