"""What the parts of the temporal engine are made of: rooms for orchestrator and invoker, and the worker.

The one module here that knows Temporal, so it is imported only where that engine is asked for.
"""

import asyncio
from collections.abc import Mapping

from lucius import __version__
from lucius.assembly.engine_room import Check
from lucius.assembly.temporal_invoker import InvokerRoom
from lucius.assembly.temporal_orchestrator import OrchestratorRoom, invoker_check, workflows_check
from lucius.core.states import Engine
from lucius.engines.temporal.activities import InvokerCalls
from lucius.engines.temporal.client import (
    StartOptions,
    TemporalLink,
    TemporalSignaller,
    TemporalStarter,
    TemporalTarget,
)
from lucius.engines.temporal.worker import TemporalWorker, WorkerLimits
from lucius.invoker.remote import invoker_client
from lucius.settings_temporal import TemporalSettings


def target_of(asked: TemporalSettings) -> TemporalTarget:
    return TemporalTarget(
        address=asked.address or TemporalTarget().address,
        namespace=asked.namespace,
        task_queue=asked.task_queue,
        tls=asked.tls,
        api_key=asked.api_key,
    )


def orchestrator_room(asked: TemporalSettings) -> OrchestratorRoom:
    link = TemporalLink(target_of(asked))
    timeout_ms = asked.execution_timeout_ms
    options = StartOptions(execution_timeout_seconds=None if timeout_ms is None else timeout_ms / 1000)
    return OrchestratorRoom(
        TemporalStarter(link, options),
        link.ping,
        invoker_client(asked.invoker_url, asked.secrets[0]),
        new_jobs=Engine.OUTBOX if asked.enabled is False else Engine.TEMPORAL,
    )


def invoker_room(asked: TemporalSettings) -> InvokerRoom:
    link = TemporalLink(target_of(asked))
    return InvokerRoom(TemporalSignaller(link), link.ping, signal_acks=asked.signal_acks)


class WorkerHouse:
    """Runs workflows, which ask the invoker for everything. Needs neither ledger nor bus."""

    def __init__(self, asked: TemporalSettings) -> None:
        self._link = TemporalLink(target_of(asked))
        secret = asked.secrets[0]
        self._calls = InvokerCalls(asked.invoker_url, secret)
        self._invoker = invoker_client(asked.invoker_url, secret)
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
