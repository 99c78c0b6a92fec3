"""What the handlers need from the packages behind the API."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from lucius.api.access import AccessObserver
from lucius.api.artifact_reader import ArtifactReader
from lucius.api.gate import Gate
from lucius.api.job_feed import JobFeed
from lucius.api.job_waits import JobWaits
from lucius.api.streams import Streams
from lucius.api.tokens_oidc import OidcConfig
from lucius.api.turns import Turns
from lucius.core.model import Json
from lucius.core.refusal import Refused
from lucius.core.states import Engine
from lucius.engines.activity_rows import ActivityRows
from lucius.engines.flow_control import FlowControl
from lucius.engines.outbox.retry_now import RetryNow
from lucius.engines.process_reports import ProcessReports, WorkerSightings
from lucius.engines.webhooks.delivery import WebhookDelivery
from lucius.jobs.admission import Admission
from lucius.jobs.planning import CommandPlanner
from lucius.jobs.reruns import Reruns
from lucius.jobs.scheduler import Scheduler
from lucius.jobs.submit import JobSubmitter, ModePolicy
from lucius.jobs.tokens import CallbackTokens
from lucius.jobs.writer import InputHandler
from lucius.ledger.api_keys import ApiKeyStore
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.lists import Lists
from lucius.ledger.name_index import NameIndex
from lucius.ledger.usage import UsageSums
from lucius.registry.port import Registry

PAGE_READS_AT_ONCE = 8
ARTIFACTS_AT_ONCE = 4


class LeaseSource(Protocol):
    """Where workers that speak nothing but HTTP get their directives."""

    over_bus: bool
    """Whether a broker has them, from which others take theirs unseen."""

    async def lease(
        self, service: str, *, directives_max: int, wait_ms: int, lanes: Iterable[int] | None = None
    ) -> list[dict[str, Json]] | Refused:
        """Up to `directives_max`; waits up to `wait_ms` for the first. Cancelled while nothing is on its way,
        it has taken nothing."""
        ...

    def last_asked_ms(self, service: str) -> int | None:
        """When a worker last asked for directives of this service, as far as this process knows."""
        ...


class CallbackDependencies(Protocol):
    """What callbacks need: less than the rest of the API, so that the invoker can serve them too."""

    @property
    def tokens(self) -> CallbackTokens: ...

    @property
    def inputs(self) -> InputHandler: ...

    @property
    def ledger(self) -> JobLedger: ...


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of all processes together."""

    reports: ProcessReports
    activity: ActivityRows
    tenants: NameIndex
    modes: ModePolicy


class Samples(Protocol):
    """Documents to try this installation with."""

    async def document_uri(self, kind: str) -> str | None:
        """`kind`: `pdf` or `text`. None: there is none."""
        ...

    def output_uri(self, name: str) -> str: ...


class InstallationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a page is told of the installation. `trace_link`: an address with `{trace_id}` in it."""

    engine: Engine
    auth_required: bool
    oidc: OidcConfig | None
    trace_link: str | None
    artifacts: bool

    @property
    def login_issuer(self) -> str | None:
        """Where people log in for the console, if they do."""
        return None if self.oidc is None or self.oidc.client_id is None else self.oidc.issuer


class ApiDependencies(msgspec.Struct, frozen=True, kw_only=True):
    gate: Gate
    keys: ApiKeyStore
    submitter: JobSubmitter
    admission: Admission
    planning: CommandPlanner
    reruns: Reruns
    inputs: InputHandler
    dispatcher: LeaseSource
    retry_now: RetryNow
    tokens: CallbackTokens
    registry: Registry
    ledger: JobLedger
    lists: Lists
    waiting: JobWaits
    streams: Streams
    feed: JobFeed
    webhooks: WebhookDelivery
    scheduler: Scheduler
    flow: FlowControl
    fleet: Fleet
    usage: UsageSums
    workers: WorkerSightings
    installation: InstallationFacts
    watching: AccessObserver
    checks: Mapping[str, Callable[[], Awaitable[str | None]]]
    """Dependencies by name: None if one is well, else what is wrong with it."""
    now_ms: Callable[[], int]
    page_reads: asyncio.Semaphore = msgspec.field(
        default_factory=lambda: asyncio.Semaphore(PAGE_READS_AT_ONCE)
    )
    """Lists that load jobs at the same time: what is loaded is held before it is known how large it is."""
    batch_turns: Turns = msgspec.field(default_factory=Turns)
    """Work on the commands of batches."""
    samples: Samples | None = None
    artifacts: ArtifactReader | None = None
    artifact_turns: asyncio.Semaphore = msgspec.field(
        default_factory=lambda: asyncio.Semaphore(ARTIFACTS_AT_ONCE)
    )
    """Artifacts that are read or drawn at the same time."""
    alone: bool = False
    """Whether no other process works on the ledger, and this one runs the outbox engine only."""
