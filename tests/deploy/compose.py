"""deploy/compose/compose.yaml without Docker: each service as a process of this machine, with its command and
its variables as they stand there.

What Docker would do is done to the texts: a name and a port of its network become a port of loopback, a mount
becomes a folder. Services begin in the order that `depends_on` asks for.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.deploy.tools import DEPLOY

from lucius.bus.nats.server import find_binary, free_port
from lucius.engines.temporal.dev_server import find_program
from lucius_lab.emulators.postgres import PostgresServer, find_programs

FILE = DEPLOY / "compose" / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROFILES = ("outbox", "temporal")
LUCIUS_IMAGE = "lucius:local"
SUPERUSER = "of_the_server"
ACCESS = (
    f"local all {SUPERUSER} trust\nhost all {SUPERUSER} samehost trust\nhost all all samehost scram-sha-256\n"
)
SECONDS_MAX = 120.0
LOOK_SECONDS = 0.05
STOP_SECONDS_MAX = 60.0
_ADDRESS = re.compile(r"\b([a-z]+):(\d{4})\b")


def in_order(profile: str) -> list[str]:
    """The services of a profile, each after those that it waits for."""
    wanted = {name for name, one in SERVICES.items() if profile in one.get("profiles", [profile])}
    done: list[str] = []
    while left := [name for name in SERVICES if name in wanted and name not in done]:
        done += [name for name in left if set(SERVICES[name].get("depends_on", {})) & wanted <= set(done)]
    return done


class ComposedFleet:
    """`home`: for everything that is kept; `data` of a service that has none mounted is one of its own."""

    def __init__(self, home: Path, profile: str) -> None:
        self.profile = profile
        self._home = home
        self._ports: dict[tuple[str, int], int] = {}
        self._processes: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._database_folder = Path(tempfile.mkdtemp(prefix="lucius-compose-"))
        self._database = PostgresServer(self._database_folder, user=SUPERUSER)
        self._names = {
            alias: name
            for name in in_order(profile)
            for alias in (name, *SERVICES[name].get("networks", {}).get("default", {}).get("aliases", ()))
        }

    @property
    def url(self) -> str:
        """Where the one port that is published leads."""
        return f"http://127.0.0.1:{self._port('lucius', 8420)}"

    @property
    def documents(self) -> Path:
        return self._home / "documents"

    def start(self) -> None:
        for name in in_order(self.profile):
            image = SERVICES[name]["image"].partition(":")[0]
            if name == "postgres":
                self._start_database(SERVICES[name])
            elif SERVICES[name].get("restart") in (None, "no"):
                self._completed(name)
            else:
                for replica in range(SERVICES[name].get("deploy", {}).get("replicas", 1)):
                    self._begin(name, image, replica)

    def stop(self) -> dict[str, int]:
        """The exit codes of Lucius's parts, which are told in the order in which they do not miss each
        other."""
        codes = {}
        for name in reversed(list(self._processes)):
            for process in self._processes[name]:
                process.terminate()
                code = process.wait(STOP_SECONDS_MAX)
                if SERVICES[name]["image"] == LUCIUS_IMAGE:
                    codes[name] = code
        return codes

    def remove(self) -> None:
        for processes in self._processes.values():
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        self._database.kill()
        shutil.rmtree(self._database_folder, ignore_errors=True)

    def run(
        self, name: str, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`docker compose exec NAME lucius ARGUMENTS`."""
        return subprocess.run(
            [sys.executable, "-m", "lucius", *(self._text(name, one) for one in arguments)],
            env={**self.env(name), **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            cwd=self._folder(name),
        )

    def said(self, name: str) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self._home.glob(f"{name}-*.log")))

    def fallen(self) -> Iterator[str]:
        for name, processes in self._processes.items():
            if any(process.poll() is not None for process in processes):
                yield f"{name}: {self.said(name)[-2_000:]}"

    def env(self, name: str) -> dict[str, str]:
        own = {key: value for key, value in os.environ.items() if not key.startswith("LUCIUS_")}
        given: Mapping[str, str] = SERVICES[name].get("environment", {})
        return {**own, **{key: self._text(name, str(value)) for key, value in given.items()}}

    # -- what Docker would do ------------------------------------------------------------------------------

    def _begin(self, name: str, image: str, replica: int) -> None:
        command = [self._text(name, str(one)) for one in SERVICES[name].get("command", [])]
        programs = {
            "lucius": [sys.executable, "-m", "lucius"],
            "nats": [str(find_binary())],
            "temporalio/temporal": [find_program()],
        }
        with (self._home / f"{name}-{replica}.log").open("wb") as log:
            process = subprocess.Popen(
                [*programs[image], *command],
                env=self.env(name),
                cwd=self._folder(f"{name}-{replica}"),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.setdefault(name, []).append(process)

    def _completed(self, name: str) -> None:
        """A service that others wait for until it has done its work."""
        service = SERVICES[name]
        program = service.get("entrypoint", ["lucius"])
        command = [self._text(name, str(one)) for one in service["command"]]
        leads = {"python3": [sys.executable], "lucius": [sys.executable, "-m", "lucius"]}
        done = subprocess.run(
            [*leads[program[0]], *program[1:], *command],
            env=self.env(name),
            cwd=self._folder(name),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"

    def _start_database(self, service: Mapping[str, Any]) -> None:
        """As the entry point of its image does: a user, a database, what lies in its folder, passwords."""
        self._ports["postgres", 5432] = self._database.port
        self._database.start()
        given = {key: self._text("postgres", str(text)) for key, text in service["environment"].items()}
        user, password = given["POSTGRES_USER"], Path(given["POSTGRES_PASSWORD_FILE"]).read_text().strip()
        self._psql("postgres", f"CREATE ROLE {user} SUPERUSER LOGIN PASSWORD '{password}'")
        self._psql("postgres", f"CREATE DATABASE {given['POSTGRES_DB']} OWNER {user}")
        for config in service["configs"]:
            assert config["target"].startswith("/docker-entrypoint-initdb.d/")
            content = COMPOSE["configs"][config["source"]]["content"]
            self._psql(given["POSTGRES_DB"], self._mounted("postgres", content))
        access = self._database_folder / "data" / "pg_hba.conf"
        access.write_text(ACCESS)
        self._psql("postgres", "SELECT pg_reload_conf()")

    def _psql(self, database: str, text: str) -> None:
        options = ("--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", self._database.url(database))
        done = subprocess.run(
            [find_programs() / "psql", *options], input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def _text(self, name: str, text: str) -> str:
        """As it would be inside of the container."""
        for config in SERVICES[name].get("configs", []):
            if config["target"] in text:
                path = self._home / f"{name}.{config['source']}"
                path.write_text(self._text_of_config(name, COMPOSE["configs"][config["source"]]["content"]))
                text = text.replace(config["target"], str(path))
        text = self._mounted(name, text)
        text = _ADDRESS.sub(lambda found: self._address(found[0], found[1], int(found[2])), text)
        if text.isdigit() and len(text) == 4:
            return str(self._port(name, int(text)))
        return text.replace("0.0.0.0", "127.0.0.1")

    def _text_of_config(self, name: str, text: str) -> str:
        text = self._mounted(name, text)
        listens = re.compile(r"0\.0\.0\.0:(\d{4})")
        return listens.sub(lambda found: f"127.0.0.1:{self._port(name, int(found[1]))}", text)

    def _mounted(self, name: str, text: str) -> str:
        for mount in SERVICES[name].get("volumes", []):
            volume, target = mount.split(":")[:2]
            folder = self._home / volume
            folder.mkdir(exist_ok=True)
            text = re.sub(rf"{re.escape(target)}(?![\w-])", str(folder), text)
        return text

    def _address(self, whole: str, host: str, port: int) -> str:
        return f"127.0.0.1:{self._port(host, port)}" if host in self._names else whole

    def _port(self, host: str, port: int) -> int:
        place = self._names[host], port
        if place not in self._ports:
            self._ports[place] = free_port()
        return self._ports[place]

    def _folder(self, name: str) -> Path:
        """The working folder, which is the data folder's parent."""
        folder = self._home / "own" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def until(seen: Any, what: str, fleet: ComposedFleet) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not seen():
        assert not list(fleet.fallen())
        assert time.monotonic() < deadline, what
        time.sleep(LOOK_SECONDS)
