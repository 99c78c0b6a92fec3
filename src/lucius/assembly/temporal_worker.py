"""What a worker of the temporal engine is made of: no other process loads what workflows run in."""

import asyncio
import ssl
from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric

from lucius import __version__
from lucius.assembly.clock_and_ids import new_hex, now_ms
from lucius.assembly.temporal import invoker_check, target_of, workflows_check
from lucius.assembly.wiring import SpanExport
from lucius.assembly.workflow_engine import Check
from lucius.engines.temporal.activities import InvokerCalls
from lucius.engines.temporal.client import TemporalLink
from lucius.engines.temporal.controls import invoker_client
from lucius.engines.temporal.sdk_metrics import SdkMetrics
from lucius.engines.temporal.worker import TemporalWorker, WorkerLimits
from lucius.settings import TemporalSettings
from lucius.telemetry import Exposition
from lucius.telemetry.series import counter, gauge


class WorkerProcess:
    """Runs workflows, which ask the invoker for everything. Needs neither ledger nor bus."""

    def __init__(
        self, asked: TemporalSettings, tls: ssl.SSLContext | None = None, spans: SpanExport | None = None
    ) -> None:
        """`tls`: for calls of the invoker; None: as usual. `spans`: where those of its calls go."""
        self._spans = spans
        self._sdk_metrics = SdkMetrics()
        self._link = TemporalLink(target_of(asked), metrics=self._sdk_metrics.buffer)
        secret = asked.secrets[0]
        self._calls = InvokerCalls(
            asked.invoker_url,
            secret,
            tls=tls,
            own_defaults=asked.job_defaults_set,
            take=None if spans is None else spans.take,
            now_ms=now_ms,
            new_id=new_hex,
        )
        self._invoker = invoker_client(asked.invoker_url, secret, tls)
        self.worker = TemporalWorker(self._link, self._calls, WorkerLimits(), build_id=__version__)
        self.metrics = Exposition(self._families)
        self._running: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        self._running = asyncio.create_task(self.worker.run(), name="lucius worker")
        self._draining = asyncio.create_task(self._sdk_metrics.run(), name="metrics of the Temporal library")
        return self._running

    async def stop(self) -> None:
        """Finishes what is in hand."""
        self.worker.stop()
        if self._running is not None:
            await asyncio.wait({self._running})
        if self._draining is not None:
            self._draining.cancel()
        await self._calls.close()
        await self._invoker.aclose()
        if self._spans is not None:
            await self._spans.close()

    def checks(self) -> Mapping[str, Check]:
        return {
            "temporal": workflows_check(self._link.ping),
            "invoker": invoker_check(self._invoker),
            "worker": self._check,
        }

    def _families(self) -> Iterable[Metric]:
        yield counter(
            "lucius_invoker_calls",
            "Calls of the invoker by its verdict, or how they failed",
            ("call", "outcome"),
            self._calls.outcomes,
        )
        yield self._calls.seconds.family()
        polls = float(self.worker.polling.is_set())
        yield gauge("lucius_worker_polls", "Whether it takes work", (), [((), polls)])
        yield from self._sdk_metrics.families()

    async def _check(self) -> str | None:
        return None if self.worker.polling.is_set() else "takes no work"
