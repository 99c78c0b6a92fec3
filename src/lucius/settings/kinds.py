"""The kinds of settings: how a text is read, and what is said of a text that cannot be used.

A parser gets a text that is not blank and returns a value, or None where the text is refused. Values that are
shown to others (addresses above all) are taken only without user, password and query.
"""

import base64
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from lucius.api.jwks import ALGORITHMS, is_fetchable
from lucius.core.durations import SPANS, parse_duration_ms
from lucius.core.routing import LANES, normalise, parse_mode, reply_topic
from lucius.core.states import Mode
from lucius.jobs.references import is_host, is_scheme
from lucius.jobs.tokens import SigningKey
from lucius.ledger.azure_tables.names import check_prefix
from lucius.settings.declaration import Kind
from lucius.settings.values import (
    StoreKind,
    StoreUrl,
    TablesSettings,
    connection_parts,
    service_bus_endpoint,
)
from lucius.workspace import BlobAccount, blob_account_of, root_of

T = TypeVar("T")

COUNT_DIGITS_MAX: Final = 18
COUNT_MAX: Final = 10**COUNT_DIGITS_MAX
SECRET_LENGTH_MIN: Final = 16
SIGNING_SECRET_LENGTH_MIN: Final = 32
WEBHOOK_PREFIX: Final = "whsec_"
WEBHOOK_SECRET_BYTES_MIN: Final = 24  # as Standard Webhooks has it
REPLY_PREFIX: Final = reply_topic(0).removesuffix("0")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
IDENTITIES: Final = ("default", "managed", "workload")
NATS_SCHEMES: Final = ("nats", "tls")
BUSES: Final = ("memory", "nats", "servicebus")
TENANT_WEIGHT_MAX: Final = 100
LEDGER_FILE: Final = "lucius.db"
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")

TRACE_ID_MARK: Final = "{trace_id}"

_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
_SUBSCRIPTION: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,48}[A-Za-z0-9])?")
_KEY_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{1,252}")
_SERVICE_BUS_KEY: Final = re.compile(r"(?:^|;)\s*SharedAccess(Key|Signature)\s*=\s*[^;\s]", re.IGNORECASE)


# -- numbers, times, choices -------------------------------------------------------------------------------


def count(unit: str, *, least: int = 0, most: int = COUNT_MAX) -> Kind[int]:
    """A whole number of `unit`."""

    def parse(text: str) -> int | None:
        sound = text.isascii() and text.isdecimal() and len(text) <= COUNT_DIGITS_MAX
        return int(text) if sound and least <= int(text) <= most else None

    bounds = f"of at least {least}" if most == COUNT_MAX else f"from {least} to {most}"
    return Kind(form=f"number of {unit}", parse=parse, rule=f"must be a whole number {bounds}")


def _share(text: str) -> float | None:
    number, percent, rest = text.partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        return None
    return value if not rest and 0 <= value <= 1 else None


SHARE: Final = Kind[float](form="share", parse=_share, rule="must be a share from 0 to 1, such as 0.05 or 5%")


def choice(offered: Mapping[str, T]) -> Kind[T]:
    """One of some words, capitals or not."""
    words = " or ".join(offered)
    form = ", ".join(f"`{word}`" for word in offered)
    return Kind(form=form, parse=lambda text: offered.get(text.lower()), rule=f"must be {words}")


def _duration(text: str) -> int | None:
    span_ms = parse_duration_ms(text)
    return span_ms if span_ms is not None and span_ms > 0 else None


DURATION: Final = Kind[int](
    form="time", parse=_duration, rule=f"must be a time {SPANS}, such as 500ms, 30s, 15m or 2h"
)
"""In milliseconds."""
FLAG: Final = Kind[bool](
    form="`true`, `false`", parse=lambda text: _FLAGS.get(text.lower()), rule="must be true or false"
)
DIGIT_FLAG: Final = Kind[bool](
    form="`true`, `false`",
    parse=lambda text: _FLAGS.get(text.lower()),
    rule=f"must be {' or '.join(_FLAGS)}",
)
WORD_FLAG: Final = choice({"true": True, "false": False})
LOG_LEVEL: Final = choice({level: level for level in LOG_LEVELS})
LOG_FORMAT: Final = choice({"json": False, "plain": True})
"""Whether lines are plain."""
ARTIFACTS: Final = choice({name: name for name in ("auto", "on", "off")})
AUTH: Final = choice({"required": True, "open": False})
"""Whether a call needs a key or a token."""
REPLY_TOKENS: Final = choice({"required": True, "off": False})
BUS: Final = choice({bus: bus for bus in BUSES})
IDENTITY: Final = choice({kind: kind for kind in IDENTITIES})
EMBEDDING_MODEL: Final = choice({model: model for model in ("hashing", "minilm")})
MODE: Final = Kind[Mode](
    form="`DEFAULT`, `BURST`",
    parse=lambda text: parse_mode(text.upper()),
    rule="must be DEFAULT or BURST",
)


def pinned(value: str, rule: str) -> Kind[str]:
    """For variables that other implementations set: one value is taken, and nothing acts on it."""
    return Kind(form="pinned", parse=lambda text: text if text == value else None, rule=rule)


LANES_PINNED: Final = pinned(str(LANES), "must be 16: the lanes are pinned for ever")
REPLY_PREFIX_PINNED: Final = pinned(REPLY_PREFIX, f"must be {REPLY_PREFIX}: it is pinned")


# -- texts and lists ---------------------------------------------------------------------------------------


def _entries(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _sound_entries(is_sound: Callable[[str], bool]) -> Callable[[str], frozenset[str] | None]:
    """In small letters; None if one entry is not sound."""

    def parse(text: str) -> frozenset[str] | None:
        entries = frozenset(part.lower() for part in _entries(text))
        return entries if all(map(is_sound, entries)) else None

    return parse


def _hosts(text: str) -> frozenset[str] | None:
    """In the spelling in which they are compared."""
    hosts = _sound_entries(is_host)(text)
    return None if hosts is None else frozenset(host.rstrip(".") for host in hosts)


def _tenant_modes(text: str) -> dict[str, Mode] | None:
    modes: dict[str, Mode] = {}
    for pair in _entries(text):
        tenant, _, word = pair.partition("=")
        mode = parse_mode(word.strip().upper())
        if not tenant.strip() or mode is None:
            return None
        modes[normalise(tenant)] = mode
    return modes


def _tenant_weights(text: str) -> dict[str, int] | None:
    weights: dict[str, int] = {}
    for pair in _entries(text):
        tenant, _, digits = pair.rpartition("=")
        weight = int(digits) if digits.strip().isdecimal() and len(digits) <= COUNT_DIGITS_MAX else 0
        if not tenant.strip() or not 1 <= weight <= TENANT_WEIGHT_MAX:
            return None
        weights[normalise(tenant)] = weight
    return weights


def _file(text: str) -> Path | None:
    return None if "\0" in text else Path(text)


def _algorithms(text: str) -> frozenset[str] | None:
    named = frozenset(_entries(text))
    return named if named <= ALGORITHMS else None


TEXT: Final = Kind[str](form="text", parse=lambda text: text, rule="must be a text")
NAMES: Final = Kind[frozenset[str]](
    form="list of names", parse=lambda text: frozenset(_entries(text)), rule="must be a list, with commas"
)
FILE: Final = Kind[Path](form="path", parse=_file, rule="must be the path of a file")
PATHS: Final = Kind[tuple[str, ...]](
    form="list of folders",
    parse=lambda text: tuple(sorted(set(_entries(text)))),
    rule="must be a list, with commas",
)
TENANTS: Final = Kind[frozenset[str]](
    form="list of tenants",
    parse=lambda text: frozenset(normalise(name) for name in _entries(text)),
    rule="must be a list, with commas",
)
TENANT_MODES: Final = Kind[dict[str, Mode]](
    form="list of `TENANT=MODE`",
    parse=_tenant_modes,
    rule="is a list of TENANT=DEFAULT or TENANT=BURST, with commas",
)
TENANT_WEIGHTS: Final = Kind[dict[str, int]](
    form="list of `TENANT=WEIGHT`",
    parse=_tenant_weights,
    rule=f"is a list of TENANT=WEIGHT with commas, each weight a whole number from 1 to {TENANT_WEIGHT_MAX}",
)
HOSTS: Final = Kind[frozenset[str]](
    form="list of hosts",
    parse=_hosts,
    rule="must be a list of host names with commas, such as files.example.com,[2001:db8::1]: "
    "without scheme, port, path or *",
)
SCHEMES: Final = Kind[frozenset[str]](
    form="list of schemes",
    parse=_sound_entries(is_scheme),
    rule="must be a list of the names of schemes with commas, such as s3,https: without ://",
)
ALGORITHM_NAMES: Final = Kind[frozenset[str]](
    form="list of algorithms",
    parse=_algorithms,
    rule=f"is a list, with commas, of {', '.join(sorted(ALGORITHMS))}",
)


# -- addresses ---------------------------------------------------------------------------------------------


def _host_and_port(text: str) -> str | None:
    host, _, port = text.rpartition(":")
    return text if host and "/" not in host and port.isdecimal() and 0 < int(port) < 65_536 else None


def _web_address(text: str, schemes: Collection[str] = ("http", "https")) -> str | None:
    try:
        parsed = urlsplit(text)
        sound = parsed.scheme in schemes and parsed.hostname and (parsed.port or 1) > 0
    except ValueError:
        return None
    if not sound or parsed.username or parsed.query or any(sign.isspace() for sign in text):
        return None
    return text


def _https_address(text: str) -> str | None:
    """Over plain HTTP a token could be read on the way, so the library refuses it."""
    return text.rstrip("/") if _web_address(text, ("https",)) else None


def _model_endpoint(text: str) -> str | None:
    """Without a query or a user, which would be a secret in a place that is shown."""
    try:
        parsed = urlsplit(text)
        sound = parsed.scheme in ("http", "https") and bool(parsed.hostname) and (parsed.port or 1) > 0
    except ValueError:
        return None
    if not sound or parsed.username or parsed.password or parsed.query or parsed.fragment:
        return None
    return text.rstrip("/")


def _nats_servers(text: str) -> tuple[str, ...] | None:
    """Addresses in the order given; `host:port` alone will do."""
    servers = tuple(part if "://" in part else f"nats://{part}" for part in _entries(text))
    return servers if all(map(_is_nats_server, servers)) else None


def _is_nats_server(server: str) -> bool:
    try:
        parsed = urlsplit(server)
        sound = parsed.scheme in NATS_SCHEMES and bool(parsed.hostname) and (parsed.port or 1) > 0
    except ValueError:
        return False
    return sound and not any(sign.isspace() for sign in server)


def _namespace(text: str) -> str | None:
    name = text.removeprefix("https://").removeprefix("sb://").rstrip("/")
    return name if _NAMESPACE.fullmatch(name) and "." in name else None


HOST_AND_PORT: Final = Kind[str](form="`HOST:PORT`", parse=_host_and_port, rule="must be HOST:PORT")
PUBLIC_ADDRESS: Final = Kind[str](
    form="address",
    parse=_web_address,
    rule="must be an http or https address, without user, password or query",
)
WEB_ADDRESS: Final = Kind[str](form="address", parse=_web_address, rule="must be an http or https address")
TRACE_LINK: Final = Kind[str](
    form="address",
    parse=lambda text: _web_address(text) if TRACE_ID_MARK in text else None,
    rule=f"must be an http or https address with {TRACE_ID_MARK} in it",
)
ISSUER_ADDRESS: Final = Kind[str](
    form="address",
    parse=lambda text: text if is_fetchable(text) else None,
    rule="must be an https address (http only on this machine)",
)
MODEL_ADDRESS: Final = Kind[str](
    form="address",
    parse=_model_endpoint,
    rule="must be an http or https address such as https://host/v1",
)
CONFIGURATION_ADDRESS: Final = Kind[str](
    form="address",
    parse=_https_address,
    rule="must be an address such as https://NAME.azconfig.io",
)
NATS_SERVERS: Final = Kind[tuple[str, ...]](
    form="list of addresses",
    parse=_nats_servers,
    rule="is a list of addresses such as nats://host:4222, with commas",
)
SERVICE_BUS_NAMESPACE: Final = Kind[str](
    form="host", parse=_namespace, rule="must be a name such as NAME.servicebus.windows.net"
)
WORKSPACE_ROOT: Final = Kind[str](
    form="URI of a folder",
    parse=root_of,
    rule="must be an address such as az://CONTAINER/w, s3://BUCKET or file:///w",
)


# -- connection strings and secrets ------------------------------------------------------------------------


def _service_bus_string(text: str) -> str | None:
    """It names an endpoint, and a key to it."""
    return text if service_bus_endpoint(text) and _SERVICE_BUS_KEY.search(text) else None


def _table_account(text: str) -> TablesSettings | None:
    """A connection string as the portal shows it, or the address of an account."""
    if _is_account(text):
        return TablesSettings(account_url=text.rstrip("/"))
    parts = connection_parts(text)
    keyed = parts.get("AccountName") and parts.get("AccountKey")
    signed = parts.get("TableEndpoint") and parts.get("SharedAccessSignature")
    local = parts.get("UseDevelopmentStorage", "").lower() == "true"
    return TablesSettings(connection_string=text) if keyed or signed or local else None


def _store_url(text: str) -> StoreUrl | None:
    word, colon, rest = text.partition(":")
    try:
        kind = StoreKind("postgresql" if word.lower() == "postgres" else word.lower())
    except ValueError:
        return None
    if not colon:
        return None
    if kind is StoreKind.SQLITE:
        return _sqlite_url(rest)
    if kind is StoreKind.POSTGRESQL:
        return _postgresql_url(text)
    return None if rest else StoreUrl(kind=kind)


def _sqlite_url(rest: str) -> StoreUrl | None:
    """`sqlite:///FOLDER/lucius.db` from the root, `sqlite:FOLDER/lucius.db` from the working folder. The name
    is always the same: what is kept beside the file goes by it."""
    if rest.startswith("/"):
        if not rest.startswith("///"):
            return None  # with two slashes the first folder would be the name of a host
        rest = f"/{rest.lstrip('/')}"
    file = Path(rest)
    if file.name != LEDGER_FILE or "\0" in rest or "?" in rest:
        return None
    return StoreUrl(kind=StoreKind.SQLITE, file=file)


def _postgresql_url(text: str) -> StoreUrl | None:
    """One host or several with commas, or none where the query names it, as libpq has it."""
    try:
        parsed = urlsplit(text)
        hosts = parsed.netloc.rpartition("@")[2]
        places = [urlsplit(f"//{host}") for host in hosts.split(",")] if hosts else []
        sound = all(place.hostname and (place.port or 1) > 0 for place in places)
    except ValueError:
        return None
    if not sound or not (hosts or "host=" in parsed.query):
        return None
    if not parsed.path.strip("/") or any(sign.isspace() for sign in text):
        return None
    return StoreUrl(kind=StoreKind.POSTGRESQL, address=text)


def _is_account(text: str) -> bool:
    """Over plain HTTP a token could be read on the way: only on this machine."""
    try:
        parsed = urlsplit(text)
        safe = parsed.scheme == "https" or (parsed.scheme == "http" and parsed.hostname in LOOPBACK)
        return safe and bool(parsed.hostname) and not parsed.username and not parsed.query
    except ValueError:
        return False


def _table_prefix(text: str) -> str | None:
    try:
        check_prefix(text)
    except ValueError:
        return None
    return text


def _configuration_string(text: str) -> str | None:
    parts = connection_parts(text)
    try:
        base64.b64decode(parts.get("Secret", ""), validate=True)
    except ValueError:
        return None
    sound = text.startswith("Endpoint=") and _web_address(parts.get("Endpoint", ""))
    return text if sound and parts.get("Id") and parts.get("Secret") else None


def _label(text: str) -> str | None:
    return None if any(sign in text for sign in "*,\\\0") else text


def _secrets(text: str) -> tuple[str, ...] | None:
    """The first is shown to others, all are taken from them: so that one can be replaced by another."""
    secrets = tuple(part.strip() for part in text.split(","))
    sound = all(len(one) >= SECRET_LENGTH_MIN and one.isascii() and one.isprintable() for one in secrets)
    return secrets if sound and not any(" " in one for one in secrets) else None


def _signing_keys(text: str) -> tuple[SigningKey, ...] | None:
    """The newest first, as `ID:SECRET`."""
    pairs = [part.partition(":")[::2] for part in _entries(text)]
    keys = tuple(SigningKey(kid=kid.strip(), secret=secret.strip()) for kid, secret in pairs)
    sound = all(is_signing_key(key) for key in keys) and len({key.kid for key in keys}) == len(keys)
    return keys if keys and sound else None


def is_signing_key(key: SigningKey) -> bool:
    return bool(
        _KEY_ID.fullmatch(key.kid)
        and len(key.secret) >= SIGNING_SECRET_LENGTH_MIN
        and _visible(key.secret) is not None
    )


def _webhook_secrets(text: str) -> tuple[str, ...] | None:
    secrets = tuple(_entries(text))
    return secrets if secrets and all(map(_is_webhook_secret, secrets)) else None


def _is_webhook_secret(text: str) -> bool:
    try:
        secret = base64.b64decode(text.removeprefix(WEBHOOK_PREFIX), validate=True)
    except ValueError:
        return False
    return text.startswith(WEBHOOK_PREFIX) and len(secret) >= WEBHOOK_SECRET_BYTES_MIN


def _visible(text: str) -> str | None:
    return text if text.isascii() and text.isprintable() and " " not in text else None


SERVICE_BUS_STRING: Final = Kind[str](
    form="connection string",
    parse=_service_bus_string,
    rule="must be Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…",
)
SUBSCRIPTION: Final = Kind[str](
    form="name",
    parse=lambda text: text if _SUBSCRIPTION.fullmatch(text) else None,
    rule="must be the name of a subscription: up to 50 letters, digits, dots, hyphens or underscores",
)
TABLE_ACCOUNT: Final = Kind[TablesSettings](
    form="connection string or address",
    parse=_table_account,
    rule="must be a connection string (AccountName=…;AccountKey=…) or the https address of an account",
)
STORE_URL: Final = Kind[StoreUrl](
    form="URL",
    parse=_store_url,
    rule="must be sqlite:///FOLDER/lucius.db, postgresql://USER:PASSWORD@HOST/DATABASE, azure-tables: (at "
    "LUCIUS_TABLE_CONNECTION) or memory:",
)
TABLE_PREFIX: Final = Kind[str](
    form="name", parse=_table_prefix, rule="must be up to 16 small letters and digits, without z"
)
BLOB_ACCOUNT: Final = Kind[BlobAccount](
    form="connection string or address",
    parse=blob_account_of,
    rule="must be a connection string (AccountName=…;AccountKey=…) or https://ACCOUNT.blob.core.windows.net",
)
CONFIGURATION_STRING: Final = Kind[str](
    form="connection string",
    parse=_configuration_string,
    rule="must be Endpoint=https://…;Id=…;Secret=…, as the portal shows it",
)
LABEL: Final = Kind[str](form="label", parse=_label, rule="must be a label without * , and \\")
SECRETS: Final = Kind[tuple[str, ...]](
    form="list of secrets",
    parse=_secrets,
    rule=f"must be {SECRET_LENGTH_MIN} visible ASCII characters or more (several with commas)",
)
SIGNING_KEYS: Final = Kind[tuple[SigningKey, ...]](
    form="list of `ID:SECRET`",
    parse=_signing_keys,
    rule=f"must be ID:SECRET with {SIGNING_SECRET_LENGTH_MIN} visible ASCII characters or more in the secret "
    "(several with commas, each with an id of its own)",
)
WEBHOOK_SECRETS: Final = Kind[tuple[str, ...]](
    form="list of secrets",
    parse=_webhook_secrets,
    rule=f"must be {WEBHOOK_PREFIX} and the base64 of {WEBHOOK_SECRET_BYTES_MIN} bytes or more (several with "
    "commas)",
)
VISIBLE: Final = Kind[str](form="text", parse=_visible, rule="must be visible ASCII characters")
