"""PostgreSQL for development and tests: a server of its own on loopback, in a folder of its own.

In: a folder. Out: a running server and the address of its databases. It runs as an ordinary user, as
PostgreSQL demands: a process of root takes another for it. A deployment has a server that is looked after.
"""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lucius.bus.nats.server import free_port

HOST: Final = "127.0.0.1"
USER: Final = "lucius"
READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 20.0
LOOK_EVERY_SECONDS: Final = 0.03
# Whom root becomes, the first there is.
ORDINARY_USERS: Final = ("postgres", "nobody")
DEBIAN_FOLDER: Final = Path("/usr/lib/postgresql")


class PostgresFailed(Exception):
    """PostgreSQL cannot be found, or it ended, or did not become ready."""


def find_programs() -> Path:
    """The folder of initdb and postgres: on the PATH, or where Debian puts it, the latest."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    versions = [path for path in DEBIAN_FOLDER.glob("*/bin") if (path / "initdb").exists()]
    if not versions:
        raise PostgresFailed("PostgreSQL was not found: install Debian's package postgresql")
    return max(versions, key=lambda path: float(path.parent.name))


def _other_user() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    for name in ORDINARY_USERS:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise PostgresFailed("PostgreSQL does not run as root, and there is no other user")


class PostgresServer:
    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        host: str = HOST,
        user: str = USER,
        settings: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        primary: "PostgresServer | None" = None,
        network: str | None = None,
    ) -> None:
        """`folder`: of which the user that runs the server can reach every parent. `user`: the superuser of
        a cluster that is made. `env`: variables of the server beside those of this process. `primary`: this
        one begins as a copy of it, and follows it until it is promoted. `network`: every address of it is
        let in."""
        self.port = free_port() if port is None else port
        self._host = host
        self._user = user
        self._folder = folder
        self._data = folder / "data"
        self._settings = dict(settings or {})
        self._env = {**os.environ, **(env or {})}
        self._primary = primary
        self._network = network
        self._programs = find_programs()
        self._other = _other_user()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What it has said so far."""
        return (self._folder / "log").read_text(errors="replace")

    def url(self, database: str = "postgres", *, user: str | None = None) -> str:
        return f"postgresql://{user or self._user}@{self._host}:{self.port}/{database}"

    def start(self) -> None:
        """Makes the cluster where there is none, and waits until it takes connections."""
        if not self._data.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._other:
                os.chown(self._folder, self._other["user"], self._other["group"])
            self._make()
        settings = {
            "listen_addresses": self._host,
            "unix_socket_directories": str(self._folder),
            "log_min_messages": "fatal",
            **self._settings,
        }
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own arguments
                [self._programs / "postgres", "-D", self._data, "-p", str(self.port), *given],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._env,
                start_new_session=True,
                **self._other,
            )
        self._wait_until_ready()

    def run(self, text: str) -> None:
        """One statement, by the superuser."""
        self._run("psql", "--no-psqlrc", "--quiet", "--output", os.devnull, "--command", text, self.url())

    def promote(self) -> None:
        """A copy becomes a primary, and takes commits once this returns."""
        self._run("pg_ctl", "promote", "-D", self._data)

    def _make(self) -> None:
        if self._primary is None:
            self._run("initdb", "-D", self._data, "-U", self._user, "--auth=trust", "--no-sync", "-E", "UTF8",
                      "--locale=C")  # fmt: skip
            if self._network is not None:
                with (self._data / "pg_hba.conf").open("a") as access:
                    access.write(f"host all all {self._network} trust\n")
        else:
            source = self._primary.url("")
            self._run("pg_basebackup", "-D", self._data, "-d", source, "-R", "-X", "stream", "-c", "fast")

    def stop(self, *, how: signal.Signals = signal.SIGINT) -> None:
        """`SIGTERM` waits for its clients, `SIGINT` does not, `SIGQUIT` is a crash of all its processes."""
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """As a crash of the machine would, but for what the system still writes: every process at once."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._kill_sessions()
            self._process.wait()
        self._process = None

    def _kill_sessions(self) -> None:
        """The processes of the server are groups of their own; each has the server for its parent."""
        assert self._process is not None
        for child in _children(self._process.pid):
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < until:
            assert self._process is not None
            if self._process.poll() is not None:
                raise PostgresFailed(f"PostgreSQL ended: {self.log[-500:]}")
            pid_file = self._data / "postmaster.pid"
            try:
                lines = pid_file.read_text().splitlines()
            except (OSError, ValueError):
                lines = []
            up = len(lines) >= 8 and lines[0] == str(self._process.pid)
            if up and lines[7].strip() in ("ready", "standby"):
                return
            time.sleep(LOOK_EVERY_SECONDS)
        self.kill()
        raise PostgresFailed(f"PostgreSQL was not ready after {READY_SECONDS_MAX:.0f} s")

    def _run(self, program: str, *arguments: str | Path) -> None:
        command: Sequence[str | Path] = [self._programs / program, *arguments]
        ended = subprocess.run(  # noqa: S603 - our own arguments
            command, check=False, capture_output=True, cwd=self._folder, text=True, **self._other
        )
        if ended.returncode != 0:
            raise PostgresFailed(f"{program} failed: {ended.stderr[-500:]}")


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]
