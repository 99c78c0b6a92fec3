"""A fleet whose parts are of two versions: each part is replaced by itself, on its own port, while the others
run and clients send commands.

In: where the source of the version before is; a store and an engine. Out: what is wrong once all is at rest.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random

import msgspec
from tests.conformance.azurite_setup import azurite, new_prefix
from tests.conformance.azurite_setup import open_store as open_azurite
from tests.conformance.postgres_setup import new_database
from tests.conformance.postgres_setup import open_store as open_postgres

from lucius.bus.nats.server import NatsServer, free_port
from lucius.core.states import Fact, JobState
from lucius.engines.temporal.dev_server import dev_server
from lucius.ledger.index_audit import IndexAudit, IndexKind
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import TableStore
from lucius_lab.chaos.load import Load
from lucius_lab.chaos.work import DoneWork
from lucius_lab.processes import PartProcess

SERVICE = "chaos"
STOP_SECONDS_MAX = 180.0
LOOK_SECONDS = 0.05
SECRET = "a-secret-for-the-version-matrix"
ENDS = {
    Fact.JOB_SUCCEEDED: JobState.SUCCEEDED,
    Fact.JOB_FAILED: JobState.FAILED_FINAL,
    Fact.JOB_CANCELLED: JobState.CANCELLED,
}
PROTOCOL = "protocol_id: chaos_v1\nrequest_types: [CHAOS]\nsteps:\n" + "".join(
    f"""  - step_type: {name}
    service: {SERVICE}
    payload_key: {key}
    max_attempts: 90
    ack_timeout: 10s
    lease: 30s
    backoff: {{publish: [300ms], ack: [0], result: [0]}}
"""
    for name, key in (("ONE", "a"), ("TWO", "b"))
)
Env = dict[str, str]


class Version(msgspec.Struct, frozen=True):
    """`source`: its `src` folder; empty: this one."""

    name: str
    source: str = ""

    @property
    def env(self) -> Env:
        return {"PYTHONPATH": self.source} if self.source else {}


THIS = Version("this")


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """A part: what it is started with, and where it listens."""

    name: str
    words: tuple[str, ...]
    port_option: str
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class VersionFleet:
    def __init__(self, folder: Path, env: Env, roles: list[Role]) -> None:
        self._folder, self._env = folder, env
        self.roles = {role.name: role for role in roles}
        self._running: dict[str, PartProcess] = {}
        self._begun = 0
        self.started: list[str] = []

    async def run(self, name: str, version: Version) -> None:
        """Ends the part, if it runs, and starts it in this version."""
        if name in self._running:
            await self.end(name)
        role = self.roles[name]
        self._begun += 1
        part = PartProcess(
            self._folder,
            f"{self._begun:02d}-{name}-{version.name}",
            *role.words,
            port_option=role.port_option,
            port=role.port,
            env=self._env | version.env,
        )
        self._running[name] = part
        await asyncio.to_thread(part.start)
        self.started.append(f"{name} {version.name}")

    async def end(self, name: str) -> None:
        """However long what is under way may take on a machine that does much else."""
        part = self._running.pop(name)
        part.ask_to_stop()
        async with asyncio.timeout(STOP_SECONDS_MAX):
            while part.running:
                await asyncio.sleep(LOOK_SECONDS)
        assert await asyncio.to_thread(part.ended) == 0, (name, part.stderr[-2_000:])

    async def stop(self) -> None:
        for name in reversed(list(self._running)):
            await self.end(name)

    def kill(self) -> None:
        for part in self._running.values():
            part.kill()

    def errors(self) -> list[str]:
        """Faults that the parts did not expect. Temporal's library tells of a call that failed, as calls do
        while an invoker is replaced, with a traceback and as a warning."""
        said = [
            line
            for path in sorted(self._folder.glob("*.err"))
            for line in path.read_text(errors="replace").splitlines()
        ]
        return [
            line[-3_000:]
            for line in said
            if line.startswith("Traceback") or ("Traceback" in line and '"level": "warning"' not in line)
        ]


def outbox_roles(shared: tuple[str, ...], folder: Path) -> list[Role]:
    """In the order in which they are replaced."""
    apis = [
        Role(name=f"api-{n}", words=("api", *shared), port_option="--port", port=free_port()) for n in (1, 2)
    ]
    reconcilers = [
        Role(
            name=f"reconciler-{n}",
            words=("reconciler", *shared),
            port_option="--health-port",
            port=free_port(),
        )
        for n in (1, 2)
    ]
    return [*reconcilers, *apis, *service_roles(folder, "memory")]


def temporal_roles(shared: tuple[str, ...], folder: Path) -> list[Role]:
    def part(kind: str, number: int, option: str, *words: str) -> Role:
        return Role(name=f"{kind}-{number}", words=(kind, *words), port_option=option, port=free_port())

    return [
        *(part("invoker", n, "--port", *shared) for n in (1, 2)),
        *(part("worker", n, "--health-port") for n in (1, 2)),
        part("orchestrator", 1, "--port", *shared),
        *service_roles(folder, "nats"),
    ]


def service_roles(folder: Path, bus: str) -> list[Role]:
    run = ("service", "run", "lucius_lab.chaos.work:work", "--as", SERVICE, "--bus", bus)
    return [
        Role(
            name=f"service-{n}",
            words=(*run, "--data", str(folder / f"service-{n}")),
            port_option="--health-port",
            port=free_port(),
        )
        for n in (1, 2)
    ]


class Matrix(msgspec.Struct, kw_only=True):
    """One cell: a fleet, its load, and how to look at its ledger once all is over."""

    fleet: VersionFleet
    load: Load
    effects: Path
    env: Env
    store: str


@asynccontextmanager
async def matrix(folder: Path, store: str, engine: str, seed: int) -> AsyncIterator[Matrix]:
    async with AsyncExitStack() as stack:
        protocols = folder / "protocols"
        protocols.mkdir(parents=True)
        (protocols / "chaos.yaml").write_text(PROTOCOL)
        env = await store_env(store)
        shared = ("--data", str(folder / "data"), "--protocols", str(protocols))
        if engine == "temporal":
            nats = NatsServer(folder / "nats", port=free_port())
            stack.callback(nats.kill)
            nats.start()
            await nats.ready()
            target = await stack.enter_async_context(dev_server(folder / "temporal.db"))
            env |= {
                "LUCIUS_NATS_URL": nats.url,
                "LUCIUS_TEMPORAL_ADDRESS": target.address,
                "LUCIUS_INTERNAL_SECRET": SECRET,
            }
            roles = temporal_roles(shared, folder)
            env["LUCIUS_INVOKER_URL"] = roles[0].url
            addresses = [role.url for role in roles if role.name.startswith("orchestrator")]
        else:
            roles = outbox_roles(shared, folder)
            addresses = [role.url for role in roles if role.name.startswith("api")]
        env["LUCIUS_URL"] = addresses[0]
        fleet = VersionFleet(folder, env, roles)
        stack.callback(fleet.kill)
        effects = folder / "effects.jsonl"
        load = Load(lambda: addresses, effects, "matrix", Random(seed))
        yield Matrix(fleet=fleet, load=load, effects=effects, env=env, store=store)


async def store_env(store: str) -> Env:
    if store == "postgres":
        return {"LUCIUS_STORE": await new_database(empty=True)}
    if store == "azurite":
        return {
            "LUCIUS_TABLE_CONNECTION": azurite().connection_string,
            "LUCIUS_TABLE_PREFIX": new_prefix(),
        }
    return {}


async def open_ledger(folder: Path, cell: Matrix) -> JobLedger:
    store: TableStore
    if cell.store == "postgres":
        store = await open_postgres(cell.env["LUCIUS_STORE"])
    elif cell.store == "azurite":
        store = await open_azurite(prefix=cell.env["LUCIUS_TABLE_PREFIX"])
    else:
        store = await SqliteStore.open(folder / "data" / "lucius.db")
    return JobLedger(store, LayoutName.LEDGER)


async def await_rest(ledger: JobLedger, *, seconds_max: float) -> None:
    """Until no job holds a slot, and no row is due any more."""
    tables = ledger.tables.inflight, ledger.tables.due
    async with asyncio.timeout(seconds_max):
        while any([await ledger.store.scan(table, limit=1) for table in tables]):
            await asyncio.sleep(0.5)


async def findings(ledger: JobLedger, cell: Matrix, now_ms: int) -> list[str]:
    """What is wrong with the jobs that clients were told of, and with the indexes around them."""
    found: list[str] = []
    lines = cell.effects.read_bytes().splitlines()
    done = [msgspec.json.decode(line, type=DoneWork) for line in lines]
    worked = {(piece.job_id, piece.step_id) for piece in done}
    for job_id, state in cell.load.ended.items():
        loaded = await ledger.load(job_id)
        if loaded is None:
            found.append(f"{job_id} is lost")
            continue
        job, steps = loaded.record.job, loaded.record.steps
        events = await ledger.events(job_id, limit=1_000)
        ends = [ENDS[event.type] for event in events if event.type in ENDS]
        if ends != [job.state] or job.state.value != state:
            found.append(f"{job_id} is {job.state}, its client was told {state}, its events say {ends}")
        if state not in ("SUCCEEDED", "CANCELLED"):
            found.append(f"{job_id} failed: {job.error_code} {job.error_message}")
        if state == "SUCCEEDED":
            found += [
                f"{job_id} {step.step_id} was not done"
                for step in steps
                if (job_id, step.step_id) not in worked
            ]
    return [*found, *await index_findings(ledger, now_ms)]


async def index_findings(ledger: JobLedger, now_ms: int) -> list[str]:
    """Lists and search rows that the version before does not know, and what retention is to remove of them,
    are added by the audit of this one; beside them nothing may be wrong, and after it nothing at all."""
    found: list[str] = []
    for added_later in ({IndexKind.SEARCH, IndexKind.LIST, IndexKind.RETENTION}, set[IndexKind]()):
        audit = IndexAudit(ledger, now_ms=lambda: now_ms + 3_600_000)
        after = None
        while rows := await audit.jobs(after, 200):
            for row in rows:
                compared = await audit.compare(row)
                if compared is not None:
                    wrong = await audit.mend(compared)
                    found += [
                        f"{each.kind} row {each.fault}: {each.place}"
                        for each in wrong
                        if each.kind not in added_later
                    ]
            after = rows[-1].place
    return found


def version_before(store: str) -> Version | None:
    """Where `make version-matrix` has put it; none where only the harness is tried."""
    folder = os.environ.get("LUCIUS_VERSIONS")
    if not folder:
        return None
    name = "before-postgres" if store == "postgres" else "before"
    return Version("before", str(Path(folder) / name / "src"))
