"""What a process runs on, where each choice came from, and which variables it does not use.

In: options, the environment, the settings. Out: choices, or `BadSetting` with what to do. An option goes
before a variable, and a variable before what the addresses say that are set. Variables from App Configuration
count like those of the environment.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from lucius.assembly.bus import MEMORY, NATS, SERVICE_BUS, SERVICE_BUS_EMULATOR
from lucius.assembly.stores import store_place
from lucius.settings import BadSetting, Settings, StoreKind
from lucius.settings.declaration import Process, Setting
from lucius.settings.kinds import STORE_URL
from lucius.settings.table import (
    TABLE,
    AppConfiguration,
    Carriers,
    Client,
    Nats,
    Postgres,
    ServiceBus,
    Storage,
    Temporal,
)

DEFAULT: Final = "default"
BY_COMMAND: Final = "the command"
STORE_OPTION: Final = "--store"

_PINNED: Final = (ServiceBus.lanes, ServiceBus.reply_prefix)
"""One value is taken, and nothing acts on it: they are in use wherever they are set."""
_BUS_ADDRESSES: Final[Mapping[str, tuple[Setting[Any], ...]]] = {
    SERVICE_BUS: (ServiceBus.connection, ServiceBus.namespace),
    NATS: (Nats.url,),
}
_BUS_SECTIONS: Final = {NATS: Nats, SERVICE_BUS: ServiceBus}


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    place: str = ""
    """Without secrets; empty: it has none."""
    origin: str
    """An option, a variable, `default`, or what else decided."""


NOT_USED: Final = Choice(name="none", origin=BY_COMMAND)


class RunsOn(msgspec.Struct, frozen=True, kw_only=True):
    store: Choice = NOT_USED
    bus: Choice = NOT_USED
    engine: Choice = NOT_USED
    registry: Choice = NOT_USED

    def fields(self) -> dict[str, str]:
        """For a line of the log."""
        choices: dict[str, Choice] = msgspec.structs.asdict(self)
        names = {name: " at ".join(filter(None, (c.name, c.place))) for name, c in choices.items()}
        return names | {f"{name}_from": choice.origin for name, choice in choices.items()}


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """The environment, and which of its variables App Configuration has set."""

    env: Mapping[str, str]
    exported: frozenset[str] = frozenset()

    def set_of(self, variables: Iterable[Setting[Any]]) -> str | None:
        """The name of the first one that is set."""
        return next((variable.name for variable in variables if variable.text(self.env)), None)

    def origin(self, *variables: Setting[Any]) -> str:
        name = self.set_of(variables)
        if name is None:
            return DEFAULT
        return f"{name} of App Configuration" if name in self.exported else name


# -- the bus -----------------------------------------------------------------------------------------------


def choose_bus(
    asked: str, sources: Sources, settings: Settings, *, offered: Sequence[str], usual: str = MEMORY
) -> Choice:
    """`asked`: by `--bus`, or "". `usual`: where nothing says which. Raises `BadSetting`."""
    if asked:
        return bus_choice(asked, "--bus", settings)
    if settings.bus is not None:
        if settings.bus not in offered:
            raise BadSetting(
                f"{Carriers.bus.name}={settings.bus}: this process takes {' or '.join(offered)}; "
                "--bus goes before the variable"
            )
        return bus_choice(settings.bus, sources.origin(Carriers.bus), settings)
    named = [bus for bus, addresses in _BUS_ADDRESSES.items() if sources.set_of(addresses) is not None]
    if len(named) > 1:
        both = " and ".join(sources.set_of(_BUS_ADDRESSES[bus]) or "" for bus in named)
        raise BadSetting(
            f"{both} are both set: say which bus is meant with {Carriers.bus.name}={SERVICE_BUS} or "
            f"{Carriers.bus.name}={NATS}, or unset one of them"
        )
    if named:
        return bus_choice(named[0], sources.origin(*_BUS_ADDRESSES[named[0]]), settings)
    return bus_choice(usual, DEFAULT, settings)


def bus_choice(name: str, origin: str, settings: Settings) -> Choice:
    places = {NATS: settings.nats.places, SERVICE_BUS: settings.service_bus.place}
    return Choice(name=name, place=places.get(name, ""), origin=origin)


# -- the store ---------------------------------------------------------------------------------------------


def with_store(settings: Settings, asked: str) -> Settings:
    """The settings with the store that `--store` names, or as they are. Raises `BadSetting`."""
    if asked:
        url = STORE_URL.parse(asked.strip())
        if url is None:
            raise BadSetting(f"{STORE_OPTION} {STORE_URL.rule}")
        settings = msgspec.structs.replace(settings, store_url=url)
    if settings.store is StoreKind.AZURE_TABLES and not settings.table_account.wanted:
        named = STORE_OPTION if asked else Storage.store.name
        raise BadSetting(f"{named} names Azure Tables, which needs {Storage.table_account.name}")
    return settings


def store_choice(asked: str, sources: Sources, settings: Settings, data: Path) -> Choice:
    kind = settings.store
    return Choice(
        name=kind.value,
        place="" if kind is StoreKind.MEMORY else store_place(settings, data),
        origin=STORE_OPTION if asked else sources.origin(Storage.store, Storage.table_account),
    )


# -- engine and registry -----------------------------------------------------------------------------------


def registry_choice(protocols: Path | None, sources: Sources, settings: Settings) -> Choice:
    configuration = settings.app_configuration
    names, origins = [], []
    if protocols is not None:
        names.append(f"folder {protocols}")
        origins.append("--protocols")
    if configuration.wanted:
        names.append(f"App Configuration at {configuration.place}")
        origins.append(sources.origin(AppConfiguration.connection, AppConfiguration.endpoint))
    return Choice(name=" over ".join([*names, "built-in"]), origin=", ".join(origins) or DEFAULT)


# -- what is not used --------------------------------------------------------------------------------------


def unused_variables(
    sources: Sources, processes: Collection[Process], runs_on: RunsOn, settings: Settings
) -> dict[str, str]:
    """Variables of Lucius in the environment on which nothing here acts, each with the reason. What comes
    from App Configuration is for all processes alike, and is not told of."""
    found: dict[str, str] = {}
    idle = _idle(runs_on, settings)
    for declared in TABLE:
        if not declared.text(sources.env) or declared.name in sources.exported or declared in _PINNED:
            continue
        if not set(declared.read_by) & set(processes):
            readers = ", ".join(process.value for process in declared.read_by)
            found[declared.name] = f"it is for {readers}"
        elif declared.name in idle:
            found[declared.name] = idle[declared.name]
    return found


def _idle(runs_on: RunsOn, settings: Settings) -> dict[str, str]:
    """Variables that other choices put out of use."""
    idle: dict[str, str] = {}
    bus = SERVICE_BUS if runs_on.bus.name == SERVICE_BUS_EMULATOR else runs_on.bus.name
    for name, section in _BUS_SECTIONS.items():
        if name != bus:
            why = f"the bus is {runs_on.bus.name} ({runs_on.bus.origin})"
            idle |= {declared.name: why for declared in section.settings()}
    if bus in (MEMORY, NOT_USED.name):
        idle[Carriers.reply_tokens.name] = "replies do not come over a bus"
    if runs_on.bus.origin.startswith("--") and settings.bus not in (None, bus):
        idle[Carriers.bus.name] = f"{runs_on.bus.origin} goes before it"
    if runs_on.engine.name == "outbox":
        why = f"the engine is outbox ({runs_on.engine.origin})"
        idle |= {declared.name: why for declared in Temporal.settings() if declared != Temporal.enabled}
    if runs_on.engine.origin == "--engine":
        idle[Temporal.enabled.name] = "--engine goes before it"
    if runs_on.store.name != StoreKind.AZURE_TABLES.value:
        why = f"the store is {runs_on.store.name} ({runs_on.store.origin})"
        idle |= {declared.name: why for declared in (Storage.table_account, Storage.table_prefix)}
    if runs_on.store.name != StoreKind.POSTGRESQL.value:
        why = f"the store is {runs_on.store.name} ({runs_on.store.origin})"
        idle |= {declared.name: why for declared in Postgres.settings()}
    if runs_on.store.origin.startswith("--"):
        idle[Storage.store.name] = f"{runs_on.store.origin} goes before it"
    if runs_on.engine == NOT_USED and runs_on.bus.name not in (MEMORY, NOT_USED.name):
        idle |= {declared.name: "its work comes from a bus" for declared in Client.settings()}
    return idle
