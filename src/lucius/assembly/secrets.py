"""The part of the composition root that makes and keeps secrets: signing keys, API keys, and the gate.

In: the data folder, the store, the settings, the clock. Out: what `assembly` and the `keys` commands put in
their places. Chance enters here; files of secrets are readable by their owner only.
"""

import fcntl
import os
import secrets
import string
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from lucius.api.gate import Gate, GuardedGate, OpenGate
from lucius.api.jwks import JwksEndpoint, KeySet
from lucius.api.tokens_oidc import OidcTokens
from lucius.contracts.keys import KEY_ID_BYTES, KEY_SECRET_BYTES
from lucius.engines.webhooks.secrets import WebhookSecrets
from lucius.jobs.tokens import SigningKey
from lucius.ledger.api_keys import ApiKeyStore
from lucius.ledger.quarantine import Quarantine
from lucius.ledger.store import TableStore
from lucius.private_files import write_private
from lucius.settings import Settings

SIGNING_FOLDER = "keys"
SIGNING_FILE = "callback-keys.json"
# Tokens of a key that fell off the end are of directives sent that many rotations ago.
SIGNING_KEYS_MAX = 64
SERVER_SECRET_BYTES = 32


class NoSigningKeys(OSError):
    """The file is there and cannot be used. The text names it, and says what to do."""


def signing_keys(folder: Path) -> list[SigningKey]:
    """The callback signing keys, the newest first; made on first use."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / SIGNING_FILE
    if not path.exists():
        draft = _draft(folder, [_new_signing_key()])
        with suppress(FileExistsError):
            os.link(draft, path)  # a second process uses the first one's key
        draft.unlink()
    try:
        keys = msgspec.json.decode(path.read_bytes(), type=list[SigningKey])
    except ValueError:
        keys = []
    if not keys:
        # Not made anew: every token that is out there would be worth nothing.
        raise NoSigningKeys(
            f"{path} holds no signing keys that can be read. Restore it from a copy, or remove it to begin "
            "anew: then the tokens of attempts that are under way are refused, and these are run again"
        )
    return keys


def rotate_signing_keys(folder: Path) -> SigningKey:
    """Puts a new key in front of the others, which still verify. Running processes learn of it when they
    start again."""
    signing_keys(folder)
    with (folder / f"{SIGNING_FILE}.lock").open("a", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two rotations at once, neither loses its key
        key = _new_signing_key()
        kept = signing_keys(folder)[: SIGNING_KEYS_MAX - 1]
        _draft(folder, [key, *kept]).replace(folder / SIGNING_FILE)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return key


def _new_signing_key() -> SigningKey:
    return SigningKey(kid=secrets.token_hex(4), secret=secrets.token_hex(32))


def _draft(folder: Path, keys: Sequence[SigningKey]) -> Path:
    draft = folder / f".callback-keys.{secrets.token_hex(4)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(keys))
        file.flush()
        os.fsync(file.fileno())
    return draft


def new_server_secret() -> str:
    """What opens a server that Lucius starts for itself."""
    return secrets.token_hex(SERVER_SECRET_BYTES)


def kept_server_secret(path: Path) -> str:
    """The same from one start to the next, in a file for its owner alone; made on first use."""
    try:
        kept = path.read_text(encoding="ascii").strip()
        path.chmod(0o600)
    except (FileNotFoundError, UnicodeDecodeError):
        kept = ""
    sound = len(kept) == 2 * SERVER_SECRET_BYTES and all(sign in string.hexdigits for sign in kept)
    return kept if sound else renewed_server_secret(path)


def renewed_server_secret(path: Path) -> str:
    """Takes the place of the one before, which then opens nothing."""
    made = new_server_secret()
    write_private(path, f"{made}\n".encode())
    return made


def webhook_secrets(folder: Path, now_ms: Callable[[], int]) -> WebhookSecrets:
    """The secrets that sign webhooks: `current()` to sign with, `rotate()` for a new one in front."""
    return WebhookSecrets(folder, now_ms=now_ms, chance=secrets.token_bytes)


def key_ledger(
    store: TableStore,
    settings: Settings,
    now_ms: Callable[[], int],
    quarantine: Quarantine | None = None,
) -> ApiKeyStore:
    meta = settings.tables.meta
    return ApiKeyStore(store, meta, now_ms=now_ms, new_parts=_new_key_parts, quarantine=quarantine)


def _new_key_parts() -> tuple[str, str]:
    return secrets.token_hex(KEY_ID_BYTES), secrets.token_hex(KEY_SECRET_BYTES)


def gate_of(settings: Settings, keys: ApiKeyStore, now_ms: Callable[[], int]) -> Gate:
    """The gate that the settings ask for."""
    if not settings.auth_required:
        return OpenGate(settings.public_url)
    oidc = settings.oidc
    if oidc is None:
        return GuardedGate(keys)
    endpoint = JwksEndpoint(issuer=oidc.issuer, jwks_url=oidc.jwks_url)
    return GuardedGate(keys, OidcTokens(oidc, KeySet(endpoint, oidc.algorithms, now_ms=now_ms)))
