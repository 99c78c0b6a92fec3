"""Reads the settings of a process from its environment.

In: the environment. Out: `Settings`, or `BadSetting` with the variable that cannot be used. Each variable is
read as its declaration says; what concerns several of them is checked here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from lucius.api.access import AccessOptions
from lucius.api.tokens_oidc import OidcConfig
from lucius.contracts.internal import JobDefaults
from lucius.core.model import StepPolicy
from lucius.jobs.admission import InFlightLimits
from lucius.jobs.submit import ModeConfig
from lucius.ledger.azure_tables.names import AZURE_TABLE_LENGTH_MAX, table_to_azure
from lucius.ledger.limits import TABLE_LENGTH_MAX, check_table
from lucius.ledger.names import Tables
from lucius.registry.tenant_rules import TenantRule, parse_tenants_file
from lucius.sdk.chaos import ChaosRates
from lucius.settings import kinds
from lucius.settings.declaration import BadSetting, Kind, Setting
from lucius.settings.table import (
    Access,
    AppConfiguration,
    Attempts,
    Carriers,
    Chaos,
    Console,
    Http,
    Jobs,
    Keys,
    Nats,
    Postgres,
    References,
    ServiceBus,
    Storage,
    Temporal,
    Tls,
)
from lucius.settings.traces import spans_fault, spans_wanted
from lucius.settings.values import (
    AppConfigurationSettings,
    IdentitySettings,
    KeySettings,
    NatsSettings,
    PostgresSettings,
    ServiceBusSettings,
    Settings,
    TablesSettings,
    TemporalSettings,
    TlsSettings,
)

T = TypeVar("T")

Env = Mapping[str, str]
SECRET_FILE_BYTES_MAX: Final = 64 * 1024

NAMED_TABLES: Final[Mapping[str, Setting[str]]] = {
    "ledger": Storage.ledger_table,
    "jobs": Storage.jobs_table,
    "steps": Storage.steps_table,
    "idempotency": Storage.idempotency_table,
    "job_index": Storage.job_index_table,
    "inflight": Storage.inflight_table,
}
"""The tables that can be named, by their member of `Tables`."""


def read_settings(env: Env) -> Settings:
    """Raises `BadSetting`."""
    return Settings(
        policy=StepPolicy(
            max_attempts=Attempts.attempts_max.read(env),
            ack_timeout_ms=Attempts.ack_timeout.read(env),
            lease_ms=Attempts.lease.read(env),
            max_duration_ms=Attempts.attempt_duration_max.read(env),
            dispatch_timeout_ms=Attempts.dispatch_timeout.read(env),
            publish_attempts_max=Attempts.publish_attempts_max.read(env),
        ),
        limits=InFlightLimits(
            tenant_max=Jobs.inflight_per_tenant.read(env),
            total_max=Jobs.inflight.read(env),
            default_max=_default_max(env),
            burst_max=Jobs.inflight_burst.read(env),
        ),
        modes=_modes(env),
        tenant_weights=Jobs.tenant_weights.read(env) or {},
        tables=_tables(env),
        table_account=_table_account(env),
        store_url=Storage.store.read(env),
        postgres=_postgres(env),
        bus=Carriers.bus.read(env),
        reply_tokens_required=Carriers.reply_tokens.read(env),
        sla_ms=Jobs.sla.read(env),
        look_every_ms=Jobs.look_interval.read(env),
        retention_ms=Jobs.retention.read(env),
        audit_rows_per_second=Jobs.audit_rows_per_second.read(env),
        public_url=References.public_url.read(env),
        workspace_root=References.workspace_root.read(env),
        reference_schemes=References.schemes.read(env),
        reference_hosts=References.hosts.read(env),
        reference_containers=References.containers.read(env),
        file_roots=References.file_roots.read(env) or (),
        callback_hosts=References.callback_hosts.read(env),
        callback_http_allowed=References.callback_http_allowed.read(env),
        callback_private_allowed=References.callback_private_allowed.read(env),
        streams_max=Http.streams_max.read(env),
        waits_max=Http.waits_max.read(env),
        connections_max=Http.connections_max.read(env),
        http_memory_bytes_max=Http.memory_bytes_max.read(env),
        access=AccessOptions(
            access_log=Http.access_log.read(env), body_seconds_max=Http.body_timeout.read(env) / 1000
        ),
        head_timeout_ms=Http.head_timeout.read(env),
        unread_timeout_ms=Http.unread_timeout.read(env),
        log_level=Http.log_level.read(env),
        log_plain=Http.log_format.read(env),
        nats=_nats(env),
        service_bus=_service_bus(env),
        temporal=_temporal(env),
        blob_account=References.blob_account.read(env),
        app_configuration=_app_configuration(env),
        identity=IdentitySettings(
            kind=AppConfiguration.identity.read(env), client_id=AppConfiguration.client_id.read(env)
        ),
        keys=_keys(env),
        tls=_tls(env),
        auth_required=Access.auth.read(env),
        oidc=_oidc(env),
        artifacts_given=_artifacts_given(env),
        trace_link=Console.trace_link.read(env),
        chaos=_chaos(env),
        spans_leave=_spans_leave(env),
    )


def _default_max(env: Env) -> int:
    own = Jobs.inflight_default.read(env)
    return Jobs.inflight.read(env) if own is None else own


def _modes(env: Env) -> ModeConfig:
    rules = _tenant_rules(env)
    modes = {tenant: rule.mode for tenant, rule in rules.items() if rule.mode is not None}
    denied = {tenant for tenant, rule in rules.items() if rule.burst_allowed is False}
    allowed = {tenant for tenant, rule in rules.items() if rule.burst_allowed is True}
    return ModeConfig(
        global_mode=Jobs.default_mode.read(env),
        tenant_modes={**(Jobs.tenant_modes.read(env) or {}), **modes},
        burst_denied=(Jobs.burst_denied.read(env) or frozenset()) - allowed | denied,
        tenant_limits={
            tenant: rule.inflight_max for tenant, rule in rules.items() if rule.inflight_max is not None
        },
        tenant_budgets={tenant: rule.budget for tenant, rule in rules.items() if rule.budget is not None},
    )


def _tenant_rules(env: Env) -> Mapping[str, TenantRule]:
    path, name = Jobs.tenants_file.read(env), Jobs.tenants_file.name
    if path is None:
        return {}
    try:
        found = parse_tenants_file(path.read_bytes())
    except OSError:
        raise BadSetting(f"{name} names no file that can be read: {path}") from None
    if isinstance(found, tuple):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise BadSetting(f"{name}: {path}: {found[0]}{more}")
    return found


def _chaos(env: Env) -> ChaosRates:
    return ChaosRates(
        delay_ms_max=Chaos.delay.read(env) or 0,
        drop=Chaos.drop.read(env),
        duplicate=Chaos.duplicate.read(env),
        crash=Chaos.crash.read(env),
    )


def _postgres(env: Env) -> PostgresSettings:
    return PostgresSettings(
        password=Postgres.password.read(env),
        password_file=_file_beside(env, Postgres.password_file, Postgres.password),
        connections_max=Postgres.connections_max.read(env),
        statement_timeout_ms=Postgres.statement_timeout.read(env),
    )


def _keys(env: Env) -> KeySettings:
    return KeySettings(
        callback=Keys.callback.read(env),
        callback_file=_file_beside(env, Keys.callback_file, Keys.callback),
        webhook=Keys.webhook.read(env),
        webhook_file=_file_beside(env, Keys.webhook_file, Keys.webhook),
    )


def _tls(env: Env) -> TlsSettings:
    found = TlsSettings(
        certificate=Tls.certificate.read(env),
        key=Tls.key.read(env),
        client_ca=Tls.client_ca.read(env),
        internal_client_ca=Tls.internal_client_ca.read(env),
        ca=Tls.ca.read(env),
        client_certificate=Tls.client_certificate.read(env),
        client_key=Tls.client_key.read(env),
    )
    for beside in (Tls.key, Tls.client_ca, Tls.internal_client_ca):
        if found.certificate is None and beside.text(env):
            raise BadSetting(
                f"{beside.name} needs {Tls.certificate.name} beside it: without a certificate of its own a "
                "port speaks plain HTTP"
            )
    return found


def _file_beside(env: Env, file: Setting[str | None], variable: Setting[Any]) -> Path | None:
    """The file that holds what the variable else does."""
    named = file.read(env)
    if named is not None and variable.text(env):
        raise BadSetting(f"{variable.name} and {file.name} exclude each other")
    return None if named is None else Path(named)


def _internal_secrets(env: Env) -> tuple[str, ...]:
    variable, file = Temporal.internal_secret, Temporal.internal_secret_file
    path = _file_beside(env, file, variable)
    if path is None:
        return variable.read(env) or ()
    return parse_secret_file(path, file.name, kinds.SECRETS)


def parse_secret_file(path: Path, name: str, kind: Kind[T]) -> T:
    """What a file of secrets holds, one a line. `name`: of the variable that names the file. Raises
    `BadSetting`, whose text holds none of them."""
    try:
        with path.open("rb") as opened:
            text = opened.read(SECRET_FILE_BYTES_MAX + 1).decode()
    except (OSError, ValueError):
        raise BadSetting(f"{name} names no file that can be read: {path}") from None
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    value = kind.parse(",".join(lines)) if lines and len(text) <= SECRET_FILE_BYTES_MAX else None
    if value is None:
        raise BadSetting(f"{name}: {path} {kind.rule}")
    return value


def _nats(env: Env) -> NatsSettings:
    user, password = Nats.user.read(env), Nats.password.read(env)
    if (user is None) is not (password is None):
        raise BadSetting(f"{Nats.user.name} and {Nats.password.name} go together")
    return NatsSettings(
        servers=Nats.url.read(env) or (),
        user=user,
        password=password,
        credentials_file=Nats.credentials.read(env),
        prefix=Nats.prefix.read(env),
        replicas=Nats.replicas.read(env),
    )


def _service_bus(env: Env) -> ServiceBusSettings:
    connection, namespace = ServiceBus.connection.read(env), ServiceBus.namespace.read(env)
    if connection is not None and namespace is not None:
        raise BadSetting(f"{ServiceBus.connection.name} and {ServiceBus.namespace.name} exclude each other")
    ServiceBus.lanes.read(env)
    ServiceBus.reply_prefix.read(env)
    return ServiceBusSettings(
        connection_string=connection,
        namespace=namespace,
        reply_subscription=ServiceBus.reply_subscription.read(env),
        deliveries_max=ServiceBus.deliveries_max.read(env),
        largest_message_bytes=ServiceBus.message_bytes_max.read(env),
        partition_keys=ServiceBus.partition_keys.read(env),
        sessions=ServiceBus.sessions.read(env),
    )


def _temporal(env: Env) -> TemporalSettings:
    return TemporalSettings(
        enabled=Temporal.enabled.read(env),
        address=Temporal.address.read(env),
        namespace=Temporal.namespace.read(env),
        task_queue=Temporal.task_queue.read(env),
        tls=Temporal.tls.read(env),
        api_key=Temporal.api_key.read(env),
        execution_timeout_ms=Temporal.execution_timeout.read(env),
        signal_acks=Temporal.signal_acks.read(env),
        invoker_url=Temporal.invoker_url.read(env),
        secrets=_internal_secrets(env),
        job_defaults=_job_defaults(env),
        job_defaults_set=_job_defaults(env, only_set=True),
    )


def _job_defaults(env: Env, *, only_set: bool = False) -> JobDefaults:
    attempts, lease = Attempts.attempts_max, Attempts.lease
    return JobDefaults(
        max_attempts=None if only_set and not attempts.text(env) else attempts.read(env),
        step_result_timeout_seconds=None if only_set and not lease.text(env) else lease.read(env) / 1000,
    )


def _app_configuration(env: Env) -> AppConfigurationSettings:
    connection, endpoint = AppConfiguration.connection, AppConfiguration.endpoint
    found = AppConfigurationSettings(
        connection_string=connection.read(env),
        endpoint=endpoint.read(env),
        environment=AppConfiguration.environment.read(env),
        refresh_ms=AppConfiguration.refresh.read(env),
    )
    if found.connection_string is not None and found.endpoint is not None:
        raise BadSetting(f"{connection.name} and {endpoint.name} exclude each other")
    return found


def _oidc(env: Env) -> OidcConfig | None:
    issuer_name, audience_name = Access.oidc_issuer.name, Access.oidc_audience.name
    if not Access.oidc_issuer.text(env):
        return None
    if not Access.auth.read(env):
        raise BadSetting(f"{issuer_name} needs {Access.auth.name}=required: an open gate asks for no token")
    audiences = Access.oidc_audience.read(env)
    if audiences is None:
        raise BadSetting(f"{audience_name} must be set: a token for another audience proves nothing")
    issuer = Access.oidc_issuer.read(env)
    assert issuer is not None, "it is set"
    return OidcConfig(
        issuer=issuer,
        audiences=tuple(sorted(audiences)),
        jwks_url=Access.oidc_jwks_url.read(env),
        algorithms=Access.oidc_algorithms.read(env) or Access.oidc_algorithms.unset,
        tenants_claim=Access.oidc_tenants_claim.read(env),
        roles_claim=Access.oidc_roles_claim.read(env),
        services_claim=Access.oidc_services_claim.read(env),
        client_id=Access.oidc_client_id.read(env),
        scopes=Access.oidc_scopes.read(env),
    )


def _artifacts_given(env: Env) -> bool:
    chosen = Console.artifacts.read(env)
    return not Access.auth.read(env) if chosen == "auto" else chosen == "on"


def _spans_leave(env: Env) -> bool:
    if (fault := spans_fault(env)) is not None:
        raise BadSetting(fault)
    return spans_wanted(env)


# -- the names of tables -----------------------------------------------------------------------------------


def _table_account(env: Env) -> TablesSettings:
    prefix = Storage.table_prefix.read(env)
    account = Storage.table_account.read(env) or TablesSettings()
    return msgspec.structs.replace(account, prefix=prefix)


def _tables(env: Env) -> Tables:
    tables = Tables(**{member: variable.read(env) for member, variable in NAMED_TABLES.items()})
    if (fault := _tables_fault(tables, _table_account(env))) is not None:
        raise BadSetting(fault)
    return tables


def _tables_fault(tables: Tables, account: TablesSettings) -> str | None:
    """What is wrong with the names of tables, which may come from variables; None: nothing."""
    names = msgspec.structs.asdict(tables)
    for member, variable in NAMED_TABLES.items():
        if (wanted := _wanted_name(names[member], account)) is not None:
            return f"{variable.name} must be {wanted}, such as {variable.unset}"
    taken: dict[str, str] = {}
    for member, name in names.items():
        # Azure does not tell capitals from small letters, and neither do people.
        other = taken.setdefault(name.lower(), member)
        if other != member:
            return _same_name(other, member, name)
    return None


def _wanted_name(name: str, account: TablesSettings) -> str | None:
    try:
        check_table(name)
    except ValueError:
        return (
            f"up to {TABLE_LENGTH_MAX} letters, digits, - and _, beginning with a letter (not with sqlite_)"
        )
    try:
        if account.wanted:
            table_to_azure(account.prefix, name)
    except ValueError:
        return (
            f"a shorter name: Azure takes {AZURE_TABLE_LENGTH_MAX} characters, in which "
            f"{Storage.table_prefix.name} comes first and z, -, _ and capital letters count twice"
        )
    return None


def _same_name(one: str, other: str, name: str) -> str:
    """At least one of the two comes from a variable: the usual names are all different."""
    named = [NAMED_TABLES[member] for member in (one, other) if member in NAMED_TABLES]
    examples = " and ".join(f"{variable.name}={variable.unset}" for variable in named)
    if len(named) == 1:
        return f"{named[0].name} must not be {name}, a table that Lucius has already; usual is {examples}"
    both = " and ".join(variable.name for variable in named)
    return f"{both} must not both be {name}: give each its own, such as {examples}"
