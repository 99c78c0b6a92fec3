"""The servers of a fleet under chaos, members of it that are killed and started again like the others."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from lucius.bus.nats.server import NatsServer
from lucius_lab.chaos.hosts import ChaosHosts
from lucius_lab.emulators.postgres import PostgresServer
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
    ) -> None:
        """`settings`: PostgreSQL's own; `env`: variables of its processes."""
        # The server runs as another user where this process is root's, and must reach its folder.
        self._folder = Path(tempfile.mkdtemp(prefix="lucius-chaos-pg-"))
        if hosts is None:
            self._server = PostgresServer(self._folder, port=port, settings=settings, env=env)
        else:
            self._server = PostgresServer(
                self._folder,
                port=port,
                host=hosts.database,
                network=hosts.network,
                settings=settings,
                env=env,
            )

    @property
    def url(self) -> str:
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
        return self._server.log

    def begin(self) -> None:
        """Returns once it takes connections."""
        self._server.start()

    def await_up(self) -> None:
        pass

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        """In order, as for an update: its clients are sent away."""
        self._server.stop()
        self._server.start()

    def stop(self) -> int:
        """What it holds is still read after the end of all others."""
        return 0

    def remove(self) -> None:
        self._server.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


Member = PartProcess | ChaosBroker | ChaosDatabase
