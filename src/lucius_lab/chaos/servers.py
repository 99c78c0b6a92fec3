"""The servers of a fleet under chaos, members of it that are killed and started again like the others."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from lucius.bus.nats.server import NatsServer
from lucius_lab.chaos.hosts import ChaosHosts
from lucius_lab.emulators.postgres import HOST, USER, PostgresServer
from lucius_lab.processes import PartProcess

Env = dict[str, str]


class ChaosBroker:
    name = "nats"

    def __init__(self, folder: Path, port: int) -> None:
        self._server = NatsServer(folder / "nats", port=port)

    @property
    def env(self) -> Env:
        """The variables for its users."""
        return {"LUCIUS_NATS_URL": self._server.url}

    @property
    def pid(self) -> int:
        return self._server.pid or 0

    @property
    def running(self) -> bool:
        return self._server.running

    @property
    def stderr(self) -> str:
        return ""

    def begin(self) -> None:
        self._server.start()

    def await_up(self) -> None:
        asyncio.run(self._server.ready())

    def kill(self) -> None:
        self._server.kill()

    def stop(self) -> int:
        asyncio.run(self._server.stop())
        return 0


class ChaosDatabase:
    name = "postgres"

    def __init__(
        self,
        port: int,
        hosts: ChaosHosts | None = None,
        *,
        settings: Env | None = None,
        env: Env | None = None,
        copied: bool = False,
    ) -> None:
        """`settings`: PostgreSQL's own; `env`: variables of its processes. `copied`: a second server, without
        faults of its own, has whatever the first one confirms, and can take its place."""
        # The server runs as another user where this process is root's, and must reach its folder.
        self._folder = Path(tempfile.mkdtemp(prefix="lucius-chaos-pg-"))
        self._folder.chmod(0o755)
        if hosts is None:
            self._server = PostgresServer(self._folder / "first", port=port, settings=settings, env=env)
        else:
            self._server = PostgresServer(
                self._folder / "first",
                port=port,
                host=hosts.database,
                network=hosts.network,
                settings=settings,
                env=env,
            )
        self._url = self._server.url()
        self._copy: PostgresServer | None = None
        self._servers = [self._server]
        if copied:
            self._copy = PostgresServer(self._folder / "copy", settings=settings, primary=self._server)
            self._servers.append(self._copy)
            addresses = ",".join(f"{HOST}:{server.port}" for server in self._servers)
            self._url = f"postgresql://{USER}@{addresses}/postgres?target_session_attrs=read-write"

    @property
    def url(self) -> str:
        """For its users: wherever it is."""
        return self._url

    @property
    def server_url(self) -> str:
        """Of the server that is in charge now, whatever it takes."""
        return self._server.url()

    @property
    def env(self) -> Env:
        return {"LUCIUS_STORE": self.url}

    @property
    def pid(self) -> int:
        return self._server.pid or 0

    @property
    def running(self) -> bool:
        return self._server.running

    @property
    def stderr(self) -> str:
        return "".join(server.log for server in self._servers)

    def begin(self) -> None:
        """Returns once it takes connections."""
        self._server.start()
        if self._copy is not None and not self._copy.running:
            self._copy.start()
            # From here on each commit waits for the copy.
            self._server.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
            self._server.run("SELECT pg_reload_conf()")

    def await_up(self) -> None:
        pass

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        """In order, as for an update: its clients are sent away."""
        self._server.stop()
        self._server.start()

    def fail_over(self) -> None:
        """The first server dies, and the copy takes its place."""
        assert self._copy is not None
        self._server.kill()
        self._server, self._copy = self._copy, None
        self._server.promote()

    def stop(self) -> int:
        """What it holds is still read after the end of all others."""
        return 0

    def remove(self) -> None:
        for server in self._servers:
            server.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


Member = PartProcess | ChaosBroker | ChaosDatabase
