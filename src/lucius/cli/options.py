"""What the commands that run something were asked to do: checked values, ready to be acted on.

In: raw option texts. Out: frozen options, or a usage error that names what this version offers.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import typer

from lucius.core.states import JobState

ENGINES: Final = ("outbox", "temporal")
BUSES: Final = ("memory", "nats", "servicebus")
SHARED_BUSES: Final = ("nats", "servicebus")
"""For parts that are never alone: a bus in memory would not do."""
DEV_BUSES: Final = (*BUSES, "servicebus-emulator")
AZURE_LOCAL: Final = "azure-local"
PROFILES: Final = (AZURE_LOCAL,)
STORAGES: Final = ("ledger", "table", "memory")
SERVICES: Final = ("ocr", "embedding", "sis")
BENCH_PARTS: Final = (
    "in-process",
    "workers",
    "accepting",
    "flatness",
    "sdk",
    "temporal",
    "azure",
    "postgres",
    "postgres-flatness",
    "console",
)
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


STORAGE_VARIABLE: Final = "LUCIUS_STORAGE_BACKEND"
DATA: Final = Path(".lucius")  # where `lucius dev` and its parts keep theirs by default


class DevOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`services` are those to run, empty for none; `protocols` is a folder beside the built-in set. `engine`
    None: as LUCIUS_TEMPORAL_ENABLED says; `bus`, `store` and `storage` "": not said yet, see
    `choices` and `starting`; `profile` None: plain."""

    host: str = "127.0.0.1"
    port: int = 8420
    data: Path = DATA
    engine: str | None = None
    bus: str = ""
    store: str = ""
    storage: str = ""
    profile: str | None = None
    services: tuple[str, ...] = SERVICES
    protocols: Path | None = None
    sample: bool | None = None  # None: if none ran yet in this folder
    opens: bool = False  # the console, in the browser
    as_json: bool = False
    log_level: str | None = None  # None: as LUCIUS_LOG_LEVEL says


class PartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `lucius api` and `lucius reconciler` share. `port` None: nothing is listened on; `bus`, `store`
    and `storage` "": not said yet."""

    host: str = "127.0.0.1"
    port: int | None = None
    data: Path = DATA
    bus: str = ""
    store: str = ""
    storage: str = ""
    protocols: Path | None = None
    as_json: bool = False
    log_level: str | None = None


class ServiceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`name`: a reference service, or `module:handler`. `served`: the name to lease under, if another.
    `bus`: `memory` leases over HTTP; "": not said yet. `results`: where RESULTs are kept; None: a file if
    there can be one. `idle_seconds_max`: it ends once it had nothing to do for so long."""

    name: str
    served: str | None = None
    bus: str = ""
    concurrency: int = 8
    prefetch: int = 0
    drain_seconds: float = 30.0
    idle_seconds_max: float | None = None
    data: Path = DATA
    results: str | None = None
    health_host: str = "127.0.0.1"
    health_port: int | None = None
    as_json: bool = False
    log_level: str | None = None


class InvokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`callback_port` None: callbacks are served on the internal port alone."""

    part: PartOptions
    callback_host: str = "127.0.0.1"
    callback_port: int | None = None


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    health_host: str = "127.0.0.1"
    health_port: int | None = None
    as_json: bool = False
    log_level: str | None = None


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`ledger_jobs` None: as many as a run of this length takes."""

    jobs: int = 2_000
    in_flight: int = 64
    json_out: Path | None = None
    quick: bool = False
    only: str | None = None
    ledger_jobs: int | None = None


def id_given(value: str) -> str:
    """A blank one, as an unset variable of a script gives, would lead to another address of the API."""
    if not value.strip():
        raise typer.BadParameter("An id must not be blank.")
    return value


def ids_given(values: list[str] | None) -> list[str] | None:
    return None if values is None else [id_given(value) for value in values]


def file_to_write(option: str, path: Path | None) -> Path | None:
    """Asked for before the work whose results go there."""
    if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise typer.BadParameter(f"{option} {path}: nothing can be written there.")
    return path


def one_of(option: str, value: str, offered: Sequence[str]) -> str:
    """The value, if this version offers it; else a usage error."""
    chosen = value.strip().lower()
    if chosen not in offered:
        raise typer.BadParameter(f"{option} {value}: this version offers {', '.join(offered)}.")
    return chosen


def states_given(value: str) -> list[str]:
    """States of jobs, in capitals or not, with commas between them."""
    states = [state.strip().upper() for state in value.split(",")]
    for state in states:
        if state not in JobState.__members__:
            known = ", ".join(JobState.__members__)
            raise typer.BadParameter(f"{state or 'nothing'} is no state of a job; those are {known}.")
    return states


def services_of(value: str) -> tuple[str, ...]:
    """`all`, `none`, or a list with commas; in the given order, each once."""
    text = value.strip().lower()
    if text == "all":
        return SERVICES
    if text == "none":
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in SERVICES]
    if unknown or not names:
        offered = f"all, none, or a list of {', '.join(SERVICES)}"
        raise typer.BadParameter(f"--services {value}: this version offers {offered}.")
    return names


def bus_of(value: str | None, offered: Sequence[str]) -> str:
    return "" if value is None else one_of("--bus", value, offered)


def storage_of(value: str | None) -> str:
    return "" if value is None else one_of("--storage", value, STORAGES)
