"""Opens the ledger in a data folder, and builds the house upon it."""

import asyncio
from pathlib import Path

from lucius.assembly.app_configuration import AppConfiguration, open_app_configuration
from lucius.assembly.embedded import Embedded
from lucius.assembly.folder_layout import mark_layout
from lucius.assembly.parts import Part
from lucius.assembly.store_choice import claim_layout, is_shared, layout_of, open_store
from lucius.assembly.workflow_engine import WorkflowEngine
from lucius.bus.port import Bus
from lucius.ledger.store import TableStore
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
    store, configuration = await _open(settings, storage, data)
    return Embedded(
        store,
        settings,
        layout=layout_of(storage),
        data=data,
        base_url=base_url,
        protocols=protocols,
        shared=is_shared(settings),
        bus=bus,
        configuration=configuration,
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
    engine: WorkflowEngine | None = None,
) -> Embedded:
    """One part, beside others that use the same folder."""
    store, configuration = await _open(settings, storage, data)
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
        configuration=configuration,
    )


async def _open(settings: Settings, storage: str, data: Path) -> tuple[TableStore, AppConfiguration | None]:
    store = await open_store(settings, storage, data)
    try:
        if settings.table_account.wanted:
            await claim_layout(store, settings.tables, layout_of(storage))
        await asyncio.to_thread(mark_layout, data, storage)
        return store, await open_app_configuration(settings, data)
    except BaseException:
        await store.close()
        raise
