"""How single parts are made from the settings."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import structlog

from lucius import __version__
from lucius.assembly.clock_and_ids import new_hex, now_ms, wall_ms
from lucius.assembly.fleet_keys import webhook_keys
from lucius.assembly.kernel import Kernel, KernelOptions
from lucius.bus.port import DirectiveSender
from lucius.core.states import Engine
from lucius.engines.outbox.retry_now import RetryNow, RetryWorkflowsNow
from lucius.engines.webhooks.address import CallbackPolicy, system_resolver
from lucius.engines.webhooks.delivery import WebhookDelivery
from lucius.engines.webhooks.sender import WebhookSender
from lucius.jobs.references import ReferencePolicy
from lucius.jobs.submit import ModePolicy
from lucius.jobs.writer import InputHandler
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.registry.builtin import BuiltinRegistry
from lucius.registry.folder import FolderRegistry
from lucius.registry.port import Registry
from lucius.settings import Settings
from lucius.telemetry import AttemptMetrics, Metrics, Span
from lucius.telemetry.metrics import TENANTS_MAX
from lucius.workspace import ObjectWorkspace, Workspace, local_folder
from lucius.workspace.objects import BYTES_MAX
from lucius.workspace.own_files import SAMPLES, WORKSPACES

log = structlog.get_logger("lucius.assembly")
samples_log = structlog.get_logger("lucius.samples")

SAMPLE_NAMES: Final = {"pdf": "sample.pdf", "text": "sample.txt"}


def make_registry(settings: Settings, protocols: Path | None, base: Registry | None = None) -> Registry:
    """`base`: what a folder is laid over; None: the built-in set."""
    base = base or BuiltinRegistry(defaults=settings.policy)
    if protocols is None:
        return base
    folder = FolderRegistry(protocols, base, settings.policy)
    folder.refresh()
    for problem in folder.problems():
        log.warning("protocol_refused", problem=problem)
    return folder


def kernel_options(
    settings: Settings,
    registry: Registry,
    data: Path,
    *,
    layout: LayoutName,
    engine: Engine,
    bus: DirectiveSender | None = None,
    modes: ModePolicy | None = None,
) -> KernelOptions:
    """`modes`: from a configuration service; None: those of the settings."""
    references = ReferencePolicy(
        **({} if settings.reference_schemes is None else {"schemes": settings.reference_schemes}),
        hosts=settings.reference_hosts,
        containers=settings.reference_containers,
        file_roots=(str(data.resolve()), *settings.file_roots),
        data=str(data.resolve()),
    )
    return KernelOptions(
        registry=registry,
        layout=layout,
        tables=settings.tables,
        engine=engine,
        sla_ms=settings.sla_ms,
        workspace_root=workspace_root(settings, data),
        references=references,
        callbacks=_callback_policy(settings),
        modes=modes or settings.modes,
        limits=settings.limits,
        tenant_weights=settings.tenant_weights,
        directive_bytes_max=None if bus is None else lambda: bus.largest_message_bytes,
    )


def follow_limits(metrics: Metrics, kernel: Kernel) -> None:
    """How many jobs may be in flight; of tenants those that something is decided for."""
    limits, modes = kernel.admission.limits, kernel.options.modes

    def of_tenants() -> list[tuple[tuple[str, ...], float]]:
        decided = sorted({*modes.tenant_limits, *modes.tenant_modes})[:TENANTS_MAX]
        return [
            ((name, modes.tenant_modes.get(name, modes.global_mode).value), kernel.admission.tenant_max(name))
            for name in decided
        ]

    metrics.follow_now(
        "inflight_limit",
        "How many jobs may be in flight",
        ("scope",),
        lambda: [
            (("tenant",), limits.tenant_max),
            (("total",), limits.total_max),
            (("default",), limits.default_max),
            (("burst",), limits.burst_max),
        ],
    )
    metrics.follow_by_tenant(
        "tenant_inflight_limit",
        "How many jobs of a tenant may be in flight that has a limit or a mode of its own",
        ("tenant", "mode"),
        of_tenants,
    )
    metrics.follow_by_tenant(
        "tenant_budget_used_ratio",
        "How much of a tenant's budget is used in the period that lasts, as of its last command",
        ("tenant", "name", "period"),
        lambda: [
            ((tenant, state.budget.name, state.budget.period.value), state.used / (state.budget.most or 1))
            for tenant, state in kernel.budgets.known()[:TENANTS_MAX]
        ],
    )


def make_retry_now(kernel: Kernel, controls: InputHandler | None) -> RetryNow:
    """`controls`: takes those of jobs with workflows; None: there are no such jobs."""
    workflows = None
    if controls is not None:
        workflows = RetryWorkflowsNow(kernel.ledger, kernel.indexes, controls, now_ms=now_ms)
    return RetryNow(kernel.indexes, kernel.services, kernel.writer, workflows)


def make_webhooks(
    settings: Settings, ledger: JobLedger, data: Path, lanes: Callable[[], frozenset[int]]
) -> WebhookDelivery:
    webhook_sender = WebhookSender(
        _callback_policy(settings),
        system_resolver,
        webhook_keys(settings, data),
        user_agent=f"Lucius-Webhooks/{__version__}",
        wall_ms=wall_ms,
    )
    return WebhookDelivery(
        ledger, webhook_sender, now_ms=now_ms, look_every_ms=settings.look_every_ms, lanes=lanes
    )


def make_workspace(settings: Settings, data: Path, *, bytes_max: int = BYTES_MAX) -> ObjectWorkspace:
    """What a reference service may read and write: the data folder, the folders that the settings name, and
    cloud stores. An account of Azure without a key is opened by who we are."""
    roots = [data.resolve(), *map(Path, settings.file_roots)]
    if (folder := local_folder(workspace_root(settings, data))) is not None:
        roots.append(folder)
    blob, tokens = settings.blob_account, None
    if (blob is not None and blob.opened_by_identity) or settings.identity.kind is not None:
        from lucius.assembly.azure.identity import storage_tokens

        tokens = storage_tokens(settings.identity)
    return ObjectWorkspace(roots, blob=blob, tokens=tokens, data=data, bytes_max=bytes_max)


def workspace_root(settings: Settings, data: Path) -> str:
    return settings.workspace_root or (data / WORKSPACES).resolve().as_uri()


def samples_folder(settings: Settings, data: Path) -> str:
    """Where documents to try the installation with lie."""
    root = settings.workspace_root
    return (data / SAMPLES).resolve().as_uri() if root is None else f"{root.rstrip('/')}/{SAMPLES}"


class SampleDocuments:
    """Small documents that a job of this installation can read, each written when it is first asked for."""

    def __init__(self, workspace: Workspace, folder_uri: str) -> None:
        self._workspace = workspace
        self._folder = folder_uri.rstrip("/")
        self._written: set[str] = set()

    async def document_uri(self, kind: str) -> str | None:
        """`kind`: `pdf` or `text`."""
        uri = f"{self._folder}/{SAMPLE_NAMES[kind]}"
        if kind in self._written:
            return uri
        # Few processes are asked for one, and it comes with all that the reference services need.
        from lucius.services.sample import sample_document, sample_text

        data = sample_document() if kind == "pdf" else sample_text().encode()
        try:
            await self._workspace.write(uri, data)
        except (OSError, ValueError) as fault:
            samples_log.warning("sample_not_written", error=type(fault).__name__)
            return None
        self._written.add(kind)
        return uri

    def output_uri(self, name: str) -> str:
        return f"{self._folder}/{name}"


def _callback_policy(settings: Settings) -> CallbackPolicy:
    return CallbackPolicy(
        schemes=frozenset({"https", "http"} if settings.callback_http_allowed else {"https"}),
        hosts=settings.callback_hosts,
        private_allowed=settings.callback_private_allowed,
    )


class SpanExport(Protocol):
    def take(self, span: Span) -> None: ...
    async def close(self) -> None: ...


def open_spans(settings: Settings, service: str) -> SpanExport | None:
    """`service`: the name that the collector sees, unless the environment has another."""
    if not settings.spans_leave:
        return None
    from lucius.telemetry.otlp import Otlp  # an extra, and slow to load

    return Otlp(service)


def watch_of(service: str, take: Callable[[Span], None]) -> AttemptMetrics:
    return AttemptMetrics(service, clock=time.monotonic, now_ms=now_ms, new_id=new_hex, take=take)
