"""Every setting is a `LUCIUS_*` variable. A value that cannot be read is refused by name, at start."""

from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from lucius import settings_azure as azure
from lucius.api.access import AccessOptions
from lucius.api.jwks import ALGORITHMS, is_fetchable
from lucius.api.tokens_oidc import OidcConfig
from lucius.core.durations import SPANS, parse_duration_ms
from lucius.core.model import StepPolicy
from lucius.core.routing import normalise, parse_mode
from lucius.core.states import Mode
from lucius.jobs.admission import InFlightLimits
from lucius.jobs.submit import ModeConfig
from lucius.ledger.names import Tables
from lucius.registry.documents import ATTEMPTS_MAX
from lucius.settings_addresses import host_and_port_of, web_address_of
from lucius.settings_lists import HOSTS_WANTED, SCHEMES_WANTED, hosts_of, schemes_of
from lucius.settings_service_bus import (
    REPLY_PREFIX,
    ServiceBusSettings,
    namespace_of,
    pinned_lanes,
    pinned_prefix,
    service_bus_string_of,
    subscription_of,
)
from lucius.settings_tables import PREFIX as TABLES_PREFIX
from lucius.settings_tables import VARIABLES as TABLE_VARIABLES
from lucius.settings_tables import TablesSettings, prefix_of, tables_fault, tables_of
from lucius.settings_temporal import DEFAULT_INVOKER_URL, SECRET_LENGTH_MIN, TemporalSettings, secrets_of
from lucius.settings_traces import spans_fault, spans_wanted
from lucius.workspace import BlobAccount, blob_account_of, root_of

T = TypeVar("T")
LOG_LEVELS = ("debug", "info", "warning", "error")
NATS_SCHEMES = ("nats", "tls")
HTTP_MEMORY_BYTES = 128 * 1024 * 1024
HTTP_MEMORY_LEAST_BYTES = 32 * 1024 * 1024  # a batch, which may have half of it
CONNECTIONS_LEAST = 32  # with fewer, a few workers that wait for work keep everybody else out
COUNT_DIGITS_MAX = 18
COUNT_MAX = 10**COUNT_DIGITS_MAX
AUDIT_ROWS_MAX = 100_000


class BadSetting(Exception):
    """A variable holds something that cannot be used. The text names it and never repeats a secret."""


class NatsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where NATS is, who we are to it, and what our streams are called. The servers' addresses may hold a
    password: show `places` instead."""

    servers: tuple[str, ...]
    user: str | None
    password: str | None
    credentials_file: str | None
    prefix: str
    replicas: int
    own: bool = False
    """Brought along by this process."""

    @property
    def places(self) -> str:
        return ", ".join(server.rpartition("@")[2].rpartition("//")[2] for server in self.servers)

    def __repr__(self) -> str:
        return f"NatsSettings({self.places})"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    policy: StepPolicy
    limits: InFlightLimits
    modes: ModeConfig
    tables: Tables
    table_account: TablesSettings
    """Where these tables are; not wanted: in a file of the data folder."""
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
    door: AccessOptions
    head_timeout_ms: int
    unread_timeout_ms: int
    """How long a client may take nothing of an answer."""
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
    app_configuration: azure.AppConfigurationSettings
    identity: azure.IdentitySettings
    """Who we are to Azure."""
    auth_required: bool
    oidc: OidcConfig | None
    """Whose tokens are taken beside API keys; None: nobody's."""
    spans_leave: bool
    """To a collector, by OpenTelemetry's variables."""


def read_settings(env: Mapping[str, str]) -> Settings:
    read = _Reader(env)
    return Settings(
        policy=StepPolicy(
            max_attempts=read.count("LUCIUS_MAX_ATTEMPTS", 3, least=1, most=ATTEMPTS_MAX),
            ack_timeout_ms=read.span("LUCIUS_ACK_TIMEOUT", 30_000),
            lease_ms=read.span("LUCIUS_STEP_RESULT_TIMEOUT_SECONDS", 900_000),
            max_duration_ms=read.span("LUCIUS_STEP_MAX_DURATION", 86_400_000),
            dispatch_timeout_ms=read.span("LUCIUS_DISPATCH_TIMEOUT", 86_400_000),
            publish_attempts_max=read.count("LUCIUS_PUBLISH_MAX_ATTEMPTS", 0),
        ),
        limits=InFlightLimits(
            tenant_max=read.count("LUCIUS_MAX_INFLIGHT_PER_TENANT", 1_000, least=1),
            total_max=read.count("LUCIUS_MAX_INFLIGHT", 50_000, least=1),
            burst_max=read.count("LUCIUS_MAX_INFLIGHT_BURST", 10_000),
        ),
        modes=ModeConfig(
            global_mode=read.mode("LUCIUS_DEFAULT_MODE", Mode.DEFAULT),
            tenant_modes=read.tenant_modes("LUCIUS_TENANT_MODES"),
            burst_denied=frozenset(normalise(name) for name in read.names("LUCIUS_BURST_DENIED") or ()),
        ),
        tables=read.tables(),
        table_account=read.table_account(),
        sla_ms=read.span("LUCIUS_JOB_SLA", 7 * 86_400_000),
        look_every_ms=read.span("LUCIUS_OUTBOX_RETRY_INTERVAL", 1_000),
        retention_ms=read.span("LUCIUS_RETENTION", 90 * 86_400_000),
        audit_rows_per_second=read.count_or_none("LUCIUS_AUDIT_ROWS_PER_SECOND", most=AUDIT_ROWS_MAX),
        public_url=read.web_address("LUCIUS_PUBLIC_URL"),
        workspace_root=read.workspace_root("LUCIUS_WORKSPACE_ROOT"),
        reference_schemes=read.schemes("LUCIUS_REF_SCHEMES"),
        reference_hosts=read.hosts("LUCIUS_REF_HOSTS"),
        reference_containers=read.names("LUCIUS_REF_CONTAINERS"),
        file_roots=tuple(sorted(read.names("LUCIUS_REF_FILE_ROOTS") or ())),
        callback_hosts=read.hosts("LUCIUS_CALLBACK_HOSTS"),
        callback_http_allowed=read.flag("LUCIUS_CALLBACK_ALLOW_HTTP"),
        callback_private_allowed=read.flag("LUCIUS_CALLBACK_ALLOW_PRIVATE"),
        streams_max=read.count("LUCIUS_STREAMS_MAX", 2_000),
        waits_max=read.count("LUCIUS_WAITS_MAX", 8_000, least=1),
        connections_max=read.count("LUCIUS_CONNECTIONS_MAX", 12_000, least=CONNECTIONS_LEAST),
        http_memory_bytes_max=read.count(
            "LUCIUS_HTTP_MEMORY_BYTES", HTTP_MEMORY_BYTES, least=HTTP_MEMORY_LEAST_BYTES
        ),
        door=AccessOptions(
            access_log=read.flag("LUCIUS_ACCESS_LOG"),
            body_seconds_max=read.span("LUCIUS_BODY_TIMEOUT", 30_000) / 1000,
        ),
        head_timeout_ms=read.span("LUCIUS_HEAD_TIMEOUT", 10_000),
        unread_timeout_ms=read.span("LUCIUS_UNREAD_TIMEOUT", 60_000),
        log_level=read.choice("LUCIUS_LOG_LEVEL", None, {level: level for level in LOG_LEVELS}),
        log_plain=read.choice("LUCIUS_LOG_FORMAT", None, {"json": False, "plain": True}),
        nats=read.nats(),
        service_bus=read.service_bus(),
        temporal=read.temporal(),
        blob_account=read.blob_account(),
        app_configuration=read.app_configuration(),
        identity=azure.IdentitySettings(
            kind=read.choice("LUCIUS_AZURE_IDENTITY", None, {kind: kind for kind in azure.IDENTITIES}),
            client_id=read.text("LUCIUS_AZURE_CLIENT_ID", "") or None,
        ),
        auth_required=read.auth("LUCIUS_AUTH"),
        oidc=read.oidc(),
        spans_leave=read.spans_leave(),
    )


class _Reader:
    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def text(self, name: str, default: str) -> str:
        return self._env.get(name, "").strip() or default

    def names(self, name: str) -> frozenset[str] | None:
        """A list with commas; None where it is not set."""
        text = self.text(name, "")
        return frozenset(part.strip() for part in text.split(",") if part.strip()) if text else None

    def hosts(self, name: str) -> frozenset[str] | None:
        return self._parsed(name, None, hosts_of, HOSTS_WANTED)

    def schemes(self, name: str) -> frozenset[str] | None:
        return self._parsed(name, None, schemes_of, SCHEMES_WANTED)

    def flag(self, name: str) -> bool:
        def parse(text: str) -> bool | None:
            return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())

        return self._parsed(name, False, parse, "true or false")

    def count(self, name: str, default: int, *, least: int = 0, most: int = COUNT_MAX) -> int:
        def parse(text: str) -> int | None:
            sound = text.isascii() and text.isdecimal() and len(text) <= COUNT_DIGITS_MAX
            return int(text) if sound and least <= int(text) <= most else None

        bounds = f"of at least {least}" if most == COUNT_MAX else f"from {least} to {most}"
        return self._parsed(name, default, parse, f"a whole number {bounds}")

    def count_or_none(self, name: str, *, most: int) -> int | None:
        """None where it is not set."""
        return self.count(name, 0, most=most) if self.text(name, "") else None

    def web_address(self, name: str) -> str | None:
        wanted = "an http or https address, without user, password or query"
        return self._parsed(name, None, web_address_of, wanted)

    def span(self, name: str, default_ms: int) -> int:
        def parse(text: str) -> int | None:
            span_ms = parse_duration_ms(text)
            return span_ms if span_ms is not None and span_ms > 0 else None

        return self._parsed(name, default_ms, parse, f"a time {SPANS}, such as 500ms, 30s, 15m or 2h")

    def choice(self, name: str, default: T, offered: Mapping[str, T]) -> T:
        return self._parsed(name, default, lambda text: offered.get(text.lower()), " or ".join(offered))

    def mode(self, name: str, default: Mode) -> Mode:
        return self._parsed(name, default, lambda text: parse_mode(text.upper()), "DEFAULT or BURST")

    def tenant_modes(self, name: str) -> dict[str, Mode]:
        modes: dict[str, Mode] = {}
        for pair in self.names(name) or ():
            tenant, _, text = pair.partition("=")
            mode = parse_mode(text.strip().upper())
            if not tenant.strip() or mode is None:
                raise BadSetting(f"{name} is a list of TENANT=DEFAULT or TENANT=BURST, with commas")
            modes[normalise(tenant)] = mode
        return modes

    def nats(self) -> NatsSettings:
        user = self.text("LUCIUS_NATS_USER", "") or None
        password = self.text("LUCIUS_NATS_PASSWORD", "") or None
        if (user is None) is not (password is None):
            raise BadSetting("LUCIUS_NATS_USER and LUCIUS_NATS_PASSWORD go together")
        return NatsSettings(
            servers=self.servers("LUCIUS_NATS_URL"),
            user=user,
            password=password,
            credentials_file=self.text("LUCIUS_NATS_CREDENTIALS", "") or None,
            prefix=self.text("LUCIUS_NATS_PREFIX", "lucius"),
            replicas=self.count("LUCIUS_NATS_REPLICAS", 1, least=1),
        )

    def tables(self) -> Tables:
        usual = Tables()
        named = {member: self.text(name, getattr(usual, member)) for member, name in TABLE_VARIABLES.items()}
        tables = Tables(**named)
        if (fault := tables_fault(tables, self.table_account())) is not None:
            raise BadSetting(fault)
        return tables

    def table_account(self) -> TablesSettings:
        prefix = self._parsed(
            "LUCIUS_TABLE_PREFIX", TABLES_PREFIX, prefix_of, "up to 16 small letters and digits, without z"
        )
        wanted = "a connection string (AccountName=…;AccountKey=…) or the https address of an account"
        account = self._parsed("LUCIUS_TABLE_CONNECTION", TablesSettings(), tables_of, wanted)
        return msgspec.structs.replace(account, prefix=prefix)

    def service_bus(self) -> ServiceBusSettings:
        named = "LUCIUS_SERVICEBUS_CONNECTION"
        connection = self._parsed(
            named, None, service_bus_string_of, "Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…"
        )
        namespace = self._parsed(
            "LUCIUS_SERVICEBUS_NAMESPACE", None, namespace_of, "a name such as NAME.servicebus.windows.net"
        )
        if connection is not None and namespace is not None:
            raise BadSetting(f"{named} and LUCIUS_SERVICEBUS_NAMESPACE exclude each other")
        self._parsed("LUCIUS_SERVICEBUS_LANES", None, pinned_lanes, "16: the lanes are pinned for ever")
        self._parsed("LUCIUS_SERVICEBUS_REPLY_PREFIX", None, pinned_prefix, f"{REPLY_PREFIX}: it is pinned")
        return ServiceBusSettings(
            connection_string=connection,
            namespace=namespace,
            reply_subscription=self._parsed(
                "LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION",
                "lucius-invoker",
                subscription_of,
                "the name of a subscription: up to 50 letters, digits, dots, hyphens or underscores",
            ),
            deliveries_max=self.count("LUCIUS_SERVICEBUS_MAX_DELIVERIES", 10, least=1),
            largest_message_bytes=self.count("LUCIUS_SERVICEBUS_MAX_MESSAGE_BYTES", 262_144, least=131_072),
            partition_keys=self.choice(
                "LUCIUS_SERVICEBUS_PARTITION_KEYS", True, {"true": True, "false": False}
            ),
            sessions=self.choice("LUCIUS_SERVICEBUS_SESSIONS", False, {"true": True, "false": False}),
        )

    def servers(self, name: str) -> tuple[str, ...]:
        """Addresses in the order given; `host:port` alone will do. Empty where it is not set."""
        parts = [part.strip() for part in self.text(name, "").split(",")]
        servers = tuple(part if "://" in part else f"nats://{part}" for part in parts if part)
        for server in servers:
            try:
                parsed = urlsplit(server)
                sound = parsed.scheme in NATS_SCHEMES and parsed.hostname and (parsed.port or 1) > 0
                sound = sound and not any(sign.isspace() for sign in server)
            except ValueError:
                sound = False
            if not sound:
                raise BadSetting(f"{name} is a list of addresses such as nats://host:4222, with commas")
        return servers

    def temporal(self) -> TemporalSettings:
        yes_or_no = {"true": True, "1": True, "false": False, "0": False}
        return TemporalSettings(
            enabled=self.choice("LUCIUS_TEMPORAL_ENABLED", None, yes_or_no),
            address=self._parsed("LUCIUS_TEMPORAL_ADDRESS", None, host_and_port_of, "HOST:PORT"),
            namespace=self.text("LUCIUS_TEMPORAL_NAMESPACE", "default"),
            task_queue=self.text("LUCIUS_TEMPORAL_TASK_QUEUE", "lucius"),
            tls=self.flag("LUCIUS_TEMPORAL_TLS"),
            api_key=self.text("LUCIUS_TEMPORAL_API_KEY", "") or None,
            execution_timeout_ms=self.span("LUCIUS_TEMPORAL_WORKFLOW_EXECUTION_TIMEOUT", 0) or None,
            signal_acks=self.choice("LUCIUS_TEMPORAL_SIGNAL_ACKS", True, yes_or_no),
            invoker_url=self._parsed(
                "LUCIUS_INVOKER_URL", DEFAULT_INVOKER_URL, web_address_of, "an http or https address"
            ),
            secrets=self._parsed(
                "LUCIUS_INTERNAL_SECRET",
                (),
                secrets_of,
                f"{SECRET_LENGTH_MIN} visible ASCII characters or more (several with commas)",
            ),
        )

    def workspace_root(self, name: str) -> str | None:
        return self._parsed(
            name, None, root_of, "an address such as az://CONTAINER/w, s3://BUCKET or file:///w"
        )

    def blob_account(self) -> BlobAccount | None:
        wanted = "a connection string (AccountName=…;AccountKey=…) or https://ACCOUNT.blob.core.windows.net"
        return self._parsed("LUCIUS_BLOB_CONNECTION", None, blob_account_of, wanted)

    def app_configuration(self) -> azure.AppConfigurationSettings:
        found = azure.AppConfigurationSettings(
            connection_string=self._parsed(azure.STRING, None, azure.string_of, azure.STRING_WANTED),
            endpoint=self._parsed(azure.ENDPOINT, None, azure.endpoint_of, azure.ENDPOINT_WANTED),
            environment=self._parsed("LUCIUS_ENVIRONMENT", None, azure.label_of, azure.LABEL_WANTED),
            refresh_ms=self.span("LUCIUS_APP_CONFIGURATION_REFRESH", 30_000),
        )
        if found.connection_string is not None and found.endpoint is not None:
            raise BadSetting(f"{azure.STRING} and {azure.ENDPOINT} exclude each other")
        return found

    def auth(self, name: str) -> bool:
        known = {"required": True, "open": False}
        return self._parsed(name, False, lambda text: known.get(text.lower()), "required or open")

    def oidc(self) -> OidcConfig | None:
        issuer = self.text("LUCIUS_OIDC_ISSUER", "")
        if not issuer:
            return None
        if not self.auth("LUCIUS_AUTH"):
            raise BadSetting("LUCIUS_OIDC_ISSUER needs LUCIUS_AUTH=required: an open gate asks for no token")
        audiences = self.names("LUCIUS_OIDC_AUDIENCE")
        if audiences is None:
            raise BadSetting("LUCIUS_OIDC_AUDIENCE must be set: a token for somebody else proves nothing")
        jwks_url = self.text("LUCIUS_OIDC_JWKS_URL", "") or None
        for name, url in (("LUCIUS_OIDC_ISSUER", issuer), ("LUCIUS_OIDC_JWKS_URL", jwks_url)):
            if url is not None and not is_fetchable(url):
                raise BadSetting(f"{name} must be an https address (http only on this machine)")
        algorithms = self.names("LUCIUS_OIDC_ALGORITHMS") or frozenset({"RS256", "ES256"})
        if not algorithms <= ALGORITHMS:
            offered = ", ".join(sorted(ALGORITHMS))
            raise BadSetting(f"LUCIUS_OIDC_ALGORITHMS is a list, with commas, of {offered}")
        return OidcConfig(
            issuer=issuer,
            audiences=tuple(sorted(audiences)),
            jwks_url=jwks_url,
            algorithms=algorithms,
            tenants_claim=self.text("LUCIUS_OIDC_TENANTS_CLAIM", "tenants"),
            roles_claim=self.text("LUCIUS_OIDC_ROLES_CLAIM", "roles"),
            services_claim=self.text("LUCIUS_OIDC_SERVICES_CLAIM", "services"),
        )

    def spans_leave(self) -> bool:
        if (fault := spans_fault(self._env)) is not None:
            raise BadSetting(fault)
        return spans_wanted(self._env)

    def _parsed(self, name: str, default: T, parse: Callable[[str], T | None], wanted: str) -> T:
        text = self.text(name, "")
        if not text:
            return default
        value = parse(text)
        if value is None:
            raise BadSetting(f"{name} must be {wanted}")
        return value
