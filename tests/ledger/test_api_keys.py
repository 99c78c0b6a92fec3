"""Keys at rest: what is written, how long it is believed, and the signing keys of callbacks."""

import asyncio
import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from lucius.assembly.secrets import (
    SIGNING_FILE,
    SIGNING_KEYS_MAX,
    NoSigningKeys,
    rotate_signing_keys,
    signing_keys,
)
from lucius.contracts.keys import KeyRequest, Role, key_view, split_key
from lucius.core.attempt import AttemptRef
from lucius.core.refusal import Refused
from lucius.jobs import tokens as progress_tokens
from lucius.jobs.tokens import CallbackTokens, SigningKey
from lucius.ledger import api_keys as ledger_keys
from lucius.ledger.api_keys import CACHE_MS, CACHED_KEYS_MAX, PARTITION, ApiKeyStore, CreatedKey
from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import StoreUnavailable, replace

TABLE = "lucius_meta"
WISH = KeyRequest(name="ci", tenants=frozenset({"acme"}), roles=frozenset({Role.READ}), services=frozenset())


class World:
    """One store, a clock, and processes that share both."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now_ms = 1_000_000
        self._count = 0

    def parts(self) -> tuple[str, str]:
        self._count += 1
        return f"{self._count:016x}", f"{self._count:064x}"

    def process(self) -> ApiKeyStore:
        return ApiKeyStore(self.store, TABLE, now_ms=lambda: self.now_ms, new_parts=self.parts)


async def made(keys: ApiKeyStore, wish: KeyRequest = WISH) -> CreatedKey:
    found = await keys.create(wish)
    assert isinstance(found, CreatedKey)
    return found


async def test_a_key_is_kept_without_its_secret_and_survives_the_process() -> None:
    world = World()
    new = await made(world.process())
    parts = split_key(new.text)
    assert parts is not None
    row = await world.store.get(TABLE, PARTITION, new.key.key_id)
    assert row is not None
    assert parts[1].encode() not in row.body
    assert json.loads(row.body)["v"] == 1
    assert await world.process().find(new.key.key_id) == new.key
    assert key_view(new.key)["services"] == []
    assert parts[1] not in str(key_view(new.key))


@pytest.mark.parametrize("version", [1, 2])
async def test_what_a_later_version_added_is_passed_over_and_what_it_changed_opens_nothing(
    version: int,
) -> None:
    world = World()
    new = await made(world.process())
    row = await world.store.get(TABLE, PARTITION, new.key.key_id)
    assert row is not None
    later = json.loads(row.body) | {"v": version, "expires_at_ms": 7}
    op = replace(TABLE, PARTITION, new.key.key_id, json.dumps(later).encode(), row.etag)
    await world.store.commit([op])
    assert await world.process().find(new.key.key_id) == (new.key if version == 1 else None)
    kept = await world.store.get(TABLE, PARTITION, new.key.key_id)
    assert kept is not None and json.loads(kept.body) == later


@pytest.mark.parametrize("step_ms", [CACHE_MS, -3_600_000])
async def test_a_revocation_elsewhere_is_seen_when_the_cache_is_old_or_the_clock_was_set_back(
    step_ms: int,
) -> None:
    world = World()
    here, elsewhere = world.process(), world.process()
    new = await made(here)
    assert (await here.find(new.key.key_id)) == new.key
    assert await elsewhere.revoke(new.key.key_id) is not None
    assert (await here.find(new.key.key_id)) == new.key
    world.now_ms += step_ms
    seen = await here.find(new.key.key_id)
    assert seen is not None and seen.revoked_at_ms is not None
    assert CACHE_MS <= 2_000


async def test_two_who_revoke_at_once_agree_on_when() -> None:
    world = World()
    new = await made(world.process())
    first, second = await asyncio.gather(
        world.process().revoke(new.key.key_id), world.process().revoke(new.key.key_id)
    )
    assert first == second
    assert await world.process().revoke("f" * 16) is None


async def test_a_store_that_is_away_opens_nothing() -> None:
    world = World()
    keys = world.process()
    new = await made(keys)
    await world.store.close()
    with pytest.raises(StoreUnavailable):
        await keys.find(new.key.key_id)


async def test_the_cache_and_the_number_of_keys_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    keys = world.process()
    monkeypatch.setattr(ledger_keys, "CACHED_KEYS_MAX", 3)
    ids = [(await made(keys)).key.key_id for _ in range(6)]
    for key_id in ids:
        await keys.find(key_id)
    assert len(keys._cache) == 3
    assert CACHED_KEYS_MAX >= 1_000
    monkeypatch.setattr(ledger_keys, "KEYS_MAX", 6)
    assert isinstance(await keys.create(WISH), Refused)


async def test_all_keys_are_listed_over_several_pages_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    keys = world.process()
    monkeypatch.setattr(ledger_keys, "PAGE_ROWS_MAX", 2)
    ids = []
    for _ in range(5):
        world.now_ms += 1
        ids.append((await made(keys)).key.key_id)
    assert [key.key_id for key in await keys.all()] == ids[::-1]


ATTEMPT = AttemptRef(job_id="job_1", step_id="step_01", attempt_no=1, lease_id="l")


def test_a_rotated_key_signs_and_the_old_ones_still_verify(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    before = signing_keys(folder)
    old = CallbackTokens(before).mint(ATTEMPT)
    newest = rotate_signing_keys(folder)
    after = signing_keys(folder)
    assert after == [newest, *before]
    tokens = CallbackTokens(after)
    assert tokens.read(old) == ATTEMPT
    new = tokens.mint(ATTEMPT)
    assert tokens.read(new) == ATTEMPT
    assert CallbackTokens(before).read(new) is None
    assert stat.S_IMODE((folder / SIGNING_FILE).stat().st_mode) == 0o600
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_what_is_remembered_of_a_token_ends_with_its_key(tmp_path: Path) -> None:
    gone = SigningKey(kid="gone", secret="g" * 32)
    own = SigningKey(kid="own", secret="o" * 32)
    old = CallbackTokens([gone]).mint(ATTEMPT)
    tokens = CallbackTokens([own, gone])
    assert tokens.read(old) == tokens.read(old) == ATTEMPT
    tokens.learn([own])
    assert tokens.read(old) is None
    assert tokens.read(tokens.mint(ATTEMPT)) == ATTEMPT


def test_what_is_remembered_of_tokens_is_bounded_and_forgotten_ones_are_read_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_tokens, "REMEMBERED_MAX", 3)
    tokens = CallbackTokens([SigningKey(kid="k", secret="s" * 32)])
    attempts = [msgspec.structs.replace(ATTEMPT, attempt_no=number) for number in range(1, 8)]
    minted = [tokens.mint(attempt) for attempt in attempts]
    assert len(tokens._remembered) == 3
    assert not any(token.encode() in tokens._remembered for token in minted)
    assert [tokens.read(token) for token in minted] == attempts
    assert tokens.read(f"{minted[-1]}x") is None
    assert tokens.read("\udcff") is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"kid": 1}', b'[{"kid": "\xff", "secret": "s"}]'])
def test_signing_keys_that_cannot_be_read_are_not_made_anew(tmp_path: Path, content: bytes) -> None:
    signing_keys(tmp_path)
    (tmp_path / SIGNING_FILE).write_bytes(content)
    for wish in (signing_keys, rotate_signing_keys):
        with pytest.raises(NoSigningKeys, match=f"^{tmp_path / SIGNING_FILE} holds no .* remove it"):
            wish(tmp_path)
    assert (tmp_path / SIGNING_FILE).read_bytes() == content


def test_rotations_at_once_lose_no_key_and_there_is_a_bound(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made_keys = list(pool.map(lambda _: rotate_signing_keys(tmp_path), range(16)))
    assert {key.kid for key in made_keys} <= {key.kid for key in signing_keys(tmp_path)}
    assert len(signing_keys(tmp_path)) == 17
    for _ in range(SIGNING_KEYS_MAX):
        newest = rotate_signing_keys(tmp_path)
    kept = signing_keys(tmp_path)
    assert (len(kept), kept[0]) == (SIGNING_KEYS_MAX, newest)
