"""API keys, kept: who holds which, and which are revoked.

In: checked wishes, key ids. Out: stored keys. A secret leaves here once, when its key is made, and only its
hash is written down. What was looked up is believed for `CACHE_MS`, so a revocation, by whichever process,
takes effect everywhere within that time. Revoked keys stay listed, as an audit trail.
"""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from lucius.contracts.keys import KeyRequest, StoredKey, key_text, secret_hash
from lucius.core.refusal import Code, Refused
from lucius.ledger.quarantine import Quarantine
from lucius.ledger.rows import RowDecoder, encode
from lucius.ledger.store import (
    Conflict,
    Place,
    Row,
    StoreUnavailable,
    TableStore,
    Unreadable,
    insert,
    replace,
)

PARTITION = "api-keys"
CACHE_MS = 1_000
CACHED_KEYS_MAX = 4_096
KEYS_MAX = 10_000
PAGE_ROWS_MAX = 1_000
REVOKE_TRIES_MAX = 10

_key = RowDecoder(StoredKey)


class CreatedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key, and its text, which cannot be shown again."""

    key: StoredKey
    text: str


class ApiKeyStore:
    def __init__(
        self,
        store: TableStore,
        table: str,
        *,
        now_ms: Callable[[], int],
        new_parts: Callable[[], tuple[str, str]],
        quarantine: Quarantine | None = None,
    ) -> None:
        """`new_parts`: an id and a secret that cannot be guessed. `quarantine`: for keys that cannot be read,
        which open nothing."""
        self._quarantine = quarantine or Quarantine()
        self._store = store
        self._table = table
        self._now_ms = now_ms
        self._new_parts = new_parts
        self._cache: OrderedDict[str, tuple[int, StoredKey]] = OrderedDict()

    async def create(self, wish: KeyRequest) -> CreatedKey | Refused:
        if len(await self.all()) >= KEYS_MAX:
            return Refused(Code.INVALID_REQUEST, f"there are {KEYS_MAX} keys already, the most there may be")
        key_id, secret = self._new_parts()
        key = StoredKey(
            key_id=key_id,
            name=wish.name,
            secret_sha256=secret_hash(secret),
            tenants=None if wish.tenants is None else tuple(sorted(wish.tenants)),
            roles=tuple(sorted(wish.roles)),
            services=None if wish.services is None else tuple(sorted(wish.services)),
            created_at_ms=self._now_ms(),
        )
        await self._store.commit([insert(self._table, PARTITION, key_id, encode(key))])
        return CreatedKey(key=key, text=key_text(key_id, secret))

    async def find(self, key_id: str) -> StoredKey | None:
        """The key, as it was at most `CACHE_MS` ago."""
        now_ms = self._now_ms()
        cached = self._cache.get(key_id)
        # A clock that was set back must not keep a revoked key alive.
        if cached is not None and 0 <= now_ms - cached[0] < CACHE_MS:
            return cached[1]
        self._cache.pop(key_id, None)
        row = await self._store.get(self._table, PARTITION, key_id)
        if row is None:
            return None
        key = self._read(row)
        if key is None:
            return None
        self._cache[key_id] = (now_ms, key)
        if len(self._cache) > CACHED_KEYS_MAX:
            self._cache.popitem(last=False)
        return key

    async def all(self) -> list[StoredKey]:
        """Every key there ever was, the newest first."""
        rows: list[Row] = []
        start = ""
        while True:
            page = await self._store.query(self._table, PARTITION, start=start, limit=PAGE_ROWS_MAX)
            rows += page
            if len(page) < PAGE_ROWS_MAX:
                keys = [key for row in rows if (key := self._read(row)) is not None]
                return sorted(keys, key=lambda key: (-key.created_at_ms, key.key_id))
            start = page[-1].key + "\x00"

    def _read(self, row: Row) -> StoredKey | None:
        try:
            return _key(row)
        except Unreadable as fault:
            self._quarantine.note(Place(self._table, PARTITION, row.key), fault)
            return None

    async def revoke(self, key_id: str) -> StoredKey | None:
        """The key, which opens nothing from now on; None if there is none. Once revoked it stays as it is."""
        for _ in range(REVOKE_TRIES_MAX):
            row = await self._store.get(self._table, PARTITION, key_id)
            if row is None:
                return None
            key = _key.at(self._table, PARTITION, row)
            if key.revoked_at_ms is None:
                key = msgspec.structs.replace(key, revoked_at_ms=self._now_ms())
                try:
                    await self._store.commit([replace(self._table, PARTITION, key_id, encode(key), row.etag)])
                except Conflict:
                    continue
            self._cache.pop(key_id, None)
            return key
        raise StoreUnavailable("the key changed too often")
