"""A command becomes a job: exactly one, whatever crashes, however many processes race."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Protocol

import msgspec

from lucius.contracts.credentials import blank_credentials, secret_member
from lucius.contracts.envelope import Envelope
from lucius.contracts.payload_limits import payload_problems
from lucius.contracts.pointers import below
from lucius.core.budgets import Budget, BudgetState
from lucius.core.canonical import fingerprint, key_hash
from lucius.core.model import Job, Json, ProtocolSpec, Routing, Step
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.routing import resolve_mode, route
from lucius.core.states import JOB_TERMINAL, Engine, JobState, Mode
from lucius.jobs.admission import Admission
from lucius.jobs.adoptions import Adoptions, adoption_name, came_to_nothing
from lucius.jobs.budgets import Budgets
from lucius.jobs.new_job import CommandDefaults, CommandIdentity, NewIds, new_job
from lucius.jobs.references import ReferencePolicy
from lucius.jobs.sizes import SizeLimits
from lucius.jobs.writer import JobWriter
from lucius.ledger.idempotency import KeyClaim, KeyHolder, KeyTaken
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.name_index import NameIndex
from lucius.ledger.store import BoundReached, Conflict, StoreUnavailable
from lucius.registry.payloads import PayloadRules
from lucius.registry.port import Registry

RACES_MAX = 20
NEAR_TYPES_MAX = 3
NEAR_LENGTH_MAX = 128


class ModePolicy(Protocol):
    """What is decided for tenants. Asked for every command, so what stands behind it may change."""

    @property
    def global_mode(self) -> Mode: ...

    @property
    def tenant_modes(self) -> Mapping[str, Mode]: ...

    @property
    def burst_denied(self) -> frozenset[str]: ...

    @property
    def tenant_limits(self) -> Mapping[str, int]:
        """How many jobs may be in flight, of tenants that have a limit of their own."""
        ...

    @property
    def tenant_budgets(self) -> Mapping[str, tuple[Budget, ...]]: ...


class ModeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which mode a job runs in where its command does not say, who may not burst, and which tenants have a
    limit of their own."""

    global_mode: Mode = Mode.DEFAULT
    tenant_modes: Mapping[str, Mode] = {}
    burst_denied: frozenset[str] = frozenset()
    tenant_limits: Mapping[str, int] = {}
    tenant_budgets: Mapping[str, tuple[Budget, ...]] = {}


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    state: JobState
    duplicate: bool


class ResolvedCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command that could become a job: everything decided, nothing written."""

    protocol: ProtocolSpec
    payloads: tuple[Json, ...]
    routing: Routing
    identity: CommandIdentity


class JobSubmitter:
    def __init__(
        self,
        ledger: JobLedger,
        registry: Registry,
        admission: Admission,
        services: NameIndex,
        references: ReferencePolicy,
        callbacks: ReferencePolicy,
        writer: JobWriter,
        defaults: CommandDefaults,
        modes: ModePolicy,
        *,
        now_ms: Callable[[], int],
        new_ids: Callable[[], NewIds],
        sizes: SizeLimits | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        self._ledger = ledger
        self._adoptions = Adoptions(ledger)
        self._registry = registry
        self._rules = PayloadRules()
        self._admission = admission
        self._services = services
        self._references = references
        self._callbacks = callbacks
        self._writer = writer
        self._sizes = sizes or SizeLimits()
        self._budgets = budgets
        self._defaults = defaults
        self._modes = modes
        self._now_ms = now_ms
        self._new_ids = new_ids
        self._submitting: dict[tuple[str, str], asyncio.Future[None]] = {}

    @property
    def engine(self) -> Engine:
        """That of new jobs."""
        return self._defaults.engine

    async def submit(self, envelope: Envelope) -> Submitted | Refused:
        resolved = self.resolve(envelope)
        if isinstance(resolved, Refused):
            return resolved
        identity = resolved.identity

        def build(ids: NewIds, now_ms: int) -> tuple[Job, tuple[Step, ...]]:
            return new_job(
                envelope,
                resolved.protocol,
                resolved.payloads,
                resolved.routing,
                identity,
                ids,
                self._defaults,
                now_ms,
            )

        return await self.admit(
            tenant_norm=envelope.tenant_norm,
            mode=resolved.routing.resolved_mode,
            key=identity.idempotency_hash,
            fingerprint=identity.fingerprint,
            build=build,
        )

    def resolve(self, envelope: Envelope) -> ResolvedCommand | Refused:
        protocol = self.protocol_of(envelope.request_type)
        if isinstance(protocol, Refused):
            return protocol
        routing = self.route_of(envelope)
        if isinstance(routing, Refused):
            return routing
        refused = bounds_refusal(envelope.payload)
        if refused is not None:
            return refused
        payloads = self.step_payloads(protocol, envelope.payload)
        if isinstance(payloads, Refused):
            return payloads
        refused = self.reference_refusal(envelope) or self.size_refusal(envelope, payloads)
        if refused is not None:
            return refused
        return ResolvedCommand(
            protocol=protocol, payloads=payloads, routing=routing, identity=identity_of(envelope)
        )

    # The checks, one by one: `resolve` stops at the first that refuses, a plan asks them all.

    def protocol_of(self, request_type: str) -> ProtocolSpec | Refused:
        protocol = self._registry.resolve(request_type)
        if protocol is not None:
            return protocol
        message = f"no protocol for request type {request_type!r}; {_near(request_type, self._registry)}"
        return Refused(Code.UNKNOWN_REQUEST_TYPE, message, (FieldError("/request_type", "is not known"),))

    def step_payloads(self, protocol: ProtocolSpec, payload: Json) -> tuple[Json, ...] | Refused:
        return self._rules.step_payloads(protocol, payload)

    async def admit(
        self,
        *,
        tenant_norm: str,
        mode: Mode,
        key: str,
        fingerprint: str,
        build: Callable[[NewIds, int], tuple[Job, tuple[Step, ...]]],
        reusable: bool = False,
        adopted: dict[str, Json] | None = None,
    ) -> Submitted | Refused:
        """Creates the job under its idempotency key, or finds the one that holds it.

        `reusable`: a key whose job is terminal may be taken over (a rerun without a key of its own).
        `adopted`: the late success that the job begins with; without a key of its own it is the key, too.
        """
        place = (tenant_norm, key)
        if (other := self._submitting.get(place)) is not None:
            # It takes a slot that this one, which will most likely be its duplicate, does not need.
            await asyncio.wait({other})
        over: asyncio.Future[None] | None = None
        if place not in self._submitting:
            over = self._submitting[place] = asyncio.get_running_loop().create_future()
        try:
            return await self._admit(tenant_norm, mode, key, fingerprint, build, reusable, adopted)
        finally:
            if over is not None:
                del self._submitting[place]
                over.set_result(None)

    async def _admit(
        self,
        tenant_norm: str,
        mode: Mode,
        key: str,
        fingerprint: str,
        build: Callable[[NewIds, int], tuple[Job, tuple[Step, ...]]],
        reusable: bool,
        adopted: dict[str, Json] | None,
    ) -> Submitted | Refused:
        adopts = None if adopted is None or not reusable else adoption_name(adopted)
        for _ in range(RACES_MAX):
            holder = await self._ledger.key_holder(tenant_norm, key)
            claim = KeyClaim(partition=tenant_norm, key=key, adopts=adopts)
            if holder is not None:
                there = None if adopts is None else await self._adoptions.find(holder.row, adopts)
                if there is not None:
                    return Submitted(job_id=there.job.job_id, state=there.job.state, duplicate=True)
                found = await self._held(holder, fingerprint, build, tenant_norm, mode, adopted)
                if not (reusable and isinstance(found, Submitted) and _gives_way(found)):
                    if found is not None:
                        return found
                    continue
                known = await self._adoptions.known(holder.row)
                own = adopts is not None and known.get(adopts) == holder.row.job_id
                if own and not came_to_nothing(found.state):
                    return found  # it was created only now, and with this very success
                claim = msgspec.structs.replace(claim, etag=holder.etag, adoptions=known)
            created = await self._create_in_slot(claim, mode, build, adopted)
            if created is not None:
                return created
        raise StoreUnavailable("the idempotency key changed hands too often")

    async def _create_in_slot(
        self,
        claim: KeyClaim,
        mode: Mode,
        build: Callable[[NewIds, int], tuple[Job, tuple[Step, ...]]],
        adopted: dict[str, Json] | None,
    ) -> Submitted | Refused | None:
        """None if another process claimed the key meanwhile."""
        if (spent := await self.budget_refusal(claim.partition)) is not None:
            return spent
        ids = self._new_ids()
        refused = await self._admission.reserve(claim.partition, ids.job_id, mode, self._now_ms())
        if refused is not None:
            return refused
        try:
            return await self._create(claim, build, ids, adopted)
        except KeyTaken:
            self._admission.release(claim.partition, ids.job_id)
            return None
        except BoundReached as reached:
            return await self._refused(reached, claim.partition, ids.job_id, mode)
        except BaseException as fault:
            self._not_created(claim.partition, ids.job_id, fault)
            raise

    def _not_created(self, tenant_norm: str, job_id: str, fault: BaseException) -> None:
        """As far as is known: one commit that was refused wrote nothing, but of several, or of one that
        gave no answer, the slot's row may be there."""
        if self._ledger.store.spans and isinstance(fault, StoreUnavailable | Conflict):
            self._admission.release(tenant_norm, job_id)
        else:
            self._admission.doubt(tenant_norm, job_id)

    async def _create(
        self,
        claim: KeyClaim,
        build: Callable[[NewIds, int], tuple[Job, tuple[Step, ...]]],
        ids: NewIds,
        adopted: dict[str, Json] | None,
    ) -> Submitted:
        now_ms = self._now_ms()
        job, steps = build(ids, now_ms)
        for service in dict.fromkeys(name for step in steps for name in (step.service, *step.fallback)):
            await self._services.add(service)
        record = await self._writer.create(job, steps, claim, now_ms=now_ms, adopted=adopted)
        return _created(record.job)

    async def _held(
        self,
        holder: KeyHolder,
        fingerprint: str,
        build: Callable[[NewIds, int], tuple[Job, tuple[Step, ...]]],
        tenant_norm: str,
        mode: Mode,
        adopted: dict[str, Json] | None,
    ) -> Submitted | Refused | None:
        """The answer of the job that holds the key; None where a race made it unclear: look again."""
        if holder.row.fingerprint != fingerprint:
            message = "this idempotency key was used for a different command"
            return Refused(
                Code.IDEMPOTENCY_KEY_REUSED, message, (FieldError("/idempotency_key", "was used before"),)
            )
        loaded = await self._ledger.load(holder.row.job_id, fresh=True)
        if loaded is None:
            return await self._finish(holder, build, tenant_norm, mode, adopted)
        return Submitted(job_id=holder.row.job_id, state=loaded.record.job.state, duplicate=True)

    async def _finish(
        self,
        holder: KeyHolder,
        build: Callable[[NewIds, int], tuple[Job, tuple[Step, ...]]],
        tenant_norm: str,
        mode: Mode,
        adopted: dict[str, Json] | None,
    ) -> Submitted | Refused | None:
        """A process claimed the key and never created the job: do it under the id that it chose."""
        ids = msgspec.structs.replace(self._new_ids(), job_id=holder.row.job_id)
        refused = await self._admission.reserve(tenant_norm, ids.job_id, mode, self._now_ms())
        if refused is not None:
            return refused
        now_ms = self._now_ms()
        try:
            job, steps = build(ids, holder.row.created_at_ms)
            record = await self._writer.create(job, steps, None, now_ms=now_ms, adopted=adopted)
        except BoundReached as reached:
            return await self._refused(reached, tenant_norm, ids.job_id, mode)
        except BaseException as fault:
            # The slot is that of the job, and another process may have finished it.
            self._admission.doubt(tenant_norm, ids.job_id)
            if isinstance(fault, Conflict):
                return None
            raise
        return _created(record.job)

    async def _refused(self, reached: BoundReached, tenant_norm: str, job_id: str, mode: Mode) -> Refused:
        return await self._admission.refused_by(reached.bound, tenant_norm, job_id, mode, self._now_ms())

    async def budget_refusal(self, tenant_norm: str) -> Refused | None:
        return None if self._budgets is None else await self._budgets.refusal(tenant_norm)

    async def budget_states(self, tenant_norm: str) -> list[BudgetState]:
        """How far the tenant's budgets are used."""
        return [] if self._budgets is None else await self._budgets.states(tenant_norm)

    def mode_of(self, envelope: Envelope) -> tuple[Mode, str, str]:
        """The mode, who decided it, and why; whether the tenant may use it is another question."""
        return resolve_mode(
            requested=envelope.mode,
            tenant_mode=self._modes.tenant_modes.get(envelope.tenant_norm),
            global_mode=self._modes.global_mode,
        )

    def route_of(self, envelope: Envelope) -> Routing | Refused:
        mode, source, reason = self.mode_of(envelope)
        if mode is Mode.BURST:
            if envelope.tenant_norm in self._modes.burst_denied:
                return Refused(Code.FORBIDDEN, "this tenant may not use BURST")
            if envelope.doc_id is None:
                message = "BURST spreads a tenant's jobs by document, so it needs a doc_id"
                return Refused(Code.DOC_ID_REQUIRED, message, (FieldError("/doc_id", "is required"),))
        return route(
            tenant_id=envelope.tenant_id,
            doc_id=envelope.doc_id,
            mode=mode,
            decision_source=source,
            decision_reason=reason,
        )

    def reference_refusal(self, envelope: Envelope) -> Refused | None:
        errors: list[FieldError] = []
        for name, ref in (("input_ref", envelope.input_ref), ("output_ref", envelope.output_ref)):
            reason = self._references.check(ref["uri"], envelope.tenant_norm)
            if reason is not None:
                errors.append(FieldError(f"/{name}/uri", reason))
            elif len(ref) > 1 and (member := secret_member(ref)) is not None:
                at = below(f"/{name}", blank_credentials(member))
                errors.append(FieldError(at, "must not carry credentials"))
        for name, url in (envelope.callback_urls or {}).items():
            reason = self._callbacks.check(url)
            if reason is not None:
                errors.append(FieldError(f"/callback_urls/{name}", reason))
        if errors:
            return Refused(Code.REF_NOT_ALLOWED, "a reference is not allowed by the policy", tuple(errors))
        return None

    def size_refusal(self, envelope: Envelope, payloads: Sequence[Json]) -> Refused | None:
        return self._sizes.refusal(envelope, payloads)


def _near(request_type: str, registry: Registry) -> str:
    """The names that were most likely meant: all of them where there are few."""
    known = registry.request_types()
    if len(known) <= NEAR_TYPES_MAX:
        return f"known are: {', '.join(known)}"
    near = get_close_matches(request_type.strip().upper()[:NEAR_LENGTH_MAX], known, NEAR_TYPES_MAX, 0.0)
    return f"the nearest of {len(known)} are: {', '.join(near)}"


def bounds_refusal(payload: Json) -> Refused | None:
    problems = payload_problems(payload, "/payload")
    return Refused(Code.INVALID_PAYLOAD, "the payload is not acceptable", problems) if problems else None


def identity_of(envelope: Envelope) -> CommandIdentity:
    printed = fingerprint(
        tenant_norm=envelope.tenant_norm,
        request_type=envelope.request_type,
        input_ref=envelope.input_ref,
        output_ref=envelope.output_ref,
        payload=envelope.payload,
        schema_version=envelope.schema_version,
    )
    key = envelope.idempotency_key
    hashed = printed if key is None else key_hash(envelope.tenant_norm, key)
    return CommandIdentity(idempotency_hash=hashed, fingerprint=printed)


def _created(job: Job) -> Submitted:
    """A new job is told as QUEUED, however far it has come by now, unless it has ended already."""
    state = job.state if job.terminal else JobState.QUEUED
    return Submitted(job_id=job.job_id, state=state, duplicate=False)


def _gives_way(accepted: Submitted) -> bool:
    """Whether it ended before it was asked for; a job that was created just now may have ended, too."""
    return accepted.duplicate and accepted.state in JOB_TERMINAL
