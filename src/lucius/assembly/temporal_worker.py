"""What a worker of the temporal engine is made of: no other process loads what workflows run in."""

import asyncio
import ssl
from collections.abc import Mapping

from lucius import __version__
from lucius.assembly.temporal import invoker_check, target_of, workflows_check
from lucius.assembly.workflow_engine import Check
from lucius.engines.temporal.activities import InvokerCalls
from lucius.engines.temporal.client import TemporalLink
from lucius.engines.temporal.controls import invoker_client
from lucius.engines.temporal.worker import TemporalWorker, WorkerLimits
from lucius.settings import TemporalSettings


class WorkerProcess:
    """Runs workflows, which ask the invoker for everything. Needs neither ledger nor bus."""

    def __init__(self, asked: TemporalSettings, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: for calls of the invoker; None: as usual."""
        self._link = TemporalLink(target_of(asked))
        secret = asked.secrets[0]
        self._calls = InvokerCalls(asked.invoker_url, secret, tls=tls)
        self._invoker = invoker_client(asked.invoker_url, secret, tls)
        self.worker = TemporalWorker(self._link, self._calls, WorkerLimits(), build_id=__version__)
        self._running: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        self._running = asyncio.create_task(self.worker.run(), name="lucius worker")
        return self._running

    async def stop(self) -> None:
        """Finishes what is in hand."""
        self.worker.stop()
        if self._running is not None:
            await asyncio.wait({self._running})
        await self._calls.close()
        await self._invoker.aclose()

    def checks(self) -> Mapping[str, Check]:
        return {
            "temporal": workflows_check(self._link.ping),
            "invoker": invoker_check(self._invoker),
            "worker": self._check,
        }

    async def _check(self) -> str | None:
        return None if self.worker.polling.is_set() else "takes no work"
