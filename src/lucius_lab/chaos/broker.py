"""A NATS server as a member of a fleet under chaos: killed and started again like the others."""

import asyncio
from pathlib import Path

from lucius.bus.nats.server import NatsServer
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


Member = PartProcess | ChaosBroker
