"""The keys that sign callbacks and webhooks, and whether all processes on one ledger have the same.

In: the settings, the data folder, the store. Out: keys from a variable, a file or the data folder, the newest
first; or `NoSigningKeys` with what to set. Each process notes in the ledger which keys it has; one whose data
folder has others does not start, because the tokens of each would be refused by the other. The ledger gets
the id of a key and a hash of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
import structlog

from lucius.assembly.clock_and_ids import now_ms
from lucius.assembly.process import Part
from lucius.assembly.secrets import SIGNING_FILE, SIGNING_FOLDER, NoSigningKeys, signing_keys, webhook_secrets
from lucius.assembly.stores import is_beside, is_shared
from lucius.engines.webhooks.secrets import FILE_NAME as WEBHOOK_FILE
from lucius.jobs.tokens import SigningKey
from lucius.ledger.rows import RowDecoder, encode
from lucius.ledger.store import Conflict, TableStore, insert, replace
from lucius.settings import BadSetting, Settings
from lucius.settings.kinds import SIGNING_KEYS, WEBHOOK_SECRETS, is_signing_key
from lucius.settings.reading import SECRET_FILE_BYTES_MAX, parse_secret_file
from lucius.settings.table import Keys

PARTITION: Final = "signing"
HASH_LENGTH: Final = 16
TRIES_MAX: Final = 10
REPLACED: Final = "tokens of the keys before are refused from now on: keep the old keys behind the new ones"

log = structlog.get_logger("lucius.assembly")


class _KeyKind(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    file: str
    """In the folder of keys, where they are made if nothing else gives them."""
    variable: str


CALLBACK: Final = _KeyKind(name="callback", file=SIGNING_FILE, variable=Keys.callback.name)
WEBHOOK: Final = _KeyKind(name="webhook", file=WEBHOOK_FILE, variable=Keys.webhook.name)


class _KeysRow(msgspec.Struct, frozen=True, kw_only=True):
    fingerprints: list[str]


_keys_row = RowDecoder(_KeysRow)


def callback_keys(settings: Settings, data: Path) -> list[SigningKey]:
    """The newest first. Raises `NoSigningKeys`."""
    asked = settings.keys
    if asked.callback is not None:
        return list(asked.callback)
    if asked.callback_file is not None:
        return _read_callback_file(asked.callback_file)
    return signing_keys(data / SIGNING_FOLDER)


def webhook_keys(settings: Settings, data: Path) -> Callable[[], tuple[str, ...]]:
    """What gives the newest first, each time it is asked. Raises `NoSigningKeys`, and so does what it
    returns."""
    asked = settings.keys
    if asked.webhook is not None:
        fixed = asked.webhook
        return lambda: fixed
    if asked.webhook_file is not None:
        return _WebhookFile(asked.webhook_file)
    return webhook_secrets(data / SIGNING_FOLDER, now_ms).current


def _read_callback_file(path: Path) -> list[SigningKey]:
    name = Keys.callback_file.name
    try:
        text = path.read_bytes()[: SECRET_FILE_BYTES_MAX + 1]
        if not text.lstrip().startswith(b"["):
            found = parse_secret_file(path, name, SIGNING_KEYS)
            return list(found)
        keys = msgspec.json.decode(text, type=list[SigningKey])  # as it is in a data folder
    except msgspec.MsgspecError:
        keys = []
    except OSError:
        raise NoSigningKeys(f"{name} names no file that can be read: {path}") from None
    except BadSetting as fault:
        raise NoSigningKeys(str(fault)) from None
    if not keys or not all(map(is_signing_key, keys)):
        raise NoSigningKeys(f"{name}: {path} {SIGNING_KEYS.rule}")
    return keys


class _WebhookFile:
    """The secrets of a file, read again when it has changed; what was known goes on if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._secrets: tuple[str, ...] = ()

    def __call__(self) -> tuple[str, ...]:
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_ino)
            if seen != self._seen:
                name = Keys.webhook_file.name
                self._secrets = parse_secret_file(self._path, name, WEBHOOK_SECRETS)
                self._seen = seen
        except (BadSetting, OSError) as fault:
            if not self._secrets:
                raise NoSigningKeys(
                    str(fault)
                    if isinstance(fault, BadSetting)
                    else f"{Keys.webhook_file.name} names no file that can be read: {self._path}"
                ) from None
            log.warning("webhook_secrets_not_read", path=str(self._path))
        return self._secrets


# -- one ledger, the same keys -----------------------------------------------------------------------------


async def agree_on_keys(store: TableStore, settings: Settings, data: Path, part: Part) -> None:
    """Raises `NoSigningKeys` where others on this ledger have other keys, and a `StoreError`."""
    if not is_shared(settings) and is_beside(settings, data):
        return  # the keys are beside the ledger, or the ledger ends with this process
    table, asked = settings.tables.meta, settings.keys
    own = asked.callback is None and asked.callback_file is None
    if own:
        await _check_before_making(store, table, CALLBACK, data)
    keys = await asyncio.to_thread(callback_keys, settings, data)
    await _agree(store, table, CALLBACK, [_fingerprint(key.kid, key.secret) for key in keys], own=own)
    if not part.reconciles:
        return  # it sends no webhooks
    own = asked.webhook is None and asked.webhook_file is None
    if own:
        await _check_before_making(store, table, WEBHOOK, data)
    secrets = await asyncio.to_thread(webhook_keys(settings, data))
    await _agree(store, table, WEBHOOK, [_fingerprint("", secret) for secret in secrets], own=own)


async def _check_before_making(store: TableStore, table: str, kind: _KeyKind, data: Path) -> None:
    """A process without keys makes some only where none are in use."""
    made = (data / SIGNING_FOLDER / kind.file).exists()
    if not made and await store.get(table, PARTITION, kind.name) is not None:
        raise _refused(kind)


async def _agree(store: TableStore, table: str, kind: _KeyKind, mine: Sequence[str], *, own: bool) -> None:
    """`own`: of the data folder. Keys that were set take the place of others: they are what the operator
    wants from now on."""
    body = encode(_KeysRow(fingerprints=list(mine)))
    for _ in range(TRIES_MAX):
        row = await store.get(table, PARTITION, kind.name)
        if row is None:
            written = insert(table, PARTITION, kind.name, body)
        else:
            theirs = _keys_row.at(table, PARTITION, row).fingerprints
            if theirs == list(mine):
                return
            if not set(theirs) & set(mine):
                if own:
                    raise _refused(kind)
                log.warning("signing_keys_replaced", kind=kind.name, hint=REPLACED)
            written = replace(table, PARTITION, kind.name, body, row.etag)
        try:
            await store.commit([written])
        except Conflict:
            continue  # another process starts at the same time
        return
    raise NoSigningKeys(f"other processes keep changing which {kind.name} keys are in use: start it again")


def _fingerprint(kid: str, secret: str) -> str:
    return f"{kid}:{sha256(secret.encode()).hexdigest()[:HASH_LENGTH]}"


def _refused(kind: _KeyKind) -> NoSigningKeys:
    return NoSigningKeys(
        f"the {kind.name} keys of this process would be its own, and other processes on this ledger have "
        f"others: set {kind.variable} or {kind.variable}_FILE to the same value for all of them, or give "
        "them all one --data"
    )
