"""The secrets that sign webhooks: a small file of the data folder, readable by its owner only.

In: a path, and where new secrets come from. Out: the secrets to sign with, the newest first. Several are
there during a rotation: each webhook is signed with all of them, so that receivers may change over when it
suits them. The file is read again when it has changed, so a rotation needs no restart.
"""

import fcntl
import os
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

FILE_NAME = "webhook-secrets.json"
SECRET_BYTES = 32
SECRETS_KEPT_MAX = 2


class WebhookSecret(msgspec.Struct, frozen=True, kw_only=True):
    """`secret` is in the form that receivers are given: `whsec_` and base64."""

    secret: str
    created_at_ms: int


class WebhookSecrets:
    """`chance` gives so many random bytes."""

    def __init__(self, folder: Path, *, now_ms: Callable[[], int], chance: Callable[[int], bytes]) -> None:
        self._folder = folder
        self._path = folder / FILE_NAME
        self._now_ms = now_ms
        self._chance = chance
        self._seen: tuple[int, int] | None = None
        self._secrets: tuple[str, ...] = ()

    def current(self) -> tuple[str, ...]:
        """The newest first; made on first use."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._write([self._new()], first=True)
            status = self._path.stat()
        seen = (status.st_mtime_ns, status.st_ino)
        if seen != self._seen:
            self._secrets = tuple(each.secret for each in self._read())
            self._seen = seen
        return self._secrets

    def rotate(self, *, kept_max: int = SECRETS_KEPT_MAX) -> str:
        """Puts a new secret in front of the others, of which the oldest go; returns it. Rotating twice
        retires the secret from before the first rotation, and `kept_max=1` all others at once."""
        self.current()
        with (self._folder / f"{FILE_NAME}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of two rotations at once, neither loses its secret
            fresh = self._new()
            self._write([fresh, *self._read()][: max(1, kept_max)], first=False)
        return fresh.secret

    def _new(self) -> WebhookSecret:
        text = b64encode(self._chance(SECRET_BYTES)).decode()
        return WebhookSecret(secret=f"whsec_{text}", created_at_ms=self._now_ms())

    def _read(self) -> list[WebhookSecret]:
        secrets = msgspec.json.decode(self._path.read_bytes(), type=list[WebhookSecret])
        if not secrets:
            raise ValueError(f"{self._path.name} holds no secret")
        return secrets

    def _write(self, secrets: list[WebhookSecret], *, first: bool) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._folder / f".{FILE_NAME}.{self._chance(4).hex()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(secrets))
            file.flush()
            os.fsync(file.fileno())
        if first:
            with suppress(FileExistsError):
                self._path.hardlink_to(draft)  # a second process uses the first one's secret
            draft.unlink()
        else:
            draft.replace(self._path)
            descriptor = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
