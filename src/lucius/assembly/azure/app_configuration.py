"""App Configuration in a running process: the last good copy, the store, and what follows from them.

In: settings and a data folder. Out: a registry and modes that follow the store. The copy in the data folder
serves first, so that a start needs no other system; then the store is asked, and asked again while the
process runs.
"""

import asyncio
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from lucius.assembly.clock_and_ids import now_ms
from lucius.contracts.times import rfc3339
from lucius.core.budgets import Budget
from lucius.core.states import Mode
from lucius.jobs.submit import ModeConfig
from lucius.registry.app_configuration.last_good_copy import COPY_NAME, LastGoodCopy, read_copy, write_copy
from lucius.registry.app_configuration.registry import AppConfigurationRegistry
from lucius.registry.app_configuration.values import ConfigurationSnapshot, ConfigurationUnavailable
from lucius.registry.builtin import BuiltinRegistry
from lucius.settings import BadSetting, Settings, read_settings

if TYPE_CHECKING:  # what is not there where lucius[azure] was not installed
    from azure.core.credentials_async import AsyncTokenCredential

    from lucius.assembly.azure.identity import AzureIdentity
    from lucius.registry.app_configuration.azure import SecretResolver

# How long a start waits for the store: briefly where a copy serves, until it gives up where there is none.
START_WITH_COPY_SECONDS: Final = 3.0
START_WITHOUT_COPY_SECONDS: Final = 15.0

log = structlog.get_logger("lucius.assembly")


class NoConfiguration(BadSetting):
    """App Configuration was asked for and cannot be used here. The text holds no secret."""


class ConfigurationSource(Protocol):
    async def read(self) -> ConfigurationSnapshot:
        """Raises `ConfigurationUnavailable`."""
        ...

    async def close(self) -> None: ...


class LiveModes:
    """What App Configuration decides about modes, over what the settings say. Read anew for every command."""

    def __init__(self, registry: AppConfigurationRegistry, own: ModeConfig) -> None:
        self._registry = registry
        self._own = own
        self._seen: object = None
        self._modes = own

    def _now(self) -> ModeConfig:
        overrides = self._registry.overrides
        if overrides is not self._seen:
            allowed = overrides.burst_allowed
            kept = {tenant for tenant in self._own.burst_denied if not allowed.get(tenant, False)}
            self._modes = ModeConfig(
                global_mode=overrides.global_mode or self._own.global_mode,
                tenant_modes={**self._own.tenant_modes, **overrides.tenant_modes},
                burst_denied=frozenset(kept | {tenant for tenant, may in allowed.items() if not may}),
                tenant_limits={**self._own.tenant_limits, **overrides.tenant_limits},
                tenant_budgets={**self._own.tenant_budgets, **overrides.tenant_budgets},
            )
            self._seen = overrides
        return self._modes

    @property
    def global_mode(self) -> Mode:
        return self._now().global_mode

    @property
    def tenant_modes(self) -> Mapping[str, Mode]:
        return self._now().tenant_modes

    @property
    def burst_denied(self) -> frozenset[str]:
        return self._now().burst_denied

    @property
    def tenant_limits(self) -> Mapping[str, int]:
        return self._now().tenant_limits

    @property
    def tenant_budgets(self) -> Mapping[str, tuple[Budget, ...]]:
        return self._now().tenant_budgets


class LiveConfiguration:
    def __init__(
        self,
        settings: Settings,
        source: ConfigurationSource,
        name: str,
        data: Path | None,
        identity: "AzureIdentity | None" = None,
    ) -> None:
        """`name`: of the store and label, as the copy has it. `identity`: closed with it."""
        policy = settings.policy
        self.registry = AppConfigurationRegistry(lambda found: BuiltinRegistry(defaults=found), policy)
        self.modes = LiveModes(self.registry, settings.modes)
        self._source, self._identity = source, identity
        self._name = name
        self._file = None if data is None else data / COPY_NAME
        self._copied: LastGoodCopy | None = None
        self._seen: ConfigurationSnapshot | None = None

    async def begin(self) -> None:
        """The copy, if there is one; then what the store says, if it says it soon."""
        copy = None
        if self._file is not None:
            copy = await asyncio.to_thread(read_copy, self._file, self._name)
        if copy is not None:
            self._copied = copy
            self.registry.take(copy.reading)
        seconds = START_WITHOUT_COPY_SECONDS if copy is None else START_WITH_COPY_SECONDS
        try:
            async with asyncio.timeout(seconds):
                await self.look()
        except TimeoutError:
            self._in_trouble("App Configuration gives no answer")

    async def look(self) -> None:
        """A duty: asks the store if it is time to, and takes in what is new."""
        try:
            reading = await self._source.read()
        except ConfigurationUnavailable as fault:
            self._in_trouble(str(fault))
            return
        if self.registry.trouble is not None:
            log.info("app_configuration_is_back")
            self.registry.trouble = None
        news = reading is not self._seen and self.registry.take(reading)
        self._seen = reading
        if news:
            for problem in self.registry.problems():
                log.warning("protocol_refused", problem=problem)
        if news or self._copied is None:
            await self._keep()

    def _in_trouble(self, problem: str) -> None:
        since = None if self._copied is None else rfc3339(self._copied.read_at_ms)
        serves = "nothing was ever read from it" if since is None else f"what it said at {since} is served"
        if self.registry.trouble is None:
            log.warning("app_configuration_unavailable", error=problem)
        self.registry.trouble = f"{problem}; {serves}"

    async def _keep(self) -> None:
        copy = LastGoodCopy(
            source=self._name,
            read_at_ms=now_ms(),
            values=self.registry.good_values(),
            features=dict(self.registry.features),
            secrets=sorted(self.registry.secret_keys),
        )
        self._copied = copy
        if self._file is None:
            return
        try:
            await asyncio.to_thread(write_copy, self._file, copy)
        except OSError as fault:
            log.warning("app_configuration_not_copied", error=fault.strerror)

    async def check(self) -> str | None:
        """Ready with a copy, however old: without one, commands would be refused that are well known."""
        if self._seen is not None or self._copied is not None:
            return None
        return self.registry.trouble or "App Configuration was not read yet"

    async def close(self) -> None:
        await self._source.close()
        if self._identity is not None:
            await self._identity.close()


async def open_app_configuration(
    settings: Settings,
    data: Path | None,
    *,
    credential: "AsyncTokenCredential | None" = None,
    secrets: "SecretResolver | None" = None,
) -> LiveConfiguration | None:
    """None where the settings name no store. Raises `NoConfiguration`.

    `data`: where the copy is kept; None: nowhere.
    `credential`: of the process, which closes it; None: one is made here, if one is needed."""
    asked = settings.app_configuration
    if not asked.wanted:
        return None
    try:
        from lucius.assembly.azure.identity import NoIdentity, make_identity
        from lucius.registry.app_configuration.azure import AzureAppConfiguration, ConfigurationAddress
    except ModuleNotFoundError as fault:
        raise _missing(fault) from None
    own = None
    if credential is None and (asked.connection_string is None or settings.identity.kind is not None):
        try:
            credential = own = make_identity(settings.identity)
        except NoIdentity as fault:
            raise NoConfiguration(f"Cannot use App Configuration: {fault}.") from None
    where = ConfigurationAddress(
        connection_string=asked.connection_string,
        endpoint=asked.endpoint,
        label=asked.environment,
        refresh_seconds=max(1, asked.refresh_ms // 1000),
    )
    source = AzureAppConfiguration(where, clock=time.monotonic, credential=credential, secrets=secrets)
    if data is not None:
        await asyncio.to_thread(data.mkdir, parents=True, exist_ok=True, mode=0o700)
    found = LiveConfiguration(settings, source, where.source, data, identity=own)
    await found.begin()
    return found


def export_settings(
    env: MutableMapping[str, str], data: Path | None, *, secrets: "SecretResolver | None" = None
) -> frozenset[str]:
    """Sets the variables that App Configuration has and the environment has not, and returns their names.
    Raises `BadSetting`.

    A process that cannot learn its settings must not start with others: it might write to another ledger."""
    settings = read_settings(env)
    if not settings.app_configuration.wanted:
        return frozenset()
    found = asyncio.run(_exported(settings, data, env, secrets))
    missing = {name: value for name, value in found.items() if not env.get(name, "").strip()}
    env.update(missing)
    return frozenset(missing)


async def _exported(
    settings: Settings, data: Path | None, env: Mapping[str, str], secrets: "SecretResolver | None"
) -> dict[str, str]:
    found = await open_app_configuration(settings, data, secrets=secrets)
    assert found is not None
    await found.close()
    if (fault := await found.check()) is not None:
        raise NoConfiguration(f"Cannot start without settings: {fault}.")
    missing = [name for name in found.registry.missing_settings() if not env.get(name, "").strip()]
    if missing:
        raise NoConfiguration(f"App Configuration has no value that could be used for {', '.join(missing)}.")
    return found.registry.settings()


def _missing(fault: ModuleNotFoundError) -> Exception:
    if (fault.name or "").partition(".")[0] not in ("azure", "aiohttp"):
        return fault
    return NoConfiguration("App Configuration needs packages that are not here: install lucius[azure].")
