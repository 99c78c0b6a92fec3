"""A NATS server that lets in whoever shows a credentials file, and such a file."""

import base64
import os
from pathlib import Path
from typing import Any, Final

import msgspec
import nkeys  # type: ignore[import-untyped]

from lucius.bus.nats.server import NatsServer

MADE_AT: Final = 1_700_000_000
NO_LIMIT: Final = -1
_LIMITS: Final = {
    **dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), NO_LIMIT),
    "wildcards": True,
}
_STREAMS: Final = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), NO_LIMIT)


class AccountsServer(NatsServer):
    """Its operator, its accounts and one user are made up with it."""

    def __init__(self, folder: Path, *, port: int) -> None:
        super().__init__(folder, port=port)
        self._operator = _new_key(nkeys.PREFIX_BYTE_OPERATOR)
        self._system, self._account = (_new_key(nkeys.PREFIX_BYTE_ACCOUNT) for _ in range(2))

    def credentials(self, file: Path) -> Path:
        """Those of a new user."""
        seed = _new_seed(nkeys.PREFIX_BYTE_USER)
        user = nkeys.from_seed(seed)
        limits = dict.fromkeys(("subs", "data", "payload"), NO_LIMIT)
        token = _signed(self._account, user, "user", {"pub": {}, "sub": {}, **limits})
        file.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
        )
        return file

    def _config(self) -> str:
        system = _signed(self._operator, self._system, "account", {"limits": _LIMITS})
        account = _signed(self._operator, self._account, "account", {"limits": _LIMITS | _STREAMS})
        return (
            f"{super()._config()}"
            f"operator: {_signed(self._operator, self._operator, 'operator', {})}\n"
            f"system_account: {_name(self._system)}\n"
            "resolver: MEMORY\n"
            f"resolver_preload {{ {_name(self._system)}: {system}, {_name(self._account)}: {account} }}\n"
        )


def _new_seed(kind: int) -> bytes:
    seed: bytes = nkeys.encode_seed(os.urandom(32), kind)
    return seed


def _new_key(kind: int) -> nkeys.KeyPair:
    return nkeys.from_seed(_new_seed(kind))


def _name(key: nkeys.KeyPair) -> str:
    name: bytes = key.public_key
    return name.decode()


def _signed(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, kind: str, said: dict[str, Any]) -> str:
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    claims = {
        "jti": _name(subject),
        "iat": MADE_AT,
        "iss": _name(issuer),
        "sub": _name(subject),
        "name": kind,
        "nats": {**said, "type": kind, "version": 2},
    }
    words = ".".join(_encoded(msgspec.json.encode(part)) for part in (head, claims))
    return f"{words}.{_encoded(issuer.sign(words.encode()))}"


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()
