"""What would become of a command: everything that intake would decide, and every objection it would have.

In: a JSON document that wants to be an envelope. Out: a `CommandPlan`. Nothing is written, no slot is taken
and no reference is opened. Where intake stops at the first objection a plan goes on: members that cannot be
read are set aside, and whatever does not need them is still checked. Knows intake, admission and ledger;
nothing of HTTP. Limits are those of the moment: a plan is no promise.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from lucius.contracts.envelope import MEMBERS, REQUIRED, Envelope, parse_envelope
from lucius.core.budgets import BudgetState
from lucius.core.model import Json, ProtocolSpec, Routing, StepPolicy, step_id_at
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.states import Mode
from lucius.jobs.admission import Admission, InFlightCounts, InFlightLimits
from lucius.jobs.submit import JobSubmitter, bounds_refusal, identity_of
from lucius.ledger.job_ledger import JobLedger

PROBLEMS_MAX: Final = 200

# Stands in for a member that cannot be read. Whatever is found out from it is left out.
_STAND_INS: Final[dict[str, Json]] = {
    "tenant_id": "-",
    "request_type": "-",
    "input_ref": {"uri": "-"},
    "output_ref": {"uri": "-"},
    "payload": {},
    "schema_version": "1",
}
_IDENTITY_MEMBERS: Final = frozenset(REQUIRED) | {"idempotency_key"}
# Refusals whose own message says more than the one beside their field.
_SAY_MORE: Final = frozenset({Code.UNKNOWN_REQUEST_TYPE, Code.DOC_ID_REQUIRED, Code.IDEMPOTENCY_KEY_REUSED})


class PlanProblem(msgspec.Struct, frozen=True, kw_only=True):
    code: Code
    message: str
    pointer: str | None = None


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """`payload` as its directive would carry it; None where the payload was not acceptable."""

    step_id: str
    step_type: str
    service: str
    payload: Json
    policy: StepPolicy
    stop_on_pause: bool


class LimitsUsage(msgspec.Struct, frozen=True, kw_only=True):
    """How full it is, and whether there is room for this command. `refused`: why there is none."""

    in_flight: InFlightCounts
    tenant_max: int
    limits: InFlightLimits
    refused: Refused | None
    budgets: tuple[BudgetState, ...] = ()


class CommandPlan(msgspec.Struct, frozen=True, kw_only=True):
    """None where it cannot be told, because what decides it is missing or refused."""

    problems: tuple[PlanProblem, ...]
    protocol_id: str | None = None
    steps: tuple[PlannedStep, ...] = ()
    lane: int | None = None
    mode: Mode | None = None
    decision_source: str | None = None
    decision_reason: str | None = None
    duplicate_of: str | None = None
    limits: LimitsUsage | None = None

    @property
    def accepted(self) -> bool:
        return not self.problems


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    """A document as far as it can be read; `broken` are the members that stand-ins were put in for."""

    envelope: Envelope | None
    broken: frozenset[str]
    problems: tuple[PlanProblem, ...]

    def has(self, *names: str) -> bool:
        return self.broken.isdisjoint(names)


class CommandPlanner:
    def __init__(
        self, submitter: JobSubmitter, admission: Admission, ledger: JobLedger, *, now_ms: Callable[[], int]
    ) -> None:
        self._submitter = submitter
        self._admission = admission
        self._ledger = ledger
        self._now_ms = now_ms

    async def plan(self, document: Json, *, key_header: str | None = None) -> CommandPlan:
        read = _read(document, key_header)
        envelope = read.envelope
        if envelope is None:
            return CommandPlan(problems=read.problems[:PROBLEMS_MAX])
        problems = list(read.problems)
        protocol = self._protocol(envelope, read, problems)
        routing = self._routing(envelope, read, problems)
        payloads = self._payloads(envelope, read, protocol, problems)
        refs = self._submitter.reference_refusal(envelope)
        if refs is not None:
            problems += [each for each in problems_of(refs) if read.has(_member(each.pointer))]
        mode, source, reason = self._mode(envelope, read)
        duplicate_of = await self._duplicate_of(envelope, read, problems)
        limits = await self._limits(envelope, read, mode)
        if limits is not None and limits.refused is not None and duplicate_of is None:
            problems += problems_of(limits.refused)
        return CommandPlan(
            problems=tuple(problems[:PROBLEMS_MAX]),
            protocol_id=None if protocol is None else protocol.protocol_id,
            steps=() if protocol is None else _steps(protocol, payloads),
            lane=None if routing is None else routing.lane,
            mode=mode,
            decision_source=source,
            decision_reason=reason,
            duplicate_of=duplicate_of,
            limits=limits,
        )

    def _protocol(self, envelope: Envelope, read: _Read, problems: list[PlanProblem]) -> ProtocolSpec | None:
        if not read.has("request_type"):
            return None
        protocol = self._submitter.protocol_of(envelope.request_type)
        if isinstance(protocol, Refused):
            problems += problems_of(protocol)
            return None
        return protocol

    def _routing(self, envelope: Envelope, read: _Read, problems: list[PlanProblem]) -> Routing | None:
        if not read.has("mode", "doc_id") or (envelope.mode is None and not read.has("tenant_id")):
            return None
        routing = self._submitter.route_of(envelope)
        if isinstance(routing, Refused):
            problems += problems_of(routing)
            return None
        return routing if read.has("tenant_id") else None

    def _mode(self, envelope: Envelope, read: _Read) -> tuple[Mode | None, str | None, str | None]:
        return self._submitter.mode_of(envelope) if read.has("mode", "tenant_id") else (None, None, None)

    def _payloads(
        self, envelope: Envelope, read: _Read, protocol: ProtocolSpec | None, problems: list[PlanProblem]
    ) -> Sequence[Json] | None:
        if not read.has("payload"):
            return None
        bounds = bounds_refusal(envelope.payload)
        if bounds is not None:
            problems += problems_of(bounds)
        if protocol is None:
            return None
        payloads = self._submitter.step_payloads(protocol, envelope.payload)
        if isinstance(payloads, Refused):
            problems += problems_of(payloads)
            return None
        size = (
            self._submitter.size_refusal(envelope, payloads) if read.has("input_ref", "output_ref") else None
        )
        if size is not None:
            problems += problems_of(size)
        return payloads if bounds is None else None

    async def _duplicate_of(self, envelope: Envelope, read: _Read, problems: list[PlanProblem]) -> str | None:
        """The job that this command has already, if any."""
        if not read.broken.isdisjoint(_IDENTITY_MEMBERS):
            return None
        identity = identity_of(envelope)
        holder = await self._ledger.key_holder(envelope.tenant_norm, identity.idempotency_hash)
        if holder is None:
            return None
        if holder.row.fingerprint != identity.fingerprint:
            message = "this idempotency key was used for a different command"
            problems.append(
                PlanProblem(code=Code.IDEMPOTENCY_KEY_REUSED, message=message, pointer="/idempotency_key")
            )
            return None
        # A key without its job was claimed by a command that got no further: the command would finish it.
        loaded = await self._ledger.load(holder.row.job_id, fresh=True)
        return None if loaded is None else holder.row.job_id

    async def _limits(self, envelope: Envelope, read: _Read, mode: Mode | None) -> LimitsUsage | None:
        if not read.has("tenant_id"):
            return None
        tenant = envelope.tenant_norm
        refused = self._admission.refusal(tenant, mode or Mode.DEFAULT, self._now_ms())
        return LimitsUsage(
            in_flight=self._admission.in_flight(tenant),
            tenant_max=self._admission.tenant_max(tenant),
            limits=self._admission.limits,
            refused=await self._submitter.budget_refusal(tenant) or refused,
            budgets=tuple(await self._submitter.budget_states(tenant)),
        )


def problems_of(refused: Refused) -> list[PlanProblem]:
    """A refusal as problems, one for each field at fault."""
    if not refused.errors:
        return [PlanProblem(code=refused.code, message=refused.message)]
    return [
        PlanProblem(
            code=_code(refused.code, error),
            message=refused.message if refused.code in _SAY_MORE else error.message,
            pointer=error.pointer,
        )
        for error in refused.errors
    ]


def _code(code: Code, error: FieldError) -> Code:
    """A version that is not ours is told together with whatever else looks wrong."""
    if code is Code.UNSUPPORTED_SCHEMA_VERSION and error.pointer != "/schema_version":
        return Code.INVALID_ENVELOPE
    return code


def _read(document: Json, key_header: str | None) -> _Read:
    parsed = parse_envelope(document, key_header=key_header)
    if isinstance(parsed, Envelope):
        return _Read(envelope=parsed, broken=frozenset(), problems=())
    problems = tuple(problems_of(parsed))
    known = (
        {name: document[name] for name in MEMBERS if name in document} if isinstance(document, dict) else {}
    )
    broken: frozenset[str] = frozenset()
    while isinstance(document, dict):
        sound = {name: value for name, value in known.items() if name not in broken}
        stand_ins = {name: value for name, value in _STAND_INS.items() if name in broken}
        header = None if "idempotency_key" in broken else key_header
        parsed = parse_envelope(sound | stand_ins, key_header=header)
        if isinstance(parsed, Envelope):
            return _Read(envelope=parsed, broken=broken, problems=problems)
        found = {_member(error.pointer) for error in parsed.errors}
        if found <= broken:
            break  # what was put in its place is refused as well: nothing more can be told
        broken |= found
    return _Read(envelope=None, broken=broken, problems=problems)


def _member(pointer: str | None) -> str:
    """The member of the envelope that a pointer leads into. Names of members have nothing to unescape."""
    return (pointer or "").lstrip("/").partition("/")[0]


def _steps(protocol: ProtocolSpec, payloads: Sequence[Json] | None) -> tuple[PlannedStep, ...]:
    return tuple(
        PlannedStep(
            step_id=step_id_at(index),
            step_type=step.step_type,
            service=step.service,
            payload=None if payloads is None else payloads[index],
            policy=step.policy,
            stop_on_pause=step.stop_on_pause,
        )
        for index, step in enumerate(protocol.steps)
    )
