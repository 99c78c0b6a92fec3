"""How single rooms are made from the settings."""

from collections.abc import Callable
from pathlib import Path

import structlog

from lucius import __version__
from lucius.assembly.clock_and_ids import new_ids, new_lease_id, now_ms, wall_ms
from lucius.assembly.secrets import SIGNING_FOLDER, webhook_secrets
from lucius.bus.port import DirectiveSender
from lucius.core.states import Engine
from lucius.engines.outbox.retry_now import RetryNow, RetryWorkflowsNow
from lucius.engines.webhooks.address import CallbackPolicy, system_resolver
from lucius.engines.webhooks.delivery import WebhookDelivery
from lucius.engines.webhooks.sender import WebhookSender
from lucius.jobs.admission import Admission
from lucius.jobs.new_job import JobDefaults
from lucius.jobs.references import ReferencePolicy
from lucius.jobs.sizes import SizeLimits
from lucius.jobs.submit import JobSubmitter, ModePolicy
from lucius.jobs.writer import InputHandler
from lucius.ledger.commit_listeners import CommitListeners
from lucius.ledger.direct_dispatch import DirectDispatch
from lucius.ledger.indexes import Indexes
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.name_index import NameIndex
from lucius.registry.builtin import BuiltinRegistry
from lucius.registry.folder import FolderRegistry
from lucius.registry.port import Registry
from lucius.settings import Settings
from lucius.workspace import ObjectWorkspace, local_folder
from lucius.workspace.own_files import WORKSPACES

log = structlog.get_logger("lucius.assembly")


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


def make_submitter(
    settings: Settings,
    ledger: JobLedger,
    registry: Registry,
    admission: Admission,
    services: NameIndex,
    listeners: CommitListeners,
    direct_dispatch: DirectDispatch,
    data: Path,
    bus: DirectiveSender | None,
    engine: Engine,
    modes: ModePolicy | None = None,
) -> JobSubmitter:
    references = ReferencePolicy(
        **({} if settings.reference_schemes is None else {"schemes": settings.reference_schemes}),
        hosts=settings.reference_hosts,
        containers=settings.reference_containers,
        file_roots=(str(data.resolve()), *settings.file_roots),
        data=str(data.resolve()),
    )
    defaults = JobDefaults(
        engine=engine, sla_ms=settings.sla_ms, workspace_root=workspace_root(settings, data)
    )
    return JobSubmitter(
        ledger,
        registry,
        admission,
        services,
        references,
        _callback_policy(settings),
        listeners,
        defaults,
        modes or settings.modes,
        now_ms=now_ms,
        new_ids=new_ids,
        new_lease_id=new_lease_id,
        direct_dispatch=direct_dispatch,
        sizes=SizeLimits(
            directive_bytes_max=None if bus is None else lambda: bus.largest_message_bytes,
            job_bytes_max=ledger.job_bytes_max,
        ),
    )


def make_retry_now(
    ledger: JobLedger,
    indexes: Indexes,
    services: NameIndex,
    progress: InputHandler,
    controls: InputHandler | None,
) -> RetryNow:
    """`controls`: who takes those of jobs with workflows; None: there are none."""
    workflows = None if controls is None else RetryWorkflowsNow(ledger, indexes, controls, now_ms=now_ms)
    return RetryNow(indexes, services, progress, workflows)


def make_webhooks(
    settings: Settings, ledger: JobLedger, data: Path, lanes: Callable[[], frozenset[int]]
) -> WebhookDelivery:
    webhook_sender = WebhookSender(
        _callback_policy(settings),
        system_resolver,
        webhook_secrets(data / SIGNING_FOLDER, now_ms).current,
        user_agent=f"Lucius-Webhooks/{__version__}",
        wall_ms=wall_ms,
    )
    return WebhookDelivery(
        ledger, webhook_sender, now_ms=now_ms, look_every_ms=settings.look_every_ms, lanes=lanes
    )


def make_workspace(settings: Settings, data: Path) -> ObjectWorkspace:
    """What a reference service may read and write: the data folder, the folders that the settings name, and
    cloud stores. An account of Azure without a key is opened by who we are."""
    roots = [data.resolve(), *map(Path, settings.file_roots)]
    if (folder := local_folder(workspace_root(settings, data))) is not None:
        roots.append(folder)
    blob, tokens = settings.blob_account, None
    if (blob is not None and blob.opened_by_identity) or settings.identity.kind is not None:
        from lucius.assembly.azure_identity import storage_tokens

        tokens = storage_tokens(settings.identity)
    return ObjectWorkspace(roots, blob=blob, tokens=tokens, data=data)


def workspace_root(settings: Settings, data: Path) -> str:
    return settings.workspace_root or (data / WORKSPACES).resolve().as_uri()


def _callback_policy(settings: Settings) -> CallbackPolicy:
    return CallbackPolicy(
        schemes=frozenset({"https", "http"} if settings.callback_http_allowed else {"https"}),
        hosts=settings.callback_hosts,
        private_allowed=settings.callback_private_allowed,
    )
