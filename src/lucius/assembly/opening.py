"""Opens the ledger in a data folder, and builds the house upon it."""

from pathlib import Path

from lucius.assembly.embedded import Embedded
from lucius.assembly.engine_room import EngineRoom
from lucius.assembly.parts import Part
from lucius.assembly.store_room import layout_of, open_store
from lucius.bus.port import Bus
from lucius.settings import Settings


async def open_embedded(
    settings: Settings,
    *,
    storage: str,
    data: Path,
    base_url: str,
    protocols: Path | None,
    bus: Bus | None = None,
) -> Embedded:
    """Everything in this process, which has the folder to itself."""
    store = await open_store(storage, data)
    return Embedded(
        store, settings, layout=layout_of(storage), data=data, base_url=base_url, protocols=protocols, bus=bus
    )


async def open_part(
    part: Part,
    settings: Settings,
    *,
    storage: str,
    data: Path,
    base_url: str,
    protocols: Path | None,
    bus: Bus | None = None,
    engine: EngineRoom | None = None,
) -> Embedded:
    """One part, beside others that use the same folder."""
    store = await open_store(storage, data)
    return Embedded(
        store,
        settings,
        layout=layout_of(storage),
        data=data,
        base_url=base_url,
        protocols=protocols,
        shared=True,
        part=part,
        bus=bus,
        engine=engine,
    )
