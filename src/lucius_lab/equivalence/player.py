"""Plays a script on one engine, and keeps what there is to compare: answers, rows, trails.

In: a script and a side. Out: the normal forms of its jobs, what each move was answered, and what went wrong
that a ledger does not show. The player acts only when the engine has nothing left to do by itself.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from lucius.contracts.envelope import Envelope, parse_envelope
from lucius.core import inputs
from lucius.core.inputs import ExpireReason
from lucius.core.model import JobRecord, Json
from lucius.core.refusal import Refused
from lucius.core.replies import is_late_success
from lucius.core.states import JobState, StepState
from lucius.jobs.submit import Submitted
from lucius.jobs.writer import Applied
from lucius_lab.equivalence.script import (
    FAR_MS,
    Adopt,
    Age,
    BusFaults,
    Control,
    ControlWish,
    Early,
    ExpireMove,
    Move,
    Orphan,
    Repeat,
    Reply,
    Rerun,
    Say,
    Untold,
)
from lucius_lab.equivalence.side import REQUEST_TYPE, SERVICES, TENANT, EngineSide
from lucius_lab.sim.normal_form import NormalForm, normalised

# Less than the alarm for late workflows takes: an engine that needs it has lost something.
WAIT_SECONDS_MAX = 25.0
EVENTS_MAX = 1_000
FINISHING_MAX = 40
TIMESTAMP = "2027-01-15T08:00:00.000Z"

_STATUS = {Say.DONE: "SUCCEEDED", Say.RETRY: "FAILED_RETRY", Say.FINAL: "FAILED_FINAL"}
_WISHES: dict[ControlWish, Callable[[], inputs.Control]] = {
    ControlWish.PAUSE: inputs.Pause,
    ControlWish.RESUME: inputs.Resume,
    ControlWish.CANCEL: inputs.Cancel,
}


Answering = Callable[[dict[str, Json]], Coroutine[Any, Any, None]]


TIMES_OUT = frozenset({ExpireReason.ACK_TIMEOUT.value, ExpireReason.LEASE_EXPIRED.value})


class Stuck(Exception):
    """The engine did not come to rest. The text says where the job stands."""


class Played(msgspec.Struct, frozen=True, kw_only=True):
    answers: tuple[str, ...]
    jobs: tuple[NormalForm, ...]
    faults: tuple[str, ...] = ()


class Player:
    def __init__(self, side: EngineSide) -> None:
        self._side = side
        self._jobs: list[str] = []
        self._answers: list[str] = []
        # Apart: an early answer may be known before that to the reply which led to it, or after it.
        self._early_answers: list[str] = []
        self._envelope = _envelope()
        self._spoken = asyncio.Event()  # unless an early answer is being given
        self._spoken.set()

    async def play(self) -> Played:
        side, faults = self._side, []
        side.start()
        moves = list(side.script.moves)
        try:
            while moves and isinstance(moves[0], BusFaults | Early):
                await self._move(moves.pop(0))
            await self._submit()
            for move in moves:
                await self._settle()
                await self._move(move)
            await self._finish()
        except Stuck as stuck:
            faults.append(str(stuck))
        jobs = [await self._form(job_id) for job_id in self._jobs]
        for job_id in self._jobs if not faults else ():
            fault = await side.ended(await side.record(job_id))
            faults += [] if fault is None else [fault]
        await side.stop()
        answers = (*self._answers, *(f"early: {said}" for said in self._early_answers))
        return Played(answers=answers, jobs=tuple(jobs), faults=tuple(faults))

    # Waiting

    async def _settle(self) -> JobRecord:
        record = await self._until(self._at_rest)
        while not self._spoken.is_set():
            await self._spoken.wait()
            record = await self._until(self._at_rest)
        return record

    def _at_rest(self, record: JobRecord) -> bool:
        """Whether the engine waits for a service or a client, or for a moment that is far off."""
        job, step = record.job, record.current
        if job.terminal or step is None or job.state is JobState.PAUSED:
            return True
        if record.awaits_dispatch(step):
            outbox = record.outbox
            return outbox is not None and self._is_far(outbox.due_at_ms)
        if step.state is StepState.FAILED_RETRY:
            return self._is_far(step.next_attempt_at_ms)
        return record.is_under_way(step)

    def _is_far(self, at_ms: int | None) -> bool:
        return at_ms is not None and at_ms - self._side.clock.now_ms() > FAR_MS

    async def _until(self, there: Callable[[JobRecord], bool]) -> JobRecord:
        side = self._side
        record = await side.record(self._job_id)
        if there(record):
            return record
        side.clock.run()
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while True:
                    side.changed.clear()
                    record = await side.record(self._job_id)
                    if there(record):
                        return record
                    await side.changed.wait()
        except TimeoutError:
            raise Stuck(f"{side.engine}: no rest within {WAIT_SECONDS_MAX:g} s: {_where(record)}") from None
        finally:
            side.clock.stand()

    # Moving

    @property
    def _job_id(self) -> str:
        return self._jobs[-1]

    async def _move(self, move: Move) -> None:
        match move:
            case Reply():
                await self._reply(move)
            case Early():
                self._side.on_directive = self._answers_early(move.say)
            case Untold():
                message = self._message(Reply(say=move.say))
                self._note("untold", await self._side.untold(message) if message else None)
            case ExpireMove():
                await self._expire()
            case Control():
                for _ in range(move.times):
                    self._note(move.wish, await self._side.control(self._job_id, _WISHES[move.wish]()))
            case Rerun() | Adopt() | Repeat():
                await self._command(move)
            case BusFaults():
                self._side.fates.extend(move.fates)
            case Age():
                await self._age()
            case Orphan():
                await self._side.orphan(self._job_id)

    async def _command(self, move: Rerun | Adopt | Repeat) -> None:
        match move:
            case Rerun():
                again = self._side.reruns.rerun(self._job_id, from_step=move.from_step, key=None)
                self._begun("rerun", await again)
            case Adopt():
                await self._adopt()
            case Repeat():
                self._note("repeat", await self._side.submitter.submit(self._envelope))

    async def _submit(self) -> None:
        self._begun("submit", await self._side.submitter.submit(self._envelope))

    async def _reply(self, move: Reply) -> None:
        for number in range(move.times):
            if number:
                await self._settle()
            message = self._message(move)
            if message is None:
                self._note(move.say, None)
                continue
            send = self._side.reply_by_bus if move.by_bus else self._side.reply
            self._note(move.say, await send(message))

    def _message(self, move: Reply) -> dict[str, Json] | None:
        """None: there is no such attempt."""
        sent = [each for each in self._side.directives if each["jobId"] == self._job_id]
        return _reply_to(sent[-1 - move.back], move) if move.back < len(sent) else None

    def _answers_early(self, say: Say) -> Answering:
        async def speak(directive: dict[str, Json]) -> None:
            self._spoken.clear()
            try:
                answer = await self._side.reply(_reply_to(directive, Reply(say=say)))
                self._early_answers.append(_said(answer))
            finally:
                self._spoken.set()

        return speak

    async def _expire(self) -> None:
        record = await self._side.record(self._job_id)
        step = record.current
        if record.job.terminal or step is None or not record.is_under_way(step):
            if not _ran_out(record):  # a slow store may need as long to come to rest as the clock runs
                self._answers.append("expire: no clock runs")
            return
        if self._is_far(step.lease_expires_at_ms):
            self._answers.append("expire: far off")
            return
        lease_id = step.lease_id

        def over(now: JobRecord) -> bool:
            then = now.steps[step.step_index]
            return then.lease_id != lease_id or not now.is_under_way(then)

        await self._until(over)

    async def _age(self) -> None:
        side = self._side
        record = await side.record(self._job_id)
        if record.job.terminal or record.job.state is JobState.PAUSED:
            return
        seen = record.job.escalated_at_ms
        side.clock.skip(side.script.sla_ms)
        await self._until(lambda now: now.job.terminal or now.job.escalated_at_ms != seen)

    async def _adopt(self) -> None:
        events = await self._side.ledger.events(self._job_id, limit=EVENTS_MAX)
        late = [event for event in events if is_late_success(event)]
        if not late or late[-1].step_id is None:
            self._note("adopt", None)
            return
        last = late[-1]
        adopting = self._side.reruns.adopt(self._job_id, step_id=str(last.step_id), seq=last.seq, key=None)
        self._begun("adopt", await adopting)

    async def _finish(self) -> None:
        """However the script left the job: it goes on without trouble, and ends."""
        for _ in range(FINISHING_MAX):
            record = await self._settle()
            if record.job.terminal:
                return
            step = record.current
            if step is not None and record.is_under_way(step):
                await self._move(Reply(say=Say.DONE))
            elif record.job.state is JobState.PAUSED:
                await self._move(Control(wish=ControlWish.RESUME))
            else:
                await self._move(Control(wish=ControlWish.CANCEL))
        raise Stuck(f"{self._side.engine}: the job does not end: {_where(record)}")

    # Noting

    def _begun(self, name: str, answer: Submitted | Refused) -> None:
        self._note(name, answer)
        if isinstance(answer, Submitted) and answer.job_id not in self._jobs:
            self._jobs.append(answer.job_id)

    def _note(self, name: str, answer: Applied | Submitted | Refused | None) -> None:
        self._answers.append(f"{name}: {_said(answer)}")

    async def _form(self, job_id: str) -> NormalForm:
        events = await self._side.ledger.events(job_id, limit=EVENTS_MAX)
        return normalised(await self._side.record(job_id), events)


def _ran_out(record: JobRecord) -> bool:
    return any(step.last_error_code in TIMES_OUT for step in record.steps)


def _reply_to(directive: dict[str, Json], move: Reply) -> dict[str, Json]:
    same = {name: directive[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}
    message = {**same, "timestamp": TIMESTAMP}
    if move.forged:
        message["lease_id"] = "lease of another"
    if move.say is Say.ACK:
        return {**message, "type": "ACK"}
    if move.say is Say.PROGRESS:
        return {**message, "type": "PROGRESS", "progress": move.percent, "note": f"{move.percent} %"}
    message = {**message, "type": "RESULT", "status": _STATUS[move.say]}
    if move.say is Say.DONE:
        return {**message, "output_ref": {"uri": f"s3://results/{directive['stepId']}"}}
    return {**message, "error_code": "ENGINE_ON_FIRE", "error_message": f"attempt {directive['attempt_no']}"}


def _envelope() -> Envelope:
    parsed = parse_envelope(
        {
            "tenant_id": TENANT,
            "request_type": REQUEST_TYPE,
            "input_ref": {"uri": "s3://documents/in.pdf"},
            "output_ref": {"uri": "s3://documents/out.json"},
            "payload": {service: {} for service in SERVICES},
            "schema_version": "1",
            "idempotency_key": "the one command of its script",
        }
    )
    assert isinstance(parsed, Envelope), parsed
    return parsed


def _said(answer: Applied | Submitted | Refused | None) -> str:
    match answer:
        case Applied():
            return f"{answer.outcome}{', stop' if answer.stop else ''}"
        case Submitted():
            state = JobState.QUEUED if answer.state is JobState.DISPATCHING else answer.state
            return f"{state}{', duplicate' if answer.duplicate else ''}"
        case Refused():
            return answer.code.value
        case None:
            return "no attempt to answer for"


def _where(record: JobRecord) -> str:
    step = record.current
    at = "" if step is None else f", {step.step_id} {step.state} attempt {step.attempt_no}"
    return f"{record.job.state}{at}, {record.job.seq} events"
