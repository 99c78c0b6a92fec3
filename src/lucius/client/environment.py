"""What the client takes from the world around it: the environment, chance, new keys, and rest.

In: nothing. Out: a `ClientEnvironment`. This is the client's own composition root, so that a script can
write `Lucius()`; a caller that wants the same run twice passes a `ClientEnvironment` of its own.
"""

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping

import msgspec

_chance = secrets.SystemRandom()


def _new_key() -> str:
    return f"auto-{secrets.token_hex(16)}"


class ClientEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """`chance` draws from 0 to 1 and spreads retries out; `new_key` never draws the same key twice."""

    env: Mapping[str, str] = msgspec.field(default_factory=lambda: os.environ)
    chance: Callable[[], float] = _chance.random
    new_key: Callable[[], str] = _new_key
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
