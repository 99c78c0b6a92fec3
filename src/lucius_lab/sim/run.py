"""One simulation: a seed and a shape in, what came of it out.

The seed chooses the topology, the layout and what the store can do, unless the shape says so. Things go wrong
until `quiet_at_seconds`; after that everything must come to rest.
"""

from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache
from itertools import count
from random import Random
from typing import Any, TypeVar

import msgspec

from lucius.bus.memory import MemoryBus, MemoryLimits
from lucius.core.flow import ServiceLimits
from lucius.core.model import Job, ProtocolSpec, StepPolicy, StepSpec
from lucius.ledger.commit_plan import GRACE_MS
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.names import Tables, split_time_key
from lucius.ledger.store import BoundsStore
from lucius.registry.catalogue import Catalogue
from lucius_lab.sim.batched_checks import BatchedChecks
from lucius_lab.sim.cluster import SKEW_MS_MAX, Cluster, ClusterTopology
from lucius_lab.sim.constraints import QUICK, Constraint, bounds_of, chosen_constraint
from lucius_lab.sim.context import SimContext
from lucius_lab.sim.deployment import DeploymentSettings, PlainTokens, SimWorld
from lucius_lab.sim.faults import PRESETS, Fault, FaultKind, FaultPlan, Faults
from lucius_lab.sim.invariants import Invariants
from lucius_lab.sim.invariants_limits import LimitInvariants
from lucius_lab.sim.invariants_turns import TurnInvariants
from lucius_lab.sim.loop import Exhausted, Process, SimLoop
from lucius_lab.sim.lost_rows import RowLoss
from lucius_lab.sim.silent_log import quiet_logs, rare_collections, unlisted_tasks
from lucius_lab.sim.store import SharedStore, SharedStoreLike
from lucius_lab.sim.trace import Acts, Trace
from lucius_lab.sim.watch import SimListener, Violation
from lucius_lab.sim.workers import Behaviour
from lucius_lab.sim.workload import LANES_USED, TENANTS, TENANTS_OF_ONE_LANE, Clients

T = TypeVar("T")

START_MS = 1_800_000_000_000
REST_LOOK_SECONDS = 1.0
AUDIT_EVERY_SECONDS = 5.0
# Rows without a job are met twice, a minute apart, before they go; processes come back from the dead
# meanwhile.
AUDITED_SECONDS = 100.0
JOBS_OF_ONE_LANE = 3  # times as many as in other runs, so that both tenants have some waiting
AFTERMATH_SECONDS = 3.0  # things go on going wrong for a while once all jobs have ended: answers come late
TABLES = Tables()
REGISTRIES_MAX = 64

_LEDGER, _TABLE = LayoutName.LEDGER, LayoutName.TABLE
# How many of a hundred seeds run in which deployment: topology, layout, whether the store spans. What is
# cheap to simulate comes more often; brokers, and stores that do not span, come in every tenth to fifth
# schedule.
DEPLOYMENTS: Mapping[tuple[ClusterTopology, LayoutName, bool], int] = {
    (ClusterTopology.EMBEDDED, _LEDGER, True): 24,
    (ClusterTopology.EMBEDDED, _TABLE, True): 22,
    (ClusterTopology.EMBEDDED, _LEDGER, False): 4,
    (ClusterTopology.EMBEDDED, _TABLE, False): 4,
    (ClusterTopology.WORKERS, _LEDGER, True): 13,
    (ClusterTopology.WORKERS, _TABLE, True): 13,
    (ClusterTopology.WORKERS, _LEDGER, False): 4,
    (ClusterTopology.WORKERS, _TABLE, False): 4,
    (ClusterTopology.BROKER, _LEDGER, True): 3,
    (ClusterTopology.BROKER, _TABLE, True): 3,
    (ClusterTopology.BROKER, _LEDGER, False): 3,
    (ClusterTopology.BROKER, _TABLE, False): 3,
}


class SimShape(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated. None: the seed chooses."""

    jobs: int = 8
    steps: int = 3
    faults: str = "default"
    rates: Mapping[FaultKind, float] | None = None  # instead of a preset's
    only: frozenset[int] | None = None
    topology: ClusterTopology | None = None
    layout: LayoutName | None = None
    spans: bool | None = None
    constraint: Constraint | None = None
    submit_seconds: float = 5.0
    quiet_at_seconds: float = 12.0
    rest_seconds_max: float = 3_600.0
    retention_seconds: float | None = None
    protocols: tuple[ProtocolSpec, ...] = ()
    behaviours: Mapping[str, Behaviour] = {}
    watched: bool = True
    record: bool = False
    hashed: bool = True  # whether the hash of all acts is needed
    steps_max: int = 2_000_000

    def kinds(self) -> list[FaultKind]:
        """What may go wrong."""
        rates = PRESETS[self.faults] if self.rates is None else self.rates
        return [kind for kind in FaultKind if rates.get(kind, 0.0) > 0]


class JobEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended, in virtual time; what never ended has no `seconds`."""

    job_id: str
    state: str
    attempts: int
    seconds: float | None
    protocol_id: str = ""
    step_index: int | None = None
    error_code: str | None = None


class SimOutcome(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    topology: ClusterTopology
    layout: LayoutName
    spans: bool
    constraint: Constraint
    violations: tuple[Violation, ...]
    acts: Acts | None
    faults: tuple[Fault, ...]
    fault_counts: dict[str, int]
    jobs: tuple[JobEnd, ...]
    commits: int
    steps: int
    virtual_seconds: float
    timeline: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.violations

    @property
    def trace_hash(self) -> str:
        assert self.acts is not None, "the run was made without hashes"
        return self.acts.hash


def simulate(
    seed: int,
    shape: SimShape | None = None,
    *,
    watch: SimListener | None = None,
    prepare: Callable[[SimContext], None] | None = None,
    store: SharedStoreLike | None = None,
) -> SimOutcome:
    """`prepare` may change the deployment before any process starts. `store`: an empty one that is used
    instead of the in-process store; whether it spans is then no choice."""
    shape = shape or SimShape()
    if store is not None:
        shape = msgspec.structs.replace(shape, spans=store.spans)
    # A recording must end where an invariant breaks; what the caller passes in is used once.
    at_once = shape.record or watch is not None or prepare is not None or store is not None
    with rare_collections(), unlisted_tasks():
        outcome = _Run(seed, shape, watch, prepare, store, at_once=at_once).outcome()
        if outcome.passed or at_once:
            return outcome
        again = _Run(seed, shape, watch, prepare, store, at_once=True).outcome()
        # If it goes well the second time, that is a fault of the lab, and what was found is reported.
        return outcome if again.passed else again


class _Run:
    def __init__(
        self,
        seed: int,
        shape: SimShape,
        watch: SimListener | None,
        prepare: Callable[[SimContext], None] | None,
        store: SharedStoreLike | None,
        *,
        at_once: bool,
    ) -> None:
        """`at_once`: each act is judged as it happens, and not with others a little later."""
        self.seed = seed
        self.shape = shape
        draw = Random(seed).getrandbits  # noqa: S311
        chance = draw(48)
        self.topology, self.layout, self.spans = _deployment(shape, chance)
        self.constraint = _constraint(shape, self.topology, draw(16))
        self.bounds = bounds_of(self.constraint)
        self.loop = SimLoop(seed, start_ms=START_MS)
        rates = {**(PRESETS[shape.faults] if shape.rates is None else shape.rates), **self.bounds.rates}
        self.audited = _is_audited(seed, rates, self.constraint)
        plan = FaultPlan(
            rates=rates,
            quiet_at_seconds=shape.quiet_at_seconds,
            only=shape.only,
        )
        self.watch: SimListener | None = watch
        self.judge: Invariants | None = None
        if watch is None and shape.watched:
            broker = self.topology is ClusterTopology.BROKER
            judges_turns = self.bounds.one_lane and self.spans and not broker
            limit_invariants = (
                None
                if self.constraint is Constraint.NONE
                else LimitInvariants(
                    self.bounds.limits,
                    self.bounds.window,
                    services=self.bounds.services,
                    broker=broker,
                    counted=isinstance(store, BoundsStore) and store.keeps_bounds,
                    turns=TurnInvariants() if judges_turns else None,
                )
            )
            self.judge = Invariants(
                self.layout, TABLES, self.spans, broker=broker, limit_invariants=limit_invariants
            )
            self.watch = self.judge if at_once else BatchedChecks(self.judge)
        trace = Trace(self.loop, record=shape.record, hashed=shape.hashed)
        self.context = SimContext(self.loop, Faults(seed, plan), trace, self.watch)
        if prepare is not None:
            prepare(self.context)
        self.loop.on_fault = self._on_fault
        self.store: SharedStoreLike = store or SharedStore(spans=self.spans)
        self.protocols = shape.protocols or default_protocols(shape.steps, self.bounds.policy)
        services = _services(self.protocols)
        behaviours = {name: shape.behaviours.get(name, self.bounds.behaviour) for name in services}
        self.cluster = Cluster(self._world(chance), behaviours, services)
        request_types = tuple(protocol.request_types[0] for protocol in self.protocols)
        one_lane = self.bounds.one_lane
        self.clients = Clients(
            self.cluster,
            request_types,
            jobs=JOBS_OF_ONE_LANE * shape.jobs if one_lane else shape.jobs,
            submit_seconds=shape.submit_seconds / 10 if one_lane else shape.submit_seconds,
            tenants=TENANTS_OF_ONE_LANE if one_lane else TENANTS,
        )
        self.chance = chance >> 12

    def _world(self, chance: int) -> SimWorld:
        shape = self.shape
        deployment_settings = DeploymentSettings(
            layout=self.layout,
            sla_ms=self.bounds.sla_ms,
            look_every_ms=8_000,
            take_look_every_ms=15_000,
            recount_every_seconds=30.0,
            audit_every_seconds=AUDIT_EVERY_SECONDS if self.audited else None,
            retention_ms=None if shape.retention_seconds is None else round(shape.retention_seconds * 1000),
            limits=self.bounds.limits,
            window=self.bounds.window,
            limited=bool(self.bounds.services),
            lanes=LANES_USED,
            shared_lanes=bool(chance >> 10 & 1),
        )
        limits = MemoryLimits(lock_ms=8_000)
        return SimWorld(
            context=self.context,
            store=self.store,
            bus=MemoryBus(now_ms=self.loop.now_ms, limits=limits),
            broker=Process(self.loop, "broker", 0, mortal=False),
            registry=_registry(self.protocols, self.bounds.services),
            deployment_settings=deployment_settings,
            tables=TABLES,
            numbers=count(1),
            tokens=PlainTokens(),
        )

    def outcome(self) -> SimOutcome:
        shape, context = self.shape, self.context
        with quiet_logs(context):
            try:
                seconds_max = shape.quiet_at_seconds + shape.rest_seconds_max
                self.loop.run(self._main(), steps_max=shape.steps_max, seconds_max=seconds_max + 10)
            except Exhausted as fault:
                context.broken(Violation("I4", "", f"no rest: {fault}{self._left()}"))
            finally:
                self.cluster.close()
        return SimOutcome(
            seed=self.seed,
            topology=self.topology,
            layout=self.layout,
            spans=self.spans,
            constraint=self.constraint,
            violations=tuple(context.violations),
            acts=context.trace.acts,
            faults=tuple(context.faults.happened),
            fault_counts={kind.value: number for kind, number in context.faults.counts().items()},
            jobs=self._ends(),
            commits=context.commits,
            steps=self.loop.steps,
            virtual_seconds=self.loop.time(),
            timeline=tuple(context.trace.lines),
        )

    async def _main(self) -> None:
        faults = self.context.faults
        self.cluster.settle(self.topology, self.chance)
        nemesis = self.loop.create_task(self.cluster.nemesis())
        vandal = RowLoss(self.cluster.world, self.cluster.outsider("vandal")) if self.audited else None
        taking = None if vandal is None else self.loop.create_task(vandal.run())
        forgeries = self.clients.outside.spawn(self.clients.forgeries())
        await self.clients.run()
        while self.loop.time() < faults.quiet_at and not self.store.is_empty((TABLES.inflight,)):
            await self.loop.pause(REST_LOOK_SECONDS)
        faults.quiet_at = min(faults.quiet_at, self.loop.time() + AFTERMATH_SECONDS)
        await forgeries
        await nemesis
        if vandal is not None and taking is not None:
            await taking
            if vandal.rows_taken:
                await self._audit()
        await self._rest()

    async def _audit(self) -> None:
        """Time for the audit: no caller waits for a row that an index lacks."""
        until = self.loop.time() + AUDITED_SECONDS
        while self.loop.time() < until:
            await self.loop.pause(AUDIT_EVERY_SECONDS)
            self._time_passed()

    def _time_passed(self) -> None:
        if self.watch is None:
            return
        try:
            self.watch.passed(now_ms=self.loop.now_ms())
        except Violation as violation:
            self.context.broken(violation)

    async def _rest(self) -> None:
        """Every open job stands in the due index: once that is empty, all have ended."""
        deadline = self.shape.quiet_at_seconds + self.shape.rest_seconds_max
        indexes = [TABLES.due, TABLES.dispatch, TABLES.inflight]
        if self.shape.retention_seconds is not None:
            indexes.append(TABLES.retention)
        while not self.store.is_empty(indexes):
            self._skip_idle_time()
            if self.loop.time() > deadline:
                text = f"no rest within {self.shape.rest_seconds_max:g} s{self._left()}"
                self.context.broken(Violation("I4", "", text))
                return
            await self.loop.pause(REST_LOOK_SECONDS)
        if self.watch is not None:
            for violation in self.watch.at_rest(self.store):
                self.context.broken(violation)

    def _skip_idle_time(self) -> None:
        """A commit that failed may leave a due row behind which a job that has ended is met by days later.
        Where nothing else is left, those days are over at once."""
        if not self.store.is_empty((TABLES.dispatch, TABLES.inflight)):
            return
        ledger = JobLedger(self.store, self.layout, TABLES)
        latest_ms = 0
        for partition in self.store.partitions(TABLES.due):
            for row in self.store.rows(TABLES.due, partition):
                at_ms, job_id = split_time_key(row.key)
                loaded = _now(ledger.load(job_id))
                if loaded is not None and not loaded.record.job.terminal:
                    return
                latest_ms = max(latest_ms, at_ms)
        if self.shape.retention_seconds is not None:
            keep_ms = round(self.shape.retention_seconds * 1000)
            for partition in self.store.partitions(TABLES.retention):
                # What ended by a clock that ran ahead is kept for longer by as much.
                for row in self.store.rows(TABLES.retention, partition)[-1:]:
                    latest_ms = max(latest_ms, split_time_key(row.key)[0] + keep_ms)
        ahead_ms = latest_ms + SKEW_MS_MAX - self.loop.now_ms()
        if ahead_ms > GRACE_MS:
            self.loop.skip(ahead_ms)

    def _left(self) -> str:
        """What still stands in the indexes."""
        left = [
            f"{table}/{partition}/{row.key}"
            for table in (TABLES.due, TABLES.dispatch, TABLES.inflight)
            for partition in self.store.partitions(table)
            for row in self.store.rows(table, partition)
        ]
        return f"; left: {', '.join(left[:5])}" if left else "; nothing is left, but a client waits"

    def _ends(self) -> tuple[JobEnd, ...]:
        ledger = JobLedger(self.store, self.layout, TABLES)
        ends: list[JobEnd] = []
        for job_id in self.clients.accepted_ids:
            job = self._followed(job_id)
            if job is None:
                loaded = _now(ledger.load(job_id))
                if loaded is None:
                    ends.append(JobEnd(job_id=job_id, state="FORGOTTEN", attempts=0, seconds=None))
                    continue
                job = loaded.record.job
            seconds = None
            if job.completed_at_ms is not None:
                seconds = (job.completed_at_ms - job.created_at_ms) / 1000
            ends.append(
                JobEnd(
                    job_id=job_id,
                    state=job.state.value,
                    attempts=job.attempts_total,
                    seconds=seconds,
                    protocol_id=job.protocol_id,
                    step_index=job.current_step_index,
                    error_code=job.error_code,
                )
            )
        return tuple(ends)

    def _followed(self, job_id: str) -> Job | None:
        """The job as the checker has followed it; at rest the rows were found to be the same."""
        truth = None if self.judge is None else self.judge.jobs.get(job_id)
        return None if truth is None or truth.record is None or truth.job_deletion else truth.record.job

    def _on_fault(self, message: str, fault: BaseException) -> None:
        if not self.context.violations:
            self.context.broken(Violation("UNEXPECTED", "", f"{message}: {fault!r}"))


def _deployment(shape: SimShape, chance: int) -> tuple[ClusterTopology, LayoutName, bool]:
    """The seed's choice among the deployments that the shape leaves open."""
    known = (shape.topology, shape.layout, shape.spans)
    left = [
        (deployment, lane_leases)
        for deployment, lane_leases in DEPLOYMENTS.items()
        if all(wanted is None or wanted is one for wanted, one in zip(known, deployment, strict=True))
    ]
    drawn = chance % sum(lane_leases for _, lane_leases in left)
    for deployment, lane_leases in left:
        drawn -= lane_leases
        if drawn < 0:
            return deployment
    raise AssertionError


def _is_audited(seed: int, rates: Mapping[FaultKind, float], constraint: Constraint) -> bool:
    """Whether index rows vanish, and an audit looks for them: in a quarter of the schedules in which nothing
    is scarce, since a slot that vanishes lets one job too many in."""
    return (
        rates.get(FaultKind.INDEX_LOST, 0.0) > 0
        and constraint is Constraint.NONE
        and hash((seed, 61)) >> 7 & 3 == 0
    )


def _constraint(shape: SimShape, topology: ClusterTopology, chance: int) -> Constraint:
    """Nothing is scarce in a run with protocols of its own, nor where nothing goes wrong."""
    if shape.constraint is not None:
        return shape.constraint
    return Constraint.NONE if shape.protocols or not shape.kinds() else chosen_constraint(topology, chance)


@lru_cache(maxsize=64)
def default_protocols(steps: int, policy: StepPolicy) -> tuple[ProtocolSpec, ...]:
    """The same value each time, so that what is made of it can be kept."""
    return (default_protocol(steps, policy),)


class _SimRegistry(Catalogue):
    def __init__(self, protocols: tuple[ProtocolSpec, ...], services: Mapping[str, ServiceLimits]) -> None:
        super().__init__([(protocol.protocol_id, _without_schemas(protocol)) for protocol in protocols])
        self._services = services

    def services(self) -> Mapping[str, ServiceLimits]:
        return self._services


_registries: dict[tuple[int, int], tuple[tuple[ProtocolSpec, ...], _SimRegistry]] = {}


def _registry(protocols: tuple[ProtocolSpec, ...], services: Mapping[str, ServiceLimits]) -> _SimRegistry:
    """By identity, with the protocols kept beside it: they hold schemas, so they have no hash."""
    place = id(protocols), id(services)
    kept = _registries.get(place)
    if kept is None:
        if len(_registries) >= REGISTRIES_MAX:
            _registries.clear()
        kept = _registries[place] = (protocols, _SimRegistry(protocols, services))
    return kept[1]


def _without_schemas(protocol: ProtocolSpec) -> ProtocolSpec:
    """The payloads of a simulation are made up, and no service reads them."""
    replace = msgspec.structs.replace
    return replace(protocol, steps=tuple(replace(step, payload_schema={}) for step in protocol.steps))


def default_protocol(steps: int, policy: StepPolicy = QUICK) -> ProtocolSpec:
    names = [f"svc{number + 1}" for number in range(steps)]
    # Every other step stops when its job is paused.
    specs = tuple(
        StepSpec(step_type=name.upper(), service=name, policy=policy, stop_on_pause=number % 2 == 1)
        for number, name in enumerate(names)
    )
    return ProtocolSpec(protocol_id="sim_v1", request_types=("SIM",), steps=specs)


def _services(protocols: tuple[ProtocolSpec, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(step.service for protocol in protocols for step in protocol.steps))


def _now(coro: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing: the shared store answers at once."""
    try:
        coro.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coro.close()
    raise RuntimeError("it waits for something")
