"""Opens the ledger in a data folder, and builds the house upon it."""

import asyncio
from pathlib import Path

from lucius.assembly.embedded import Embedded
from lucius.assembly.engine_room import EngineRoom
from lucius.assembly.parts import Part
from lucius.bus.port import Bus
from lucius.ledger.jobs import LayoutName
from lucius.ledger.sqlite import SqliteStore
from lucius.settings import Settings

STORE_NAME = "lucius.db"


async def open_embedded(
    settings: Settings,
    *,
    layout: LayoutName,
    data: Path,
    base_url: str,
    protocols: Path | None,
    bus: Bus | None = None,
) -> Embedded:
    """Everything in this process, which has the folder to itself."""
    store = await _open_store(data)
    return Embedded(
        store, settings, layout=layout, data=data, base_url=base_url, protocols=protocols, bus=bus
    )


async def open_part(
    part: Part,
    settings: Settings,
    *,
    layout: LayoutName,
    data: Path,
    base_url: str,
    protocols: Path | None,
    bus: Bus | None = None,
    engine: EngineRoom | None = None,
) -> Embedded:
    """One part, beside others that use the same folder."""
    store = await _open_store(data)
    return Embedded(
        store,
        settings,
        layout=layout,
        data=data,
        base_url=base_url,
        protocols=protocols,
        shared=True,
        part=part,
        bus=bus,
        engine=engine,
    )


async def _open_store(data: Path) -> SqliteStore:
    await asyncio.to_thread(data.mkdir, parents=True, exist_ok=True, mode=0o700)
    return await SqliteStore.open(data / STORE_NAME)
