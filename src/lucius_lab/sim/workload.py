"""The clients of a simulated Lucius: commands, repeated commands, controls, and forged answers.

Clients insist: whatever is lost or dies, they ask again until they are answered, and remember the answer.
"""

from collections.abc import Callable, Coroutine
from functools import lru_cache
from itertools import count
from typing import Any, TypeVar

import msgspec

from lucius.bus.port import BusError, ReplyOut
from lucius.contracts.envelope import Envelope, parse_envelope
from lucius.contracts.messages import parse_reply
from lucius.core.draft import Outcome
from lucius.core.inputs import Cancel, Control, Pause, Resume
from lucius.core.model import Event, Json, step_id_at
from lucius.core.refusal import Code, Refused
from lucius.core.replies import is_late_success
from lucius.core.routing import lane_of
from lucius.jobs.submit import Submitted
from lucius.jobs.writer import Applied
from lucius.ledger.store import StoreError
from lucius_lab.sim.bus import SimBus
from lucius_lab.sim.cluster import Cluster
from lucius_lab.sim.context import PeerUnreachable
from lucius_lab.sim.deployment import SimParts
from lucius_lab.sim.faults import FaultKind, Site
from lucius_lab.sim.watch import Violation

T = TypeVar("T")
Serve = Callable[[SimParts], Coroutine[Any, Any, T]]

TENANTS = ("tenant_a", "tenant_b", "tenant_c")
TENANTS_OF_ONE_LANE = ("tenant_a", "tenant_8")


def _doc_elsewhere(tenant: str, lanes: frozenset[int]) -> str:
    """A document whose BURST lane is one of these and not its tenant's own: no lane more to look after."""
    docs = (f"doc {number}" for number in count())
    return next(doc for doc in docs if lane_of(tenant + doc) in lanes - {lane_of(tenant)})


LANES_USED = frozenset(map(lane_of, TENANTS))
DOCS = {tenant: _doc_elsewhere(tenant, LANES_USED) for tenant in (*TENANTS, *TENANTS_OF_ONE_LANE)}

AGAIN_SECONDS = 0.6
BUSY_SECONDS = 2.0  # `Retry-After` is a second at least
RERUN_AGAIN_SECONDS = 4.0
RERUN_TRIES_MAX = 30
CONTROL_SECONDS_MAX = 8.0
EVENTS_MAX = 500
FORGERY_EVERY_SECONDS = 1.5
_BUSY = frozenset({Code.TENANT_LIMIT, Code.SYSTEM_SATURATED})
_LATER = frozenset({Code.JOB_NOT_TERMINAL})


class PlannedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One command of a client, when it is sent, and what else happens to it."""

    number: int
    at_seconds: float
    envelope: Envelope
    chance: int
    kind: FaultKind | None
    fault_number: int


class Clients:
    def __init__(
        self,
        cluster: Cluster,
        request_types: tuple[str, ...],
        *,
        jobs: int,
        submit_seconds: float,
        tenants: tuple[str, ...] = TENANTS,
    ) -> None:
        self._tenants = tenants
        self._cluster = cluster
        self._context = cluster.context
        self.process = cluster.outsider("clients")
        self.accepted_ids: dict[str, None] = {}
        """Every job of which a client has the id."""
        self.outside = cluster.outsider("strangers")
        self._commands = [self._command(number, request_types, submit_seconds) for number in range(jobs)]

    def _command(self, number: int, request_types: tuple[str, ...], submit_seconds: float) -> PlannedCommand:
        faults = self._context.faults
        kind = faults.at(Site.COMMAND, self.process)
        chance = faults.entropy
        return PlannedCommand(
            number=number,
            at_seconds=submit_seconds * (chance & 1023) / 1023,
            envelope=_envelope(
                number,
                request_types[number % len(request_types)],
                self._tenants[(chance >> 10) % len(self._tenants)],
                burst=not chance >> 14 & 3,
            ),
            chance=chance >> 16,
            kind=kind,
            fault_number=faults.number,
        )

    async def run(self) -> None:
        """Returns once every client has its answers."""
        tasks = [self.process.spawn(self._carry_out(command)) for command in self._commands]
        for task in tasks:
            await task

    async def _carry_out(self, command: PlannedCommand) -> None:
        context, chance = self._context, command.chance
        await context.loop.pause(command.at_seconds)
        if command.kind is not None:
            context.fault(command.kind, self.process, f"command {command.number}", command.fault_number)
        others: list[Any] = []
        if command.kind is FaultKind.COMMAND_DUPLICATE:
            others = [self.process.spawn(self._again(command, delay)) for delay in (0.0, (chance & 63) / 16)]
        elif command.kind is FaultKind.KEY_REUSED:
            others = [self.process.spawn(self._reused(command, (chance & 63) / 32))]
        accepted = await self._submit(command.envelope, chance)
        if command.kind is FaultKind.CONTROL and accepted is not None:
            await self._control(accepted, chance >> 6)
        for other in others:
            await other

    async def _submit(self, envelope: Envelope, chance: int) -> str | None:
        """The job's id; None where the key turned out to be another command's."""
        answer = await self._insist(lambda parts: parts.submitter.submit(envelope), chance)
        if isinstance(answer, Submitted):
            self._told(answer, f"{envelope.idempotency_key} {envelope.payload}")
            return answer.job_id
        if answer.code is not Code.IDEMPOTENCY_KEY_REUSED:
            self._context.broken(Violation("UNEXPECTED", "", f"a good command was refused: {answer}"))
        return None

    async def _again(self, command: PlannedCommand, delay: float) -> None:
        await self._context.loop.pause(delay)
        if await self._submit(command.envelope, command.chance >> 3) is None:
            self._context.broken(Violation("I3", "", "the same command under its key was refused"))

    async def _reused(self, command: PlannedCommand, delay: float) -> None:
        await self._context.loop.pause(delay)
        other = msgspec.structs.replace(command.envelope, payload={"another": command.number})
        await self._submit(other, command.chance >> 3)

    # Controls

    async def _control(self, job_id: str, chance: int) -> None:
        pause = self._context.loop.pause
        part = (chance & 1023) / 1023
        await pause(CONTROL_SECONDS_MAX * part * part)  # half of them within two seconds
        script = chance >> 10 & 7
        if script in (0, 1):
            await self._wish(job_id, Cancel(), chance >> 13)
        elif script in (2, 3):
            await self._wish(job_id, Pause(), chance >> 13)
            await pause((chance >> 14 & 1023) / 64)
            await self._wish(job_id, Resume(), chance >> 14)
        elif script == 4:
            await self._wish(job_id, Pause(), chance >> 13)
            await pause((chance >> 14 & 1023) / 256)
            await self._wish(job_id, Cancel(), chance >> 14)
        elif script == 5:
            await self._insist(lambda parts: parts.retry_now.all_due(), chance)
        if script in (0, 5, 6, 7):
            await self._rerun(job_id, chance >> 14)

    async def _wish(self, job_id: str, control: Control, chance: int) -> None:
        answer = await self._insist(lambda parts: parts.writer.apply(job_id, control), chance)
        expected = {Code.JOB_TERMINAL, Code.JOB_CANCELLING}
        if self._cluster.world.deployment_settings.retention_ms is not None:
            expected.add(Code.JOB_NOT_FOUND)
        if isinstance(answer, Refused) and answer.code not in expected:
            text = f"{type(control).__name__} was refused: {answer.code}"
            self._context.broken(Violation("I3", job_id, text))

    async def _rerun(self, job_id: str, chance: int) -> None:
        key = f"again {job_id}" if chance & 1 else None
        first = None if chance >> 1 & 7 else (chance >> 4) % 3
        if first is not None and self._context.watch is not None:
            self._context.watch.rerun_asked(job_id, first)
        adopts = not chance >> 5 & 3

        async def serve(parts: SimParts) -> Submitted | Refused:
            late = await _late_success(parts, job_id) if adopts else None
            if late is not None and late.step_id is not None:
                return await parts.reruns.adopt(job_id, step_id=late.step_id, seq=late.seq, key=key)
            from_step = None if first is None else step_id_at(first)
            return await parts.reruns.rerun(job_id, from_step=from_step, key=key)

        for _ in range(RERUN_TRIES_MAX):
            answer = await self._insist(serve, chance)
            if isinstance(answer, Submitted):
                self._told(answer, key or "")
                return
            if answer.code not in _LATER:
                return
            await self._context.loop.pause(RERUN_AGAIN_SECONDS)

    # Asking

    async def _insist(self, serve: "Serve[T | Refused]", chance: int) -> "T | Refused":
        context = self._context
        tries = 0
        while True:
            tries += 1
            try:
                answer = await self._cluster.api_calls.call(self.process, chance + tries, serve)
            except (PeerUnreachable, StoreError):
                await context.loop.pause(AGAIN_SECONDS)
                continue
            except Exception as fault:
                context.broken(Violation("UNEXPECTED", "", f"a call ended with {fault!r}"))
                await context.loop.never()
            if isinstance(answer, Refused) and answer.code in _BUSY:
                await context.loop.pause(BUSY_SECONDS)
                continue
            return answer

    def _told(self, accepted: Submitted, key: str) -> None:
        self.accepted_ids[accepted.job_id] = None
        if self._context.watch is not None:
            try:
                self._context.watch.answered(accepted.job_id, key=key, duplicate=accepted.duplicate)
            except Violation as violation:
                self._context.broken(violation)

    # Strangers

    async def forgeries(self) -> None:
        """Sends answers that are not expected: forged, stale, garbled, or repeated."""
        context = self._context
        bus = SimBus(context, self._cluster.world.bus, self.outside, self._cluster.world.broker)
        while context.loop.time() < context.faults.quiet_at:
            await context.loop.pause(FORGERY_EVERY_SECONDS)
            kind = context.faults.at(Site.STRANGER, self.outside)
            chance = context.faults.entropy
            if kind is None or not self._cluster.seen:
                continue
            message = _forged(self._cluster.seen[chance % len(self._cluster.seen)], chance >> 8)
            context.fault(kind, self.outside, f"{message.get('type')} for {message.get('jobId')}")
            if self._cluster.broker:
                await self._throw(bus, message, chance)
            else:
                await self._forge(message, chance)

    async def _throw(self, bus: SimBus, message: dict[str, Json], chance: int) -> None:
        lanes = sorted(self._cluster.world.deployment_settings.lanes)
        body = msgspec.json.encode(message) if chance & 15 else b"\x00 not even JSON"
        reply = ReplyOut(
            lane=lanes[chance % len(lanes)], message_key="?", message_id=f"forged{chance}", body=body
        )
        try:
            await bus.publish_reply(reply)
        except BusError:
            return

    async def _forge(self, message: dict[str, Json], chance: int) -> None:
        parsed = parse_reply(message, expected=None)
        if isinstance(parsed, Refused):
            return
        job_id, reply = parsed
        try:
            answer = await self._cluster.api_calls.call(
                self.outside, chance, lambda parts: parts.writer.apply(job_id, reply)
            )
        except (PeerUnreachable, StoreError):
            return
        watch = self._context.watch
        if watch is None or not isinstance(answer, Applied) or answer.outcome is Outcome.UNCHANGED:
            return
        try:
            attempt = (job_id, reply.step_id, reply.attempt_no, reply.lease_id)
            stop = answer.stop or answer.outcome is Outcome.STALE
            watch.replied(attempt, message["type"], answer.outcome.value, stop=stop)
        except Violation as violation:
            self._context.broken(violation)


async def _late_success(parts: SimParts, job_id: str) -> Event | None:
    events = await parts.ledger.events(job_id, limit=EVENTS_MAX)
    return next((event for event in events if is_late_success(event)), None)


@lru_cache(maxsize=1024)
def _envelope(number: int, request_type: str, tenant: str, *, burst: bool) -> Envelope:
    parsed = parse_envelope(
        {
            "tenant_id": tenant,
            "request_type": request_type,
            "input_ref": {"uri": f"s3://inputs/{number}"},
            "output_ref": {"uri": f"s3://outputs/{number}"},
            "payload": {"number": number},
            "schema_version": "1",
            "idempotency_key": f"command {number}",
            **({"mode": "BURST", "doc_id": DOCS[tenant]} if burst else {}),
            **({} if number % 3 else {"priority": number % 10}),
        }
    )
    assert isinstance(parsed, Envelope)
    return parsed


def _forged(message: dict[str, Json], chance: int) -> dict[str, Json]:
    """A reply that was sent, sent again, perhaps with one thing wrong with it."""
    forged = dict(message)
    match chance & 7:
        case 0:
            forged["lease_id"] = "lease of another"
        case 1:
            forged["attempt_no"] = message["attempt_no"] + 1
        case 2:
            forged["stepId"] = "step_02" if message["stepId"] == "step_01" else "step_01"
        case 3:
            forged["jobId"] = "job_unknown"
        case 4:
            del forged["lease_id"]
        case 5:
            forged["type"] = "RESULT"
            forged["status"] = "SUCCEEDED"
            forged["lease_id"] = "lease of another"
        case 6:
            forged["tenant_id"] = "tenant of another"
        case _:
            pass  # a plain repeat
    return forged
