"""How a process begins: its settings, what it runs on, and what is said of both at its start.

In: options and the environment. Out: `Start`, or `BadSetting`, whose text says what to do.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from lucius.assembly.azure.app_configuration import export_settings
from lucius.assembly.choices import RunsOn, Sources, unused_variables, with_store
from lucius.assembly.stores import MEMORY_STORAGE
from lucius.cli.options import STORAGE_VARIABLE, STORAGES, DevOptions, PartOptions, one_of
from lucius.cli.serving import logs_are_plain, say
from lucius.cli.tls_ports import check_tls
from lucius.settings import Settings, StoreKind, read_settings
from lucius.settings.declaration import Process
from lucius.settings.table import TABLE

Stored = TypeVar("Stored", DevOptions, PartOptions)

log = structlog.get_logger("lucius.cli")


class Start(msgspec.Struct, frozen=True, kw_only=True):
    settings: Settings
    sources: Sources


def read_start(data: Path | None, store: str = "") -> Start:
    """`data`: where the copy of App Configuration is kept; `store`: as `--store` names it, or "". Raises
    `BadSetting`."""
    exported = export_settings(os.environ, data)
    settings = with_store(read_settings(os.environ), store)
    check_tls(settings.tls)
    return Start(settings=settings, sources=Sources(env=os.environ, exported=exported))


def report_start(start: Start, processes: Collection[Process], runs_on: RunsOn) -> dict[str, str]:
    """Logs what the process runs on, and warns of variables that it does not use. Returns these."""
    log.info("runs_on", **runs_on.fields())
    unused = unused_variables(start.sources, processes, runs_on, start.settings)
    if not unused:
        return unused
    if logs_are_plain(start.settings):
        for name, why in unused.items():
            say(f"warning: {name} is set and not used here: {why}")
    else:
        log.warning("variables_not_used", variables=[f"{name}: {why}" for name, why in unused.items()])
    return unused


def env_of(process: Process, env: Mapping[str, str]) -> dict[str, str]:
    """What a process of ours is started with: without variables of Lucius that it does not read."""
    others = {declared.name for declared in TABLE if process not in declared.read_by}
    return {name: value for name, value in env.items() if name not in others}


def with_storage(options: Stored, settings: Settings) -> Stored:
    """Where no storage was asked for, the one that the settings name: App Configuration may have set them. A
    store in memory has a layout of its own."""
    if settings.store is StoreKind.MEMORY:
        return msgspec.structs.replace(options, storage=MEMORY_STORAGE)
    if options.storage:
        return options
    named = os.environ.get(STORAGE_VARIABLE, "").strip() or STORAGES[0]
    return msgspec.structs.replace(options, storage=one_of(STORAGE_VARIABLE, named, STORAGES))
