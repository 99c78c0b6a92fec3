"""What the settings say, as frozen values. None shows a secret when it is printed."""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lucius.api.access import AccessOptions
from lucius.api.tokens_oidc import OidcConfig
from lucius.contracts.internal import JobDefaults
from lucius.core.model import StepPolicy
from lucius.jobs.admission import InFlightLimits
from lucius.jobs.submit import ModeConfig
from lucius.jobs.tokens import SigningKey
from lucius.ledger.names import Tables
from lucius.sdk.chaos import ChaosRates
from lucius.workspace import BlobAccount

TABLE_PREFIX: Final = "lucius"

_ENDPOINT: Final = re.compile(r"(?:^|;)\s*Endpoint\s*=\s*sb://([^/;\s]+)", re.IGNORECASE)


class NatsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where NATS is, how this process signs in, and what its streams are called. The servers' addresses may
    hold a password: show `places` instead."""

    servers: tuple[str, ...]
    user: str | None
    password: str | None
    credentials_file: str | None
    prefix: str
    replicas: int
    own: bool = False
    """Started by this process."""

    @property
    def places(self) -> str:
        return ", ".join(server.rpartition("@")[2].rpartition("//")[2] for server in self.servers)

    def __repr__(self) -> str:
        return f"NatsSettings({self.places})"


class ServiceBusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where Service Bus is, and what its topics and subscriptions are like. Either a connection string or a
    namespace, which the process's identity in Azure may use."""

    connection_string: str | None
    namespace: str | None
    reply_subscription: str
    deliveries_max: int
    largest_message_bytes: int
    partition_keys: bool
    sessions: bool

    @property
    def wanted(self) -> bool:
        return self.connection_string is not None or self.namespace is not None

    @property
    def place(self) -> str:
        return service_bus_endpoint(self.connection_string or "") or self.namespace or ""

    def __repr__(self) -> str:
        return f"ServiceBusSettings({self.place})"


class TablesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which tables of Azure the ledger is kept in: by a connection string, or by the account's address and an
    identity. Neither: a file of the data folder."""

    connection_string: str | None = None
    account_url: str | None = None
    prefix: str = TABLE_PREFIX
    """What the names of all tables begin with: several installations may share an account."""
    own: bool = False
    """Started by this process: no other process writes there."""

    @property
    def wanted(self) -> bool:
        return self.connection_string is not None or self.account_url is not None

    @property
    def place(self) -> str:
        """Without a key."""
        parts = connection_parts(self.connection_string or "")
        return parts.get("TableEndpoint") or self.account_url or parts.get("AccountName") or "the emulator"

    def __repr__(self) -> str:
        return f"TablesSettings({self.place if self.wanted else 'no'})"


class StoreKind(StrEnum):
    """The stores that a ledger can be kept in, by the words of `LUCIUS_STORE`."""

    SQLITE = "sqlite"
    AZURE_TABLES = "azure-tables"
    POSTGRESQL = "postgresql"
    MEMORY = "memory"


class StoreUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A store as `LUCIUS_STORE` or `--store` names it. `address` may hold a password: show `place`."""

    kind: StoreKind
    file: Path | None = None
    """Of SQLite alone."""
    address: str | None = None
    """Of a server: the URL as it was given."""

    @property
    def place(self) -> str:
        """Without user and password."""
        if self.address is None:
            return "" if self.file is None else str(self.file)
        parsed = urlsplit(self.address)
        return f"{parsed.netloc.rpartition('@')[2]}{parsed.path}"

    def __repr__(self) -> str:
        return f"StoreUrl({self.kind}, {self.place})"


class PostgresSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the database that `StoreUrl.address` names is reached."""

    password: str | None
    password_file: Path | None
    connections_max: int
    statement_timeout_ms: int

    def __repr__(self) -> str:
        return f"PostgresSettings({self.password_file}, {self.connections_max})"


class TemporalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """For the temporal engine: where Temporal is, where the invoker is, and the secret between them. The
    invoker takes each of `secrets`; its callers show the first."""

    enabled: bool | None
    """Which engine new jobs are pinned to; None: as usual for the command."""
    address: str | None
    """None: the usual one, or a server of its own in `lucius dev`."""
    namespace: str
    task_queue: str
    tls: bool
    api_key: str | None
    execution_timeout_ms: int | None
    signal_acks: bool
    invoker_url: str
    secrets: tuple[str, ...]
    job_defaults: JobDefaults
    """What jobs are created with where a protocol says nothing."""
    job_defaults_set: JobDefaults
    """Of that, what a variable says."""

    def __repr__(self) -> str:
        return f"TemporalSettings({self.address}, {self.namespace}, {self.task_queue})"


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Files in PEM: what the ports of this process show and ask for, and what its calls trust and show."""

    certificate: Path | None = None
    """None: the ports speak plain HTTP."""
    key: Path | None = None
    client_ca: Path | None = None
    internal_client_ca: Path | None = None
    """For the invoker's internal port; None: as `client_ca`."""
    ca: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None

    @property
    def served(self) -> bool:
        """Whether the ports of this process speak TLS."""
        return self.certificate is not None


class KeySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What signs callbacks and webhooks, where the data folder does not have it. The newest first."""

    callback: tuple[SigningKey, ...] | None
    callback_file: Path | None
    webhook: tuple[str, ...] | None
    webhook_file: Path | None

    def __repr__(self) -> str:
        return f"KeySettings({self.callback_file}, {self.webhook_file})"


class IdentitySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which identity of Azure is used where there is no connection string."""

    kind: str | None = None
    """One of `kinds.IDENTITIES`; None: the default one, and only where nothing else gives access."""
    client_id: str | None = None
    """Of a managed identity that is not the only one; None: the one there is."""


class AppConfigurationSettings(msgspec.Struct, frozen=True, kw_only=True):
    connection_string: str | None
    endpoint: str | None
    environment: str | None
    """The label of values for this environment alone; values without a label are for all."""
    refresh_ms: int

    @property
    def wanted(self) -> bool:
        return self.connection_string is not None or self.endpoint is not None

    @property
    def place(self) -> str:
        """Without a secret."""
        return self.endpoint or (self.connection_string or "").partition(";")[0].removeprefix("Endpoint=")

    def __repr__(self) -> str:
        return f"AppConfigurationSettings(wanted={self.wanted}, environment={self.environment})"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    policy: StepPolicy
    limits: InFlightLimits
    modes: ModeConfig
    tenant_weights: Mapping[str, int]
    tables: Tables
    table_account: TablesSettings
    """An account of Azure, for the ledger or for what services remember; not wanted: none is named."""
    store_url: StoreUrl | None
    """Where the ledger is; None: see `store`."""
    postgres: PostgresSettings
    """Of use with a ledger in PostgreSQL."""
    bus: str | None
    """What carries directives; None: as the addresses say that are set."""
    reply_tokens_required: bool
    """Whether a reply on the bus must carry its directive's callback token."""
    sla_ms: int
    look_every_ms: int
    retention_ms: int
    audit_rows_per_second: int | None
    """How fast the audit reads; 0: there is none; None: as suits the store."""
    public_url: str | None
    workspace_root: str | None
    reference_schemes: frozenset[str] | None
    reference_hosts: frozenset[str] | None
    reference_containers: frozenset[str] | None
    file_roots: tuple[str, ...]
    callback_hosts: frozenset[str] | None
    callback_http_allowed: bool
    callback_private_allowed: bool
    streams_max: int
    waits_max: int
    connections_max: int
    http_memory_bytes_max: int
    access: AccessOptions
    head_timeout_ms: int
    unread_timeout_ms: int
    """How long a client may read nothing of an answer."""
    log_level: str | None
    """None: as usual for the command."""
    log_plain: bool | None
    """Lines for people (True) or JSON (False); None: for people where there is a terminal."""
    nats: NatsSettings
    """Of use with `--bus nats`."""
    service_bus: ServiceBusSettings
    """Of use with `--bus servicebus`."""
    temporal: TemporalSettings
    """Of use with the temporal engine."""
    blob_account: BlobAccount | None
    """Of the workspace; None: as the environment of Azure's own tools says."""
    app_configuration: AppConfigurationSettings
    identity: IdentitySettings
    keys: KeySettings
    tls: TlsSettings
    auth_required: bool
    oidc: OidcConfig | None
    """Whose tokens are taken beside API keys; None: there are only API keys."""
    artifacts_given: bool
    """Whether the API gives out what jobs wrote."""
    trace_link: str | None
    chaos: ChaosRates
    spans_leave: bool
    """To a collector, by OpenTelemetry's variables."""

    @property
    def store(self) -> StoreKind:
        """What the ledger is kept in."""
        if self.store_url is not None:
            return self.store_url.kind
        return StoreKind.AZURE_TABLES if self.table_account.wanted else StoreKind.SQLITE


def connection_parts(text: str) -> dict[str, str]:
    """Of a connection string of a storage account or of App Configuration."""
    return dict(part.partition("=")[::2] for part in text.split(";"))


def service_bus_endpoint(text: str) -> str | None:
    """The host that a connection string of Service Bus names."""
    found = _ENDPOINT.search(text)
    return found[1] if found else None
