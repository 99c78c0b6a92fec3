"""Opens the store under the ledger: a file in the data folder, or memory, which ends with the process."""

import asyncio
from pathlib import Path

from lucius.ledger.jobs import LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.sqlite import SqliteStore
from lucius.ledger.store import TableStore

STORE_NAME = "lucius.db"
MEMORY_STORAGE = "memory"


def layout_of(storage: str) -> LayoutName:
    """What `--storage` says of the layout. In memory it is the smaller one."""
    return LayoutName.LEDGER if storage == MEMORY_STORAGE else LayoutName(storage)


async def open_store(storage: str, data: Path) -> TableStore:
    if storage == MEMORY_STORAGE:
        return MemoryStore()
    await asyncio.to_thread(data.mkdir, parents=True, exist_ok=True, mode=0o700)
    return await SqliteStore.open(data / STORE_NAME)
