"""Real processes under load, killed at random and started again: nothing that was accepted may be lost.

    python -m lucius_lab.chaos.run --kills 1000 --seed 7

In: how many kills, a seed. Out: what happened, and whatever was wrong afterwards. The seed decides who is
killed and when; what that meets is the machine's own affair, so a run is alike another and not the same.
"""

import argparse
import asyncio
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import msgspec

from lucius_lab import forks
from lucius_lab.chaos.checks import LedgerPlace, check, left_over
from lucius_lab.chaos.hosts import ChaosHosts
from lucius_lab.chaos.load import Load
from lucius_lab.chaos.servers import ChaosBroker, ChaosDatabase, Member
from lucius_lab.processes import PartProcess, ProcessFault

CLIENTS = 16
SERVICES = ("chaos_a", "chaos_b")
ENDED_BETWEEN_KILLS = (1, 13)
KILL_AFTER_SECONDS_MAX = 15.0
KILL_DELAY_SECONDS_MAX = 0.3
QUIET_SECONDS_MAX = 60.0
# What a process says as it ends that could not open its ledger within its time.
NOT_REACHED = "Cannot open the ledger in "
LOOK_SECONDS = 0.05
# Below the ports that the system gives to outgoing connections, so that none of those takes one of ours while
# its process is away.
PORTS = range(20_000, 32_000)

DEV_ALONE = ("--services", "none", "--no-sample")
# What processes on several hosts are given alike.
FLEET_KEYS = {
    "LUCIUS_CALLBACK_KEYS": "chaos:only-for-chaos-and-of-no-use-elsewhere",
    "LUCIUS_WEBHOOK_SECRETS": "whsec_b25seS1mb3ItY2hhb3MtYW5kLW9mLW5vLXVzZQ==",
}
PROTOCOL = "protocol_id: chaos_v1\nrequest_types: [CHAOS]\nsteps:\n"
STEP = """  - step_type: {type}
    service: {service}
    payload_key: {key}
    max_attempts: 90
    ack_timeout: {ack_timeout}
    lease: {lease}
    backoff: {{publish: [0], ack: [0], result: [0]}}
"""


class ChaosPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`dev`: one `lucius dev` in the place of the parts. `bus`: `memory`, or `nats` with a server that is
    killed like the rest. `store`: `sqlite`, or `postgres` with a server that is killed too; then each process
    has a data folder of its own, as on a host of its own. The times are short, so that what a kill took away
    comes back soon. `limits`: a document of services; empty: they have none. `env`: of the processes that
    hold the ledger. `env_of`: of single processes, by name. `hosts`: each process that holds the ledger is on
    a host of its own, as are workers, and the network between them can be cut; with PostgreSQL, and for root
    alone. `database_settings` and `database_env`: of PostgreSQL. `database_copied`: it can fail over."""

    kills: int = 30
    seed: int = 1
    dev: bool = False
    bus: str = "memory"
    store: str = "sqlite"
    apis: int = 2
    reconcilers: int = 2
    workers: int = 2
    ack_timeout: str = "2s"
    lease: str = "5s"
    limits: str = ""
    env: dict[str, str] = {}
    env_of: dict[str, dict[str, str]] = {}
    hosts: bool = False
    database_settings: dict[str, str] = {}
    database_env: dict[str, str] = {}
    database_copied: bool = False


class ChaosReport(msgspec.Struct, frozen=True, kw_only=True):
    killed: dict[str, int]
    jobs: int
    repeats: int
    seconds: float
    findings: list[str]

    def text(self) -> str:
        killed = ", ".join(f"{name} {count}" for name, count in sorted(self.killed.items()))
        return (
            f"{sum(self.killed.values())} kills ({killed}), {self.jobs} jobs, {self.repeats} calls repeated, "
            f"{self.seconds:.0f} s"
        )


class ChaosFleet:
    """All processes of a run."""

    def __init__(self, folder: Path, plan: ChaosPlan, chance: Random) -> None:
        self._folder, self._plan = folder, plan
        self.hosts = ChaosHosts() if plan.hosts else None
        self.api_key: str | None = None
        self._ports = _free_ports(chance)
        protocols = folder / "protocols"
        protocols.mkdir(parents=True)
        (protocols / "chaos.yaml").write_text(_protocol(plan))
        if plan.limits:
            (protocols / "limits.yaml").write_text(plan.limits)
        self._servers: list[ChaosBroker | ChaosDatabase] = []
        if plan.bus == "nats":
            self._servers.append(ChaosBroker(folder, next(self._ports)))
        self.ledger: LedgerPlace = folder / "data"
        if plan.store == "postgres":
            database = ChaosDatabase(
                next(self._ports),
                self.hosts,
                settings=plan.database_settings,
                env=plan.database_env,
                copied=plan.database_copied,
            )
            self._servers.append(database)
            self.ledger = database.url
        over = ("--bus", plan.bus)
        shared = ("--protocols", str(protocols), *over)
        if plan.dev:
            self.addresses = [self._holder("dev", "dev", *shared, *DEV_ALONE, port="--port")]
            self._reconcilers: list[PartProcess] = []
        else:
            self.addresses = [
                self._holder(f"api-{n}", "api", *shared, port="--port") for n in range(plan.apis)
            ]
            self._reconcilers = [
                self._holder(f"reconciler-{n}", "reconciler", *shared) for n in range(plan.reconcilers)
            ]
        self._over = over
        self._services: list[PartProcess] = []

    @property
    def members(self) -> list[Member]:
        return [*self._servers, *self.addresses, *self._reconcilers, *self._services]

    @property
    def databases(self) -> list[ChaosDatabase]:
        return [server for server in self._servers if isinstance(server, ChaosDatabase)]

    def start(self) -> None:
        for server in self._servers:
            server.begin()
            server.await_up()
        if self.hosts is not None:
            self.api_key = self._made_key()
        first = [*self.addresses, *self._reconcilers]
        for member in first:
            member.begin()
        for member in first:
            member.await_up()
        for name in SERVICES:
            for number in range(self._plan.workers):
                address = self.addresses[number % len(self.addresses)]
                run = ("service", "run", "lucius_lab.chaos.work:work", "--as", name, *self._over)
                env = {"LUCIUS_URL": address.url}
                if self.api_key is not None:
                    env["LUCIUS_API_KEY"] = self.api_key
                member = self._part(f"{name}-{number}", *run, env=env, host=f"work-{number}")
                member.begin()
                self._services.append(member)

    def _holder(self, name: str, command: str, *arguments: str, port: str | None = None) -> PartProcess:
        """A process that holds the ledger."""
        folder, env = self._folder / "data", dict(self._plan.env)
        if self.databases:
            folder = folder / name
            env |= {**FLEET_KEYS, **self.databases[0].env}
        if self.hosts is not None:
            env["LUCIUS_AUTH"] = "required"
            if port is not None:
                arguments = ("--host", self.hosts.address(name), *arguments)
        return self._part(name, command, "--data", str(folder), *arguments, port_option=port, env=env)

    def _made_key(self) -> str:
        env = {**os.environ, **FLEET_KEYS, **self.databases[0].env}
        roles = [word for role in ("submit", "read", "control", "work") for word in ("--role", role)]
        which = ("--tenant", "*", "--service", "*", "--data", str(self._folder / "data" / "key"))
        made = forks.run("keys", "create", "chaos", *roles, *which, env=env)
        if made.returncode != 0:
            raise ProcessFault(f"no key could be made: {made.stderr}")
        return made.stdout.strip()

    def _part(
        self,
        name: str,
        *arguments: str,
        port_option: str | None = None,
        env: dict[str, str] | None = None,
        host: str | None = None,
    ) -> PartProcess:
        """`host`: where it runs, where hosts are apart; one of its own unless given."""
        port = 0 if port_option is None else next(self._ports)
        for server in self._servers:
            if isinstance(server, ChaosBroker):
                env = {**(env or {}), **server.env}
        env = {**(env or {}), **self._plan.env_of.get(name, {})}
        within = () if self.hosts is None else self.hosts.within(host or name)
        return PartProcess(
            self._folder, name, *arguments, port_option=port_option, port=port, env=env, within=within
        )

    def kinds(self) -> list[Sequence[Member]]:
        """The members by what they are for: each kind is killed as often as another."""
        servers = ([server] for server in self._servers)
        kinds: list[Sequence[Member]] = [self.addresses, self._reconcilers, self._services, *servers]
        return [kind for kind in kinds if kind]

    def urls(self) -> list[str]:
        return [address.url for address in self.addresses]

    def fallen(self) -> list[str]:
        """Members that ended without having been killed."""
        return [
            f"{one.name} ended by itself: {one.stderr[-1_000:]}" for one in self.members if not one.running
        ]

    def begin_again(self) -> int:
        """What a supervisor does: a process that gave up at its start, because it did not reach the database,
        is started again. How many."""
        given_up = [one for one in self.members if not one.running and NOT_REACHED in one.stderr[-1_000:]]
        for member in given_up:
            member.begin()
        return len(given_up)

    def stop(self) -> list[str]:
        """Stops all of them, services first; what went wrong with it."""
        found = []
        for member in reversed(self.members):
            member.await_up()
            if (code := member.stop()) != 0:
                found.append(f"{member.name} ended with {code}")
            if "Traceback" in member.stderr:
                found.append(f"{member.name}: {member.stderr[-1_500:]}")
        return found

    def kill_all(self) -> None:
        for member in self.members:
            member.kill()

    def remove(self) -> None:
        """Ends all of them, and what they keep outside of the folder."""
        self.kill_all()
        for database in self.databases:
            database.remove()
        if self.hosts is not None:
            self.hosts.remove()


async def run(plan: ChaosPlan, folder: Path, *, verbose: bool = False) -> ChaosReport:
    """One run from nothing to quiet, in an empty folder."""
    chance, began = Random(plan.seed), time.monotonic()  # noqa: S311 - to be repeatable, not to be secret
    fleet = ChaosFleet(folder, plan, chance)
    effects, killed = folder / "effects.jsonl", Counter[str]()
    try:
        await asyncio.to_thread(fleet.start)
        load = Load(fleet.urls, effects, f"seed-{plan.seed}", Random(plan.seed + 1))  # noqa: S311
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(CLIENTS))
            await _kill(plan, fleet, load, chance, killed, verbose=verbose)
            load.enough()
        await asyncio.to_thread(await_quiet, fleet.ledger)
        findings = await asyncio.to_thread(fleet.stop)
        findings += await asyncio.to_thread(check, fleet.ledger, load.ended, effects, len(SERVICES))
    finally:
        fleet.remove()
    return ChaosReport(
        killed=dict(killed),
        jobs=len(load.ended),
        repeats=load.repeats,
        seconds=time.monotonic() - began,
        findings=findings,
    )


async def _kill(
    plan: ChaosPlan, fleet: ChaosFleet, load: Load, chance: Random, killed: Counter[str], *, verbose: bool
) -> None:
    for number in range(1, plan.kills + 1):
        # By what has happened, so that a slow machine gets something done between two kills; not by it alone,
        # so that processes are met while they start as well.
        await load.progress(chance.randrange(*ENDED_BETWEEN_KILLS), seconds_max=KILL_AFTER_SECONDS_MAX)
        await asyncio.sleep(chance.uniform(0, KILL_DELAY_SECONDS_MAX))
        if fallen := fleet.fallen():
            raise ProcessFault(fallen[0])
        victim = chance.choice(chance.choice(fleet.kinds()))
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.begin)
        killed[victim.name] += 1
        if verbose:
            sys.stderr.write(f"\rkill {number} of {plan.kills}, {len(load.ended)} jobs ended \x1b[K")
            sys.stderr.flush()


def await_quiet(ledger: LedgerPlace) -> None:
    """Returns once nothing is left to do, or after a while in any case: the checks say what is left."""
    deadline = time.monotonic() + QUIET_SECONDS_MAX
    while left_over(ledger) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def _protocol(plan: ChaosPlan) -> str:
    """More attempts than a job can lose."""
    steps = [
        STEP.format(
            type=name.upper(), service=name, key=name[-1], ack_timeout=plan.ack_timeout, lease=plan.lease
        )
        for name in SERVICES
    ]
    return PROTOCOL + "".join(steps)


def _free_ports(chance: Random) -> Iterator[int]:
    while True:
        port = chance.choice(PORTS)
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lucius_lab.chaos.run", description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dev", action="store_true", help="one `lucius dev` in the place of the parts")
    parser.add_argument("--bus", choices=("memory", "nats"), default="memory", help="what carries directives")
    parser.add_argument(
        "--store", choices=("sqlite", "postgres"), default="sqlite", help="where the ledger is"
    )
    asked = parser.parse_args(arguments)
    plan = ChaosPlan(kills=asked.kills, seed=asked.seed, dev=asked.dev, bus=asked.bus, store=asked.store)
    with tempfile.TemporaryDirectory(prefix="lucius-chaos-") as folder:
        report = asyncio.run(run(plan, Path(folder), verbose=sys.stderr.isatty()))
    sys.stdout.write(f"seed {plan.seed}: {report.text()}\n")
    for finding in report.findings:
        sys.stdout.write(f"  {finding}\n")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
