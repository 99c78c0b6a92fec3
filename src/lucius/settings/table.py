"""Every `LUCIUS_*` variable, declared once.

Names, defaults, checks, the search for misspelt names and docs/reference/settings.md come from these
declarations. `reading` makes the values of a process from them.
"""

from itertools import chain
from typing import Any, Final

from lucius import tls
from lucius.core.routing import LANES
from lucius.ledger.names import Tables
from lucius.registry.documents import ATTEMPTS_MAX
from lucius.settings import kinds
from lucius.settings.declaration import Process, Section, Setting, optional, setting
from lucius.settings.values import TABLE_PREFIX

ENTRY: Final = (Process.API, Process.ORCHESTRATOR)
"""They serve the public API."""
COMPARED: Final = (Process.API, Process.ORCHESTRATOR, Process.INVOKER, Process.WORKER)
"""Some act on it, and the others compare it with what those did."""
MOVERS: Final = (Process.RECONCILER, Process.INVOKER)
"""They move jobs forward."""
LEDGER: Final = (Process.API, Process.RECONCILER, Process.ORCHESTRATOR, Process.INVOKER)
"""They open the ledger."""
TEMPORAL: Final = (Process.ORCHESTRATOR, Process.INVOKER, Process.WORKER)
"""They are clients of Temporal."""
RUNNING: Final = (*LEDGER, Process.WORKER, Process.SERVICE)
"""They run until they are stopped, and may listen on a port."""
STORE: Final = (*LEDGER, Process.ADMINISTRATION)
SERVICES: Final = (Process.SERVICE,)
CALLERS: Final = (Process.COMMANDS, Process.CLIENT)

CONNECTIONS_LEAST: Final = 32  # with fewer, a few workers that wait for work keep all other clients out
HTTP_MEMORY_BYTES: Final = 128 * 1024 * 1024
HTTP_MEMORY_LEAST_BYTES: Final = 32 * 1024 * 1024  # a batch, which may have half of it
AUDIT_ROWS_MAX: Final = 100_000
DEFAULT_INVOKER_URL: Final = "http://127.0.0.1:8421"

_USUAL: Final = Tables()


class Access(Section):
    title = "Who is let in"
    page = "security"

    auth = setting(
        "LUCIUS_AUTH",
        kinds.AUTH,
        "open",
        RUNNING,
        "`required`: every call needs an API key or a token; `open`: the process listens on loopback only.",
    )
    oidc_issuer = optional(
        "LUCIUS_OIDC_ISSUER",
        kinds.ISSUER_ADDRESS,
        ENTRY,
        "The issuer whose tokens are taken beside API keys, as in `iss`; it needs `LUCIUS_AUTH=required`.",
    )
    oidc_audience = optional(
        "LUCIUS_OIDC_AUDIENCE",
        kinds.NAMES,
        ENTRY,
        "A token must name one of these in `aud`; needed where an issuer is set.",
    )
    oidc_jwks_url = optional(
        "LUCIUS_OIDC_JWKS_URL",
        kinds.ISSUER_ADDRESS,
        ENTRY,
        "Where the issuer's keys are.",
        unset="as `/.well-known/openid-configuration` of the issuer says",
    )
    oidc_algorithms = setting(
        "LUCIUS_OIDC_ALGORITHMS",
        kinds.ALGORITHM_NAMES,
        "RS256,ES256",
        ENTRY,
        "The algorithms that tokens may be signed with; also `RS384`, `RS512`, `PS256`, `PS384`, `PS512`, "
        "`ES384`, `ES512`, `EdDSA`.",
    )
    oidc_tenants_claim = setting(
        "LUCIUS_OIDC_TENANTS_CLAIM", kinds.TEXT, "tenants", ENTRY, "The claim that names a caller's tenants."
    )
    oidc_roles_claim = setting(
        "LUCIUS_OIDC_ROLES_CLAIM", kinds.TEXT, "roles", ENTRY, "The claim that names a caller's roles."
    )
    oidc_services_claim = setting(
        "LUCIUS_OIDC_SERVICES_CLAIM",
        kinds.TEXT,
        "services",
        ENTRY,
        "The claim that names the services whose directives a caller may lease.",
    )
    oidc_client_id = optional(
        "LUCIUS_OIDC_CLIENT_ID",
        kinds.TEXT,
        ENTRY,
        "Who the console is to the issuer, as a public client without a secret: people then log in there "
        "(authorization code with PKCE).",
        unset="the console takes keys, and tokens that were had elsewhere",
    )
    oidc_scopes = setting(
        "LUCIUS_OIDC_SCOPES",
        kinds.TEXT,
        "openid",
        ENTRY,
        "What the console asks the issuer for, with blanks between: what brings a token for the audience.",
    )


class Tls(Section):
    title = "TLS"
    about = "PEM files, read at start. Without a certificate the ports speak plain HTTP."
    page = "tls"

    certificate = optional(
        tls.CERTIFICATE,
        kinds.FILE,
        RUNNING,
        "The certificate of this process, with those between it and the CA behind it: its ports then speak "
        "TLS alone.",
    )
    key = optional(
        tls.KEY,
        kinds.FILE,
        RUNNING,
        "The private key of the certificate, without a password.",
        unset="in the certificate's file",
    )
    client_ca = optional(
        tls.CLIENT_CA,
        kinds.FILE,
        LEDGER,
        "The CAs of clients: a client of the API, or of the invoker, without a certificate of theirs is "
        "refused; health ports ask for none.",
        unset="clients show no certificate",
    )
    internal_client_ca = optional(
        tls.INTERNAL_CLIENT_CA,
        kinds.FILE,
        (Process.INVOKER,),
        "The same for the internal port of the invoker alone.",
        unset="as `LUCIUS_TLS_CLIENT_CA`",
    )
    ca = optional(
        tls.CA,
        kinds.FILE,
        (*CALLERS, Process.SERVICE, Process.ORCHESTRATOR, Process.WORKER),
        "The CAs by which this client knows Lucius; the orchestrator and the worker are clients of the "
        "invoker.",
        unset="those that the system trusts",
    )
    client_certificate = optional(
        tls.CLIENT_CERTIFICATE,
        kinds.FILE,
        (*CALLERS, Process.SERVICE, Process.ORCHESTRATOR, Process.WORKER),
        "The certificate that this client shows.",
    )
    client_key = optional(
        tls.CLIENT_KEY,
        kinds.FILE,
        (*CALLERS, Process.SERVICE, Process.ORCHESTRATOR, Process.WORKER),
        "The private key of that certificate, without a password.",
        unset="in the certificate's file",
    )


class Keys(Section):
    title = "Keys of a fleet"
    about = "Without these a process makes keys in its data folder, which all on one ledger must then share."
    page = "security"

    callback = optional(
        "LUCIUS_CALLBACK_KEYS",
        kinds.SIGNING_KEYS,
        LEDGER,
        "What signs callback tokens: `ID:SECRET`, several with commas, of which the first signs and all are "
        "taken; a secret has 32 visible characters or more.",
        unset="made in the data folder",
        is_secret=True,
    )
    callback_file = optional(
        "LUCIUS_CALLBACK_KEYS_FILE",
        kinds.TEXT,
        LEDGER,
        "A file with the same, a key a line or as in `keys/callback-keys.json`; read again on a change.",
    )
    webhook = optional(
        "LUCIUS_WEBHOOK_SECRETS",
        kinds.WEBHOOK_SECRETS,
        MOVERS,
        "What signs webhooks: `whsec_` and base64, several with commas, all of which sign.",
        unset="made in the data folder",
        is_secret=True,
    )
    webhook_file = optional(
        "LUCIUS_WEBHOOK_SECRETS_FILE",
        kinds.TEXT,
        MOVERS,
        "A file with the same, a secret a line; read again on a change.",
    )


class Attempts(Section):
    title = "Steps and attempts"
    about = "A protocol may say otherwise for a step of its own."
    page = "lifecycle"

    attempts_max = setting(
        "LUCIUS_MAX_ATTEMPTS",
        kinds.count("attempts", least=1, most=ATTEMPTS_MAX),
        "3",
        COMPARED,
        "How often a step is tried; jobs keep what they were created with, and an invoker or a worker whose "
        "own value differs warns of it.",
        spec="001, 17 and 21.1",
    )
    ack_timeout = setting(
        "LUCIUS_ACK_TIMEOUT",
        kinds.DURATION,
        "30s",
        ENTRY,
        "How long to wait for an ACK after a directive was handed out.",
    )
    lease = setting(
        "LUCIUS_STEP_RESULT_TIMEOUT_SECONDS",
        kinds.DURATION,
        "900",
        COMPARED,
        "The lease: how long to wait after an ACK for the next PROGRESS or RESULT; where it stays as it is, "
        "the built-in EMBEDDING has 5 minutes and SIS 30; compared like `LUCIUS_MAX_ATTEMPTS`.",
        spec="001, 17 and 21.1",
    )
    attempt_duration_max = setting(
        "LUCIUS_STEP_MAX_DURATION",
        kinds.DURATION,
        "24h",
        ENTRY,
        "How long PROGRESS may keep one attempt alive; at least the step's lease. Where it stays as it is, "
        "the built-in steps have 2 or 6 hours.",
    )
    dispatch_timeout = setting(
        "LUCIUS_DISPATCH_TIMEOUT",
        kinds.DURATION,
        "24h",
        ENTRY,
        "When a directive that cannot be sent is given up, counted from the first failure; waiting for a "
        "worker is no failure.",
    )
    publish_attempts_max = setting(
        "LUCIUS_PUBLISH_MAX_ATTEMPTS",
        kinds.count("sendings"),
        "0",
        ENTRY,
        "After how many failed sendings a directive is given up; `0`: there is no limit.",
    )


class Jobs(Section):
    title = "Jobs"

    inflight_per_tenant = setting(
        "LUCIUS_MAX_INFLIGHT_PER_TENANT",
        kinds.count("jobs", least=1),
        "1000",
        ENTRY,
        "Open jobs of one tenant.",
        spec="001, 21.1",
    )
    inflight = setting(
        "LUCIUS_MAX_INFLIGHT", kinds.count("jobs", least=1), "50000", ENTRY, "Open jobs of all tenants."
    )
    inflight_default = optional(
        "LUCIUS_MAX_INFLIGHT_DEFAULT",
        kinds.count("jobs"),
        ENTRY,
        "Open DEFAULT (SAFE) jobs of all tenants.",
        unset="as `LUCIUS_MAX_INFLIGHT`",
        spec="002, 10",
    )
    inflight_burst = setting(
        "LUCIUS_MAX_INFLIGHT_BURST",
        kinds.count("jobs"),
        "10000",
        ENTRY,
        "Open BURST jobs of all tenants.",
        spec="002, 10",
    )
    default_mode = setting(
        "LUCIUS_DEFAULT_MODE", kinds.MODE, "DEFAULT", ENTRY, "The mode of a command that names none."
    )
    tenant_modes = optional(
        "LUCIUS_TENANT_MODES",
        kinds.TENANT_MODES,
        ENTRY,
        "The same for single tenants: `acme=BURST,beta=DEFAULT`.",
    )
    burst_denied = optional(
        "LUCIUS_BURST_DENIED", kinds.TENANTS, ENTRY, "Tenants whose commands may not use BURST."
    )
    tenants_file = optional(
        "LUCIUS_TENANTS_FILE",
        kinds.FILE,
        ENTRY,
        "A file with rules of single tenants, JSON or YAML: `tenants: {acme: {inflight_max: 200, mode: "
        "BURST, burst_allowed: true, budget: {day: {pages: 1000}, month: {usd: 50}}}}`, any of the four; it "
        "goes before the two lists above.",
        spec="002, 10",
    )
    tenant_weights = optional(
        "LUCIUS_TENANT_WEIGHTS",
        kinds.TENANT_WEIGHTS,
        (Process.API, Process.RECONCILER),
        "How much of a lane a tenant gets while others wait there, too: `acme=4,beta=2`; 1 for the others.",
    )
    sla = setting(
        "LUCIUS_JOB_SLA",
        kinds.DURATION,
        "7d",
        ENTRY,
        "A job that is open longer is escalated, and after twice that time it fails with `SLA_EXCEEDED`; "
        "pauses do not count, and a job that is `CANCELLING` is not escalated: it ends with the deadline of "
        "its step.",
    )
    retention = setting(
        "LUCIUS_RETENTION",
        kinds.DURATION,
        "90d",
        MOVERS,
        "How long a job is kept after its end.",
    )
    look_interval = setting(
        "LUCIUS_OUTBOX_RETRY_INTERVAL",
        kinds.DURATION,
        "1s",
        LEDGER,
        "How late a deadline or a retry may be noticed.",
        spec="000, Retry Loop",
    )
    audit_rows_per_second = optional(
        "LUCIUS_AUDIT_ROWS_PER_SECOND",
        kinds.count("rows a second", most=AUDIT_ROWS_MAX),
        MOVERS,
        "How fast the audit compares indexes with jobs; `0`: there is no audit.",
        unset="`2000`, on Azure `100`",
    )


class Storage(Section):
    title = "The ledger"
    about = "Do not change the names of tables on a ledger that holds jobs: they would not be found."
    page = "azure"

    backend = optional(
        "LUCIUS_STORAGE_BACKEND",
        kinds.choice({layout: layout for layout in ("ledger", "table", "memory")}),
        STORE,
        "Layout of the ledger where `--storage` is not given; `memory` is for `lucius dev` alone.",
        unset="`ledger`",
        spec="001, 21.1",
    )
    store = optional(
        "LUCIUS_STORE",
        kinds.STORE_URL,
        STORE,
        "Where the ledger is: `sqlite:///FOLDER/lucius.db`, `postgresql://USER:PASSWORD@HOST/DATABASE`, "
        "`azure-tables:` (at `LUCIUS_TABLE_CONNECTION`), or `memory:`, which is for `lucius dev` alone; "
        "`--store` goes before it.",
        unset="Azure Tables where `LUCIUS_TABLE_CONNECTION` is set, else `lucius.db` in the data folder",
        is_secret=True,
    )
    table_account = optional(
        "LUCIUS_TABLE_CONNECTION",
        kinds.TABLE_ACCOUNT,
        (*STORE, Process.SERVICE),
        "Keeps the ledger in tables of Azure, unless `LUCIUS_STORE` says otherwise: a connection string, or "
        "the https address of an account for an identity.",
        spec="001, 21.1",
        is_secret=True,
    )
    table_prefix = setting(
        "LUCIUS_TABLE_PREFIX",
        kinds.TABLE_PREFIX,
        TABLE_PREFIX,
        (*STORE, Process.SERVICE),
        "What the names of these tables begin with.",
    )
    ledger_table = setting(
        "LUCIUS_LEDGER_TABLE",
        kinds.TEXT,
        _USUAL.ledger,
        STORE,
        "The table of `--storage ledger`.",
        spec="001, 21.1",
    )
    jobs_table = setting(
        "LUCIUS_JOBS_TABLE",
        kinds.TEXT,
        _USUAL.jobs,
        STORE,
        "A table of `--storage table`.",
        spec="001, 21.1",
    )
    steps_table = setting(
        "LUCIUS_STEPS_TABLE",
        kinds.TEXT,
        _USUAL.steps,
        STORE,
        "A table of `--storage table`.",
        spec="001, 21.1",
    )
    idempotency_table = setting(
        "LUCIUS_IDEMPOTENCY_TABLE",
        kinds.TEXT,
        _USUAL.idempotency,
        STORE,
        "The table of idempotency keys.",
        spec="001, 21.1",
    )
    job_index_table = setting(
        "LUCIUS_JOB_INDEX_TABLE",
        kinds.TEXT,
        _USUAL.job_index,
        STORE,
        "The table of lists and indexes.",
        spec="001, 21.1",
    )
    inflight_table = setting(
        "LUCIUS_INFLIGHT_TABLE",
        kinds.TEXT,
        _USUAL.inflight,
        STORE,
        "The table of in-flight slots.",
        spec="001, 21.1",
    )


class Postgres(Section):
    title = "PostgreSQL"
    about = "For `LUCIUS_STORE=postgresql://…`."
    page = "postgresql"

    password = optional(
        "LUCIUS_POSTGRES_PASSWORD",
        kinds.TEXT,
        STORE,
        "The password, where the URL has none.",
        is_secret=True,
    )
    password_file = optional(
        "LUCIUS_POSTGRES_PASSWORD_FILE",
        kinds.TEXT,
        STORE,
        "A file that holds the password; read again for each process, at its start.",
    )
    connections_max = setting(
        "LUCIUS_POSTGRES_CONNECTIONS_MAX",
        kinds.count("connections", least=4, most=1_000),
        "9",
        STORE,
        "How many connections a process opens: two that write, one that is woken, the others read.",
    )
    statement_timeout = setting(
        "LUCIUS_POSTGRES_STATEMENT_TIMEOUT",
        kinds.DURATION,
        "10s",
        STORE,
        "How long the server works on a statement; a commit or a read that takes longer is tried again.",
    )


class Carriers(Section):
    title = "The bus"
    about = (
        "Where nothing says which, the addresses do that are set; with addresses of both, a start without "
        "`LUCIUS_BUS` or `--bus` is refused."
    )
    page = "move-to-the-bus"

    bus = optional(
        "LUCIUS_BUS",
        kinds.BUS,
        (*LEDGER, Process.SERVICE),
        "What carries directives; `--bus` goes before it.",
        unset="`servicebus` where a connection or namespace is set, `nats` where its address is, else "
        "`memory`",
    )
    reply_tokens = setting(
        "LUCIUS_BUS_REPLY_TOKENS",
        kinds.REPLY_TOKENS,
        "off",
        MOVERS,
        "`required`: a reply on the bus counts only with its directive's callback token beside it; others "
        "are dead-lettered.",
    )


class Nats(Section):
    title = "NATS"
    about = "For the bus `nats`."
    page = "nats"

    url = optional(
        "LUCIUS_NATS_URL",
        kinds.NATS_SERVERS,
        (*LEDGER, Process.SERVICE),
        "The servers: `nats://host:4222`, `tls://host:4222`, or `host:4222`.",
        is_secret=True,
    )
    user = optional(
        "LUCIUS_NATS_USER", kinds.TEXT, (*LEDGER, Process.SERVICE), "The user; it needs a password."
    )
    password = optional(
        "LUCIUS_NATS_PASSWORD",
        kinds.TEXT,
        (*LEDGER, Process.SERVICE),
        "The password; it needs a user.",
        is_secret=True,
    )
    credentials = optional(
        "LUCIUS_NATS_CREDENTIALS",
        kinds.TEXT,
        (*LEDGER, Process.SERVICE),
        "The path of a credentials file (`.creds`).",
    )
    prefix = setting(
        "LUCIUS_NATS_PREFIX",
        kinds.TEXT,
        "lucius",
        (*LEDGER, Process.SERVICE),
        "What streams and subjects begin with; another one for each deployment on one NATS.",
    )
    replicas = setting(
        "LUCIUS_NATS_REPLICAS",
        kinds.count("copies", least=1),
        "1",
        (*LEDGER, Process.SERVICE),
        "Copies of each stream in a cluster of NATS.",
    )


class ServiceBus(Section):
    title = "Service Bus"
    about = "For the bus `servicebus`."
    page = "servicebus"

    connection = optional(
        "LUCIUS_SERVICEBUS_CONNECTION",
        kinds.SERVICE_BUS_STRING,
        (*LEDGER, Process.SERVICE, Process.ADMINISTRATION),
        "The connection string of a namespace.",
        spec="001, 21.1",
        is_secret=True,
    )
    namespace = optional(
        "LUCIUS_SERVICEBUS_NAMESPACE",
        kinds.SERVICE_BUS_NAMESPACE,
        (*LEDGER, Process.SERVICE, Process.ADMINISTRATION),
        "The namespace instead, such as `NAME.servicebus.windows.net`, for an identity.",
    )
    lanes = setting(
        "LUCIUS_SERVICEBUS_LANES",
        kinds.LANES_PINNED,
        str(LANES),
        RUNNING,
        "How many lanes there are: any other number is refused.",
        spec="001, 21.1",
    )
    reply_prefix = setting(
        "LUCIUS_SERVICEBUS_REPLY_PREFIX",
        kinds.REPLY_PREFIX_PINNED,
        kinds.REPLY_PREFIX,
        RUNNING,
        "What the topics of replies begin with: any other text is refused.",
        spec="001, 21.1",
    )
    reply_subscription = setting(
        "LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION",
        kinds.SUBSCRIPTION,
        "lucius-invoker",
        (*MOVERS, Process.ADMINISTRATION),
        "The subscription by which replies are taken.",
        spec="001, 21.1",
    )
    deliveries_max = setting(
        "LUCIUS_SERVICEBUS_MAX_DELIVERIES",
        kinds.count("deliveries", least=1),
        "10",
        (*MOVERS, Process.SERVICE, Process.ADMINISTRATION),
        "How often a message is delivered before it goes to the dead letters; the subscriptions' own number.",
    )
    message_bytes_max = setting(
        "LUCIUS_SERVICEBUS_MAX_MESSAGE_BYTES",
        kinds.count("bytes", least=131_072),
        "262144",
        (*LEDGER, Process.SERVICE),
        "The largest message that the namespace takes; a body may have 16 KiB less.",
    )
    partition_keys = setting(
        "LUCIUS_SERVICEBUS_PARTITION_KEYS",
        kinds.WORD_FLAG,
        "true",
        (*LEDGER, Process.SERVICE),
        "Whether messages carry their routing key as partition key.",
    )
    sessions = setting(
        "LUCIUS_SERVICEBUS_SESSIONS",
        kinds.WORD_FLAG,
        "false",
        (*LEDGER, Process.SERVICE, Process.ADMINISTRATION),
        "Whether the routing key is the session instead; the subscriptions must then require sessions.",
    )


class Temporal(Section):
    title = "The temporal engine"
    page = "temporal"

    enabled = optional(
        "LUCIUS_TEMPORAL_ENABLED",
        kinds.DIGIT_FLAG,
        ENTRY,
        "`true`: `lucius dev` uses the temporal engine, and `lucius api` refuses to start; `false`: `lucius "
        "orchestrator` creates jobs of the outbox engine.",
        unset="as the command says",
        spec="001, 21.1",
    )
    address = optional(
        "LUCIUS_TEMPORAL_ADDRESS",
        kinds.HOST_AND_PORT,
        TEMPORAL,
        "Where Temporal is; `lucius dev` starts a server of its own unless this is set.",
        unset="`127.0.0.1:7233`",
        spec="001, 21.1",
    )
    namespace = setting(
        "LUCIUS_TEMPORAL_NAMESPACE",
        kinds.TEXT,
        "default",
        TEMPORAL,
        "The namespace of the workflows.",
        spec="001, 21.1",
    )
    task_queue = setting(
        "LUCIUS_TEMPORAL_TASK_QUEUE",
        kinds.TEXT,
        "lucius",
        TEMPORAL,
        "The task queue of the workers.",
        spec="001, 21.1",
    )
    tls = setting(
        "LUCIUS_TEMPORAL_TLS",
        kinds.FLAG,
        "false",
        TEMPORAL,
        "Whether the connection to Temporal is encrypted.",
    )
    api_key = optional(
        "LUCIUS_TEMPORAL_API_KEY",
        kinds.TEXT,
        TEMPORAL,
        "The key to Temporal, if it asks for one.",
        is_secret=True,
    )
    execution_timeout = optional(
        "LUCIUS_TEMPORAL_WORKFLOW_EXECUTION_TIMEOUT",
        kinds.DURATION,
        (Process.ORCHESTRATOR, Process.INVOKER),
        "After how long Temporal ends a workflow; the invoker then starts another.",
        unset="none",
        spec="001, 21.1",
    )
    signal_acks = setting(
        "LUCIUS_TEMPORAL_SIGNAL_ACKS",
        kinds.DIGIT_FLAG,
        "true",
        (Process.INVOKER,),
        "Whether workflows get a signal for each ACK, which moves none of them; of a step that is done "
        "within a second they get only the end.",
    )
    invoker_url = setting(
        "LUCIUS_INVOKER_URL",
        kinds.WEB_ADDRESS,
        DEFAULT_INVOKER_URL,
        (Process.ORCHESTRATOR, Process.WORKER),
        "Where the invoker is.",
        spec="001, 21.1",
    )
    internal_secret = optional(
        "LUCIUS_INTERNAL_SECRET",
        kinds.SECRETS,
        TEMPORAL,
        "What callers of the invoker show it: 16 visible characters or more; several with commas while one "
        "replaces another, of which the first is shown.",
        is_secret=True,
    )
    internal_secret_file = optional(
        "LUCIUS_INTERNAL_SECRET_FILE", kinds.TEXT, TEMPORAL, "A file with the same, a secret a line."
    )


class AppConfiguration(Section):
    title = "App Configuration and Azure"
    about = "Variables marked *environment* are never read from App Configuration itself."
    page = "app-configuration"

    connection = optional(
        "LUCIUS_APP_CONFIGURATION_CONNECTION_STRING",
        kinds.CONFIGURATION_STRING,
        (*RUNNING, Process.ADMINISTRATION),
        "The store with protocols, tenants, defaults and settings.",
        is_secret=True,
    )
    endpoint = optional(
        "LUCIUS_APP_CONFIGURATION_ENDPOINT",
        kinds.CONFIGURATION_ADDRESS,
        (*RUNNING, Process.ADMINISTRATION),
        "The same store by its address, for an identity.",
    )
    refresh = setting(
        "LUCIUS_APP_CONFIGURATION_REFRESH",
        kinds.DURATION,
        "30s",
        LEDGER,
        "How often its sentinel is read.",
    )
    environment = optional(
        "LUCIUS_ENVIRONMENT",
        kinds.LABEL,
        (*RUNNING, Process.ADMINISTRATION),
        "The label in that store of what is for this environment alone.",
    )
    identity = optional(
        "LUCIUS_AZURE_IDENTITY",
        kinds.IDENTITY,
        (*RUNNING, Process.ADMINISTRATION),
        "The identity of this process in Azure, where no connection string is set.",
        unset="`default` where one is needed",
    )
    client_id = optional(
        "LUCIUS_AZURE_CLIENT_ID",
        kinds.TEXT,
        (*RUNNING, Process.ADMINISTRATION),
        "Which managed identity, where there are several.",
    )


class References(Section):
    title = "Documents and callbacks"
    page = "webhooks"

    public_url = optional(
        "LUCIUS_PUBLIC_URL",
        kinds.PUBLIC_ADDRESS,
        LEDGER,
        "The address that directives name for callbacks; a server without authentication answers to the name "
        "of its host too.",
        unset="the address listened on",
    )
    workspace_root = optional(
        "LUCIUS_WORKSPACE_ROOT",
        kinds.WORKSPACE_ROOT,
        (*ENTRY, Process.SERVICE),
        "The URI under which jobs get their workspace: `file:`, `az:`, `s3:`, `gs:`, `abfs:` or that of a "
        "blob container.",
        unset="`workspace/` in the data folder",
    )
    blob_account = optional(
        "LUCIUS_BLOB_CONNECTION",
        kinds.BLOB_ACCOUNT,
        (*ENTRY, Process.SERVICE),
        "The account of `az:` references: a connection string, or `https://ACCOUNT.blob.core.windows.net` "
        "for an identity.",
        unset="as Azure's own variables say",
        is_secret=True,
    )
    schemes = optional(
        "LUCIUS_REF_SCHEMES",
        kinds.SCHEMES,
        ENTRY,
        "Schemes that references may have; `file` has its own rule.",
        unset="`s3,gs,az,abfs,https`",
    )
    hosts = optional(
        "LUCIUS_REF_HOSTS",
        kinds.HOSTS,
        ENTRY,
        "Hosts of `https` references and accounts of `abfs` ones, without scheme or port.",
        unset="any",
    )
    containers = optional(
        "LUCIUS_REF_CONTAINERS",
        kinds.NAMES,
        ENTRY,
        "Buckets and containers that references may name.",
        unset="any",
    )
    file_roots = optional(
        "LUCIUS_REF_FILE_ROOTS",
        kinds.PATHS,
        (*ENTRY, Process.SERVICE),
        "Folders, beside the data folder, below which `file:` references may lie.",
    )
    callback_hosts = optional(
        "LUCIUS_CALLBACK_HOSTS",
        kinds.HOSTS,
        LEDGER,
        "Hosts that `callback_urls` of a command may name, without scheme or port.",
        unset="any public one",
    )
    callback_http_allowed = setting(
        "LUCIUS_CALLBACK_ALLOW_HTTP",
        kinds.FLAG,
        "false",
        LEDGER,
        "`true`: webhooks may go to `http` addresses too.",
    )
    callback_private_allowed = setting(
        "LUCIUS_CALLBACK_ALLOW_PRIVATE",
        kinds.FLAG,
        "false",
        LEDGER,
        "`true`: webhooks may go to private addresses too; the list of hosts alone does not allow that.",
    )


class Http(Section):
    title = "Connections and logs"
    page = "observability"

    streams_max = setting(
        "LUCIUS_STREAMS_MAX",
        kinds.count("streams"),
        "2000",
        ENTRY,
        "Streams of events that a process keeps open; one tenant and one caller have half of them at most.",
    )
    waits_max = setting(
        "LUCIUS_WAITS_MAX",
        kinds.count("calls", least=1),
        "8000",
        ENTRY,
        "Calls that wait for a job's end or for directives, with the same shares.",
    )
    connections_max = setting(
        "LUCIUS_CONNECTIONS_MAX",
        kinds.count("connections", least=CONNECTIONS_LEAST),
        "12000",
        RUNNING,
        "Open connections; at least 32.",
    )
    memory_bytes_max = setting(
        "LUCIUS_HTTP_MEMORY_BYTES",
        kinds.count("bytes", least=HTTP_MEMORY_LEAST_BYTES),
        str(HTTP_MEMORY_BYTES),
        RUNNING,
        "Memory for requests and answers under way, of which one caller has half at most; at least 32 MiB.",
    )
    head_timeout = setting(
        "LUCIUS_HEAD_TIMEOUT",
        kinds.DURATION,
        "10s",
        RUNNING,
        "How long a client may take to send a request's head.",
    )
    body_timeout = setting(
        "LUCIUS_BODY_TIMEOUT", kinds.DURATION, "30s", RUNNING, "How long a client may take to send the body."
    )
    unread_timeout = setting(
        "LUCIUS_UNREAD_TIMEOUT",
        kinds.DURATION,
        "60s",
        RUNNING,
        "How long a client may read nothing of an answer.",
    )
    access_log = setting(
        "LUCIUS_ACCESS_LOG", kinds.FLAG, "false", ENTRY, "`true`: a log line for each request."
    )
    log_level = optional(
        "LUCIUS_LOG_LEVEL",
        kinds.LOG_LEVEL,
        RUNNING,
        "How much is logged; `--log-level` goes before it.",
        unset="`info`; `warning` for `lucius dev` on a terminal",
    )
    log_format = optional(
        "LUCIUS_LOG_FORMAT",
        kinds.LOG_FORMAT,
        RUNNING,
        "JSON lines, or lines for people.",
        unset="`plain` on a terminal, else `json`",
    )


class Console(Section):
    title = "The console"
    page = "console-api"

    artifacts = setting(
        "LUCIUS_ARTIFACTS",
        kinds.ARTIFACTS,
        "auto",
        ENTRY,
        "Whether the API gives out what jobs read and wrote, to be looked at: `on`, `off`, or `auto`: where "
        "`LUCIUS_AUTH` is `open`, so on loopback alone.",
    )
    trace_link = optional(
        "LUCIUS_TRACE_LINK",
        kinds.TRACE_LINK,
        ENTRY,
        "Where a trace can be seen: an address with `{trace_id}` in it.",
    )


class ReferenceServices(Section):
    title = "The reference services"
    page = "reference-services"

    embedding_model = setting(
        "LUCIUS_EMBEDDING_MODEL",
        kinds.EMBEDDING_MODEL,
        "hashing",
        SERVICES,
        "What makes vectors: hashed words, or a sentence model.",
    )
    sis_model = optional(
        "LUCIUS_SIS_MODEL",
        kinds.TEXT,
        SERVICES,
        "What answers prompts: `extractive` or `local`; with `LUCIUS_SIS_URL` the name of a model there.",
        unset="`extractive`",
    )
    sis_url = optional(
        "LUCIUS_SIS_URL",
        kinds.MODEL_ADDRESS,
        SERVICES,
        "An OpenAI-compatible address that answers prompts, such as `https://host/v1`.",
    )
    sis_api_key = optional(
        "LUCIUS_SIS_API_KEY", kinds.VISIBLE, SERVICES, "The key to that address.", is_secret=True
    )
    sis_timeout = setting(
        "LUCIUS_SIS_TIMEOUT",
        kinds.DURATION,
        "60s",
        SERVICES,
        "How long one answer of a language model may take.",
    )


class Client(Section):
    title = "Clients"
    about = "`lucius service run` without a bus is a client too."
    page = "cli"

    url = setting(
        "LUCIUS_URL", kinds.TEXT, "http://127.0.0.1:8420", (*CALLERS, Process.SERVICE), "Where Lucius is."
    )
    api_key = optional(
        "LUCIUS_API_KEY",
        kinds.TEXT,
        (*CALLERS, Process.SERVICE),
        "The API key or token, sent as `Authorization: Bearer`.",
        is_secret=True,
    )
    profile = optional(
        "LUCIUS_PROFILE",
        kinds.TEXT,
        (Process.COMMANDS, Process.SERVICE),
        "The profile to use where `LUCIUS_URL` is not set.",
    )
    config = setting(
        "LUCIUS_CONFIG",
        kinds.TEXT,
        "~/.config/lucius/config.toml",
        (Process.COMMANDS, Process.SERVICE),
        "The file with the profiles.",
    )


class Chaos(Section):
    title = "Faults on purpose"
    about = (
        "For tests: `lucius service run` loses, repeats and delays messages, and is killed, to show that "
        "jobs end well all the same. Never set them where real work is done."
    )
    page = "platform-services"

    delay = optional(
        "LUCIUS_CHAOS_DELAY",
        kinds.DURATION,
        SERVICES,
        "Each reply is held for a random time up to this.",
        unset="none is held",
    )
    drop = setting(
        "LUCIUS_CHAOS_DROP",
        kinds.SHARE,
        "0",
        SERVICES,
        "The share of directives and replies that are lost, such as `5%`.",
    )
    duplicate = setting(
        "LUCIUS_CHAOS_DUPLICATE",
        kinds.SHARE,
        "0",
        SERVICES,
        "The share of directives and replies that come twice.",
    )
    crash = setting(
        "LUCIUS_CHAOS_CRASH",
        kinds.SHARE,
        "0",
        SERVICES,
        "The share of replies at which the process is killed, before or after.",
    )


SECTIONS: Final[tuple[type[Section], ...]] = (
    Access,
    Tls,
    Keys,
    Attempts,
    Jobs,
    Storage,
    Postgres,
    Carriers,
    Nats,
    ServiceBus,
    Temporal,
    AppConfiguration,
    References,
    Http,
    Console,
    ReferenceServices,
    Client,
    Chaos,
)
TABLE: Final[tuple[Setting[Any], ...]] = tuple(
    chain.from_iterable(section.settings() for section in SECTIONS)
)
