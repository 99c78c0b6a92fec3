"""What the parts of the temporal engine are made of: rooms for orchestrator and invoker.

This module and `temporal_worker` know Temporal, so they are imported only where that engine is asked for.
"""

from lucius.assembly.temporal_invoker import InvokerEngine
from lucius.assembly.temporal_orchestrator import OrchestratorEngine
from lucius.core.states import Engine
from lucius.engines.temporal.client import (
    StartOptions,
    TemporalLink,
    TemporalSignaller,
    TemporalStarter,
    TemporalTarget,
)
from lucius.engines.temporal.controls import invoker_client
from lucius.settings import TemporalSettings


def target_of(asked: TemporalSettings) -> TemporalTarget:
    return TemporalTarget(
        address=asked.address or TemporalTarget().address,
        namespace=asked.namespace,
        task_queue=asked.task_queue,
        tls=asked.tls,
        api_key=asked.api_key,
    )


def orchestrator_room(asked: TemporalSettings) -> OrchestratorEngine:
    link = TemporalLink(target_of(asked))
    timeout_ms = asked.execution_timeout_ms
    options = StartOptions(execution_timeout_seconds=None if timeout_ms is None else timeout_ms / 1000)
    return OrchestratorEngine(
        TemporalStarter(link, options),
        link.ping,
        invoker_client(asked.invoker_url, asked.secrets[0]),
        new_jobs=Engine.OUTBOX if asked.enabled is False else Engine.TEMPORAL,
    )


def invoker_room(asked: TemporalSettings) -> InvokerEngine:
    link = TemporalLink(target_of(asked))
    return InvokerEngine(TemporalSignaller(link), link.ping, signal_acks=asked.signal_acks)
