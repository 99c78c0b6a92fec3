"""The temporal engine as real processes, with a real Temporal and a real NATS: under one `lucius dev`, or
part by part, several of a kind. Each can be killed, and what the ledger, the workflows and the services say
of the same jobs is compared."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from lucius.bus.nats.server import NatsServer, free_port
from lucius.core.fold import fold
from lucius.core.model import JobRecord
from lucius.core.states import Fact, JobState, StepState
from lucius.engines.temporal.dev_server import dev_server
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.sqlite.store import SqliteStore
from lucius_lab.chaos.checks import LedgerPlace, check, left_over
from lucius_lab.chaos.run import FLEET_KEYS
from lucius_lab.processes import PartProcess

replace = msgspec.structs.replace

SECONDS_MAX = 120.0
LOOK_SECONDS = 0.05
WAIT_SECONDS = 20
SECRET = "a-secret-for-the-journeys"
STEPS = 3

# Three steps of one service, and one that somebody does by hand.
PROTOCOLS = {
    "triple.yaml": "protocol_id: triple_v1\nrequest_types: [TRIPLE]\nsteps:\n"
    + "".join(
        f"""  - step_type: {name}
    service: chaos
    payload_key: work
    max_attempts: 90
    ack_timeout: 6s
    lease: 20s
    backoff: {{publish: [300ms], ack: [0], result: [0]}}
"""
        for name in ("ONE", "TWO", "THREE")
    ),
    "hand.yaml": "protocol_id: hand_v1\nrequest_types: [HAND]\nsteps:\n"
    + "".join(
        f"  - {{step_type: {name}, service: hand, payload_key: hand, ack_timeout: 60s, lease: 120s}}\n"
        for name in ("FIRST", "SECOND")
    ),
}


def write_protocols(folder: Path) -> Path:
    protocols = folder / "protocols"
    protocols.mkdir(parents=True)
    for name, text in PROTOCOLS.items():
        (protocols / name).write_text(text)
    return protocols


def command(number: int, effects: Path, seconds: float) -> dict[str, Any]:
    return {
        "tenant_id": f"tenant-{number % 7}",
        "request_type": "TRIPLE",
        "input_ref": {"uri": f"s3://in/{number}"},
        "output_ref": {"uri": f"s3://out/{number}"},
        "payload": {"work": {"effects": str(effects), "seconds": seconds}},
        "schema_version": "1",
        "idempotency_key": f"command-{number}",
    }


def by_hand(number: int) -> dict[str, Any]:
    refs = {name: {"uri": f"s3://{name}/{number}"} for name in ("input_ref", "output_ref")}
    tenant = {"tenant_id": f"hand-{number}"}
    return {**tenant, "request_type": "HAND", **refs, "payload": {}, "schema_version": "1"}


async def leased(client: httpx2.AsyncClient) -> dict[str, Any]:
    """The next directive of the service that somebody does by hand."""
    wanted = {"service": "hand", "max": 1, "wait_seconds": 30}
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            answer = await client.post("/v1/directives:lease", json=wanted)
            found: list[dict[str, Any]] = answer.json()["directives"]
            if found:
                return found[0]


def reply(directive: dict[str, Any], kind: str) -> dict[str, Any]:
    names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
    more: dict[str, dict[str, Any]] = {"RESULT": {"status": "SUCCEEDED"}, "PROGRESS": {"progress": 50}}
    said = {name: directive[name] for name in names}
    return {**said, **more.get(kind, {}), "type": kind, "timestamp": "2026-01-02T03:04:05Z"}


async def call_back(client: httpx2.AsyncClient, directive: dict[str, Any], kind: str) -> httpx2.Response:
    return await client.post(
        directive["callback_urls"][kind.lower()],
        json=reply(directive, kind),
        headers={"Authorization": f"Bearer {directive['callback_token']}"},
    )


async def submit(client: httpx2.AsyncClient, commands: Sequence[dict[str, Any]]) -> list[str]:
    answers = await asyncio.gather(*(client.post("/v1/orchestrate", json=one) for one in commands))
    assert {answer.status_code for answer in answers} == {202}, [answer.text for answer in answers]
    return [str(answer.json()["jobId"]) for answer in answers]


async def ends(client: httpx2.AsyncClient, jobs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each job as it ends."""

    async def end(job_id: str) -> dict[str, Any]:
        while True:
            answer = await client.get(f"/v1/jobs/{job_id}", params={"wait": WAIT_SECONDS})
            job: dict[str, Any] = answer.json()
            if job["completed_at"] is not None:
                return job

    async with asyncio.timeout(SECONDS_MAX):
        return dict(zip(jobs, await asyncio.gather(*(end(job_id) for job_id in jobs)), strict=True))


async def steps_done(effects: Path, steps: int) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not effects.exists() or effects.read_bytes().count(b"\n") < steps:
            await asyncio.sleep(LOOK_SECONDS)


async def findings(data: LedgerPlace, states: dict[str, str], effects: Path) -> list[str]:
    """What is wrong once nothing is left to do."""
    try:
        async with asyncio.timeout(SECONDS_MAX):
            while left_over(data):
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        pass  # what is left over is among the findings
    return check(data, states, effects, STEPS)


async def workflow_states(address: str, jobs: Sequence[str]) -> set[WorkflowExecutionStatus | None]:
    """Of the workflows of these jobs, once all have closed."""
    client = await Client.connect(address)
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            try:
                seen = {(await client.get_workflow_handle(job_id).describe()).status for job_id in jobs}
            except RPCError:
                seen = {WorkflowExecutionStatus.RUNNING}  # the server is on its way up
            if WorkflowExecutionStatus.RUNNING not in seen:
                return seen
            await asyncio.sleep(LOOK_SECONDS)


# -- the processes below one -------------------------------------------------------------------------------


def descendants(pid: int) -> dict[int, str]:
    """The command lines of all processes that this one started, or that those did."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    found: dict[int, str] = {}
    for child in parents:
        at = child
        while at in parents and at != pid:
            at = parents[at]
        if at == pid and child != pid:
            found[child] = arguments_of(child)
    return found


def child_of(pid: int, *words: str) -> int:
    """The one process below this one whose program and arguments are these; not its guard."""
    fitting = [
        child
        for child, line in descendants(pid).items()
        if "guard.py" not in line and all(word in line.split("\0") or word in line for word in words)
    ]
    assert len(fitting) == 1, (words, fitting)
    return fitting[0]


def alive(pid: int) -> bool:
    return arguments_of(pid) != ""


async def gone(pids: Sequence[int]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while any(alive(pid) for pid in pids):
            await asyncio.sleep(LOOK_SECONDS)


def arguments_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


# -- part by part ------------------------------------------------------------------------------------------


class Fleet:
    """Orchestrators, invokers, workers and a service on one ledger, one Temporal and one NATS."""

    def __init__(self, folder: Path, *, store: str = "") -> None:
        """`store`: the URL of a ledger that they share, each with a data folder of its own, as on several
        hosts; empty: they share a folder, and the ledger is in it."""
        self.data, self.effects = folder / "data", folder / "effects.jsonl"
        self.address = ""
        self._folder = folder
        self._store = store
        self._stack = AsyncExitStack()
        self.orchestrators: list[PartProcess] = []
        self.service: PartProcess
        self.invokers: list[PartProcess] = []
        self.workers: list[PartProcess] = []

    @property
    def orchestrator(self) -> PartProcess:
        return self.orchestrators[0]

    async def start(
        self, *, invokers: int, workers: int, orchestrators: int = 1, more: Mapping[str, str] | None = None
    ) -> None:
        """`more`: variables for all of them."""
        nats = NatsServer(self._folder / "nats", port=free_port())
        nats.start()
        self._stack.callback(nats.kill)
        await nats.ready()
        target = await self._stack.enter_async_context(dev_server(self._folder / "temporal.db"))
        self.address = target.address
        self._stack.callback(self._kill)
        protocols = write_protocols(self._folder)
        env = {
            "LUCIUS_NATS_URL": nats.url,
            "LUCIUS_TEMPORAL_ADDRESS": target.address,
            "LUCIUS_INTERNAL_SECRET": SECRET,
            **({"LUCIUS_STORE": self._store, **FLEET_KEYS} if self._store else {}),
            **(more or {}),
        }

        def holder(kind: str, name: str, env: Mapping[str, str]) -> PartProcess:
            """A process that holds the ledger."""
            data = self.data / name if self._store else self.data
            where = ("--data", str(data), "--protocols", str(protocols))
            return PartProcess(self._folder, name, kind, *where, port_option="--port", env=env)

        self.invokers = [holder("invoker", f"invoker-{n}", env) for n in range(invokers)]
        await asyncio.to_thread(_start, self.invokers)
        near = [{**env, "LUCIUS_INVOKER_URL": invoker.url} for invoker in self.invokers]
        self.orchestrators = [
            holder("orchestrator", f"orchestrator-{n}", near[n % invokers]) for n in range(orchestrators)
        ]
        self.workers = [
            PartProcess(
                self._folder, f"worker-{n}", "worker", port_option="--health-port", env=near[n % invokers]
            )
            for n in range(workers)
        ]
        run = ("service", "run", "lucius_lab.chaos.work:work", "--bus", "nats", "--as", "chaos")
        self.service = PartProcess(self._folder, "service", *run, port_option="--health-port", env=env)
        await asyncio.to_thread(_start, [*self.orchestrators, *self.workers, self.service])

    @property
    def parts(self) -> list[PartProcess]:
        return [*self.orchestrators, self.service, *self.workers, *self.invokers]

    async def stop(self) -> None:
        """All parts, each of which ends well."""
        for part in self.parts:
            if part.running:
                assert await asyncio.to_thread(part.stop) == 0, part.stderr[-2_000:]
                assert "Traceback" not in part.stderr, part.stderr[-4_000:]
                assert SECRET not in part.stderr

    def _kill(self) -> None:
        services = [self.service] if hasattr(self, "service") else []
        for part in [*self.workers, *self.invokers, *services, *self.orchestrators]:
            part.kill()

    async def close(self) -> None:
        await self._stack.aclose()


def _start(parts: Sequence[PartProcess]) -> None:
    for part in parts:
        part.begin()
    for part in parts:
        part.await_up()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


# -- what the ledger says ----------------------------------------------------------------------------------


async def check_story(data: Path, job_id: str) -> list[tuple[str, int]]:
    """The job's rows are the fold of its events, and no attempt or lease was given out twice. Returns the
    attempts that were begun, in order."""
    store = await SqliteStore.open(data / "lucius.db")
    try:
        ledger = JobLedger(store, LayoutName.LEDGER)
        loaded = await ledger.load(job_id, fresh=True)
        assert loaded is not None
        events = await ledger.events(job_id, limit=1_000)
    finally:
        await store.close()
    told = loaded.record
    job = replace(told.job, state=JobState.QUEUED, attempts_total=0, seq=0, completed_at_ms=None)
    steps = tuple(
        replace(step, state=StepState.PENDING, attempt_no=0, lease_id=None, acked=False)
        for step in told.steps
    )
    record = JobRecord(job=job, steps=steps)
    for event in events:
        record = fold(record, event)
    assert (record.job.state, record.job.attempts_total) == (told.job.state, told.job.attempts_total)
    for folded, row in zip(record.steps, told.steps, strict=True):
        assert (folded.state, folded.attempt_no, folded.lease_id) == (row.state, row.attempt_no, row.lease_id)
    begun = [event for event in events if event.type is Fact.ATTEMPT_BEGUN]
    leases = [event.data["lease_id"] for event in begun]
    attempts = [(event.step_id or "", event.attempt_no or 0) for event in begun]
    assert len(set(leases)) == len(leases)
    assert len(set(attempts)) == len(attempts)
    return attempts
