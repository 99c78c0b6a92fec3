"""App Configuration through Microsoft's own library.

In: where the store is, who we are to it, a label. Out: readings, or `ConfigurationUnavailable`. The library
looks at the sentinel, fetches, fails over to replicas and resolves references to a key vault. Around it
stands what keeps one bad entry or one bad hour from doing harm: a reference that cannot be resolved spoils
only its own key, flags are read apart from the rest, and nothing of what the library says about a failure
is passed on, since it may hold more than a reader should see.
"""

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
import structlog
from azure.appconfiguration import ConfigurationSetting, SecretReferenceConfigurationSetting
from azure.appconfiguration.aio import AzureAppConfigurationClient
from azure.appconfiguration.provider import SettingSelector
from azure.appconfiguration.provider.aio import AzureAppConfigurationProvider, load
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import AioHttpTransport
from azure.keyvault.secrets import KeyVaultSecretIdentifier
from azure.keyvault.secrets.aio import SecretClient

from lucius.registry.app_configuration.values import (
    FLAG_PREFIX,
    PREFIX,
    SENTINEL,
    ConfigurationSnapshot,
    ConfigurationUnavailable,
    Flags,
    flags_of,
)

NO_LABEL: Final = "\0"
# The library sleeps, and everything with it, when it gives up within its first five seconds.
START_SECONDS_MAX: Final = 10
CALL_SECONDS_MAX: Final = 30
CONNECT_SECONDS_MAX: Final = 5
READ_SECONDS_MAX: Final = 10
RETRIES_MAX: Final = 1
# Everything is read again now and then: the library does not see a sentinel that was written as it started.
REREAD_SECONDS: Final = 3600
SECRETS_EVERY_SECONDS: Final = 300
VAULTS_MAX: Final = 16


_UNRESOLVED: Final = "\0unresolved"
_NOWHERE: Final = "https://unreadable.invalid/secrets/unreadable"

log = structlog.get_logger("lucius.registry")

SecretResolver = Callable[[str], str | Awaitable[str]]
"""From the URI of a secret to its value."""


class ConfigurationAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A connection string, or an endpoint and the identity with which it is asked."""

    connection_string: str | None = None
    endpoint: str | None = None
    label: str | None = None
    refresh_seconds: int = 30

    @property
    def place(self) -> str:
        """The address, without what opens it."""
        if self.endpoint is not None:
            return self.endpoint.rstrip("/")
        parts = dict(part.partition("=")[::2] for part in (self.connection_string or "").split(";"))
        return parts.get("Endpoint", "").rstrip("/")

    @property
    def labels(self) -> list[str]:
        """What has our label comes later, and so wins over what has none."""
        return [NO_LABEL] if self.label is None else [NO_LABEL, self.label]

    @property
    def source(self) -> str:
        return f"{self.place}#{self.label or ''}"

    def __repr__(self) -> str:
        return f"Where({self.place}, {self.label})"


class AzureAppConfiguration:
    def __init__(
        self,
        where: ConfigurationAddress,
        *,
        clock: Callable[[], float],
        credential: AsyncTokenCredential | None = None,
        secrets: SecretResolver | None = None,
        secrets_every_seconds: int = SECRETS_EVERY_SECONDS,
    ) -> None:
        """`credential`: opens the endpoint, and the key vaults unless `secrets` answers for them.
        `clock`: seconds that only grow."""
        self._where = where
        self._clock = clock
        self._credential = credential
        self._secrets = secrets
        self._secrets_every_seconds = secrets_every_seconds
        self._vaults: dict[str, SecretClient] = {}
        self._secret_keys: set[str] = set()
        self._provider: AzureAppConfigurationProvider | None = None
        self._transport: AioHttpTransport | None = None
        self._load_due_at = self._flags_due_at = 0.0
        self._flags = Flags()
        self._last_fault = ""
        self._last: ConfigurationSnapshot | None = None
        self._changed = False
        # It warns of every failed try, and there are many in an outage: here it is logged once.
        logging.getLogger("azure.appconfiguration.provider").setLevel(logging.ERROR)

    async def read(self) -> ConfigurationSnapshot:
        """What the store has, asked for again if it is time to; the same value again while nothing changed.
        Raises `ConfigurationUnavailable`."""
        now = self._clock()
        if now >= self._load_due_at:
            # Not again at once if it fails: meanwhile a provider that is there goes on.
            self._load_due_at = now + self._where.refresh_seconds
            provider = await self._load()
            self._load_due_at = self._clock() + REREAD_SECONDS
        elif self._provider is not None:
            provider = self._provider
            await self._refresh(provider)
        else:
            raise ConfigurationUnavailable(self._last_fault)
        if now >= self._flags_due_at:
            self._flags_due_at = now + self._where.refresh_seconds
            before, self._flags = self._flags, await self._read_flags()
            self._changed = self._changed or self._flags != before
        if self._last is None or self._changed:
            self._last, self._changed = self._reading(provider), False
        return self._last

    async def _refresh(self, provider: AzureAppConfigurationProvider) -> None:
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                await provider.refresh()
        except Exception as fault:
            raise _unavailable(fault) from None

    async def _load(self) -> AzureAppConfigurationProvider:
        transport = _new_transport()
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                provider = await load(**self._options(transport))
        except Exception as fault:
            await transport.close()  # the library would leave it open
            reason = _unavailable(fault)
            self._last_fault = str(reason)
            raise reason from None
        except BaseException:
            await transport.close()
            raise
        await self._close_provider()
        self._provider, self._transport = provider, transport
        self._note_change()
        return provider

    def _note_change(self) -> None:
        self._changed = True

    def _options(self, transport: AioHttpTransport) -> dict[str, Any]:
        where, labels = self._where, self._where.labels
        opened: dict[str, Any] = {"connection_string": where.connection_string}
        if where.connection_string is None:
            opened = {"endpoint": where.endpoint, "credential": self._credential}
        return opened | {
            "selects": [SettingSelector(key_filter=f"{PREFIX}*", label_filter=label) for label in labels],
            "refresh_on": [(f"{PREFIX}{SENTINEL}", label) for label in labels],
            "refresh_interval": where.refresh_seconds,
            "secret_resolver": self._resolve,
            "secret_refresh_interval": self._secrets_every_seconds,
            "configuration_mapper": self._look_at,
            "on_refresh_success": self._note_change,
            "startup_timeout": START_SECONDS_MAX,
            "retry_total": RETRIES_MAX,
            "transport": transport,
        }

    async def _look_at(self, setting: ConfigurationSetting) -> None:
        """Of every entry, before the library makes a value of it."""
        if not isinstance(setting, SecretReferenceConfigurationSetting):
            self._secret_keys.discard(setting.key)
            return
        self._secret_keys.add(setting.key)
        try:
            KeyVaultSecretIdentifier(setting.secret_id or "")
        except ValueError:
            setting.secret_id = _NOWHERE

    async def _resolve(self, uri: str) -> str:
        self._note_change()  # secrets are also resolved without anything else being read
        if uri == _NOWHERE:
            return _UNRESOLVED
        try:
            if self._secrets is None:
                return await self._from_vault(uri) or _UNRESOLVED
            found = self._secrets(uri)
            return (await found if inspect.isawaitable(found) else found) or _UNRESOLVED
        except Exception as fault:  # whatever it was, it spoils this one key and no other
            log.warning("key_vault_reference_not_resolved", error=type(fault).__name__)
            return _UNRESOLVED

    async def _from_vault(self, uri: str) -> str | None:
        if self._credential is None:
            return None
        secret = KeyVaultSecretIdentifier(uri)
        client = self._vaults.get(secret.vault_url)
        if client is None:
            if len(self._vaults) >= VAULTS_MAX:
                return None
            client = SecretClient(vault_url=secret.vault_url, credential=self._credential)
            self._vaults[secret.vault_url] = client
        async with asyncio.timeout(CALL_SECONDS_MAX):
            return (await client.get_secret(secret.name, version=secret.version)).value

    def _reading(self, provider: AzureAppConfigurationProvider) -> ConfigurationSnapshot:
        values: dict[str, str] = {}
        faults: dict[str, str] = {}
        for name, value in provider.items():
            key = name.removeprefix(PREFIX)
            if key == name:
                continue
            if value == _UNRESOLVED:
                faults[key] = "is a reference to a key vault that cannot be resolved"
            else:
                # The library has parsed what is declared to be JSON.
                values[key] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return ConfigurationSnapshot(
            values=values,
            features=self._flags.by_name,
            secret_keys=frozenset(key.removeprefix(PREFIX) for key in self._secret_keys),
            faults=faults,
            problems=self._flags.problems,
        )

    async def _read_flags(self) -> Flags:
        """Those with our label win. If they cannot be had, those of the last time go on."""
        transport, found = _new_transport(), []
        wanted = f"{FLAG_PREFIX}*"
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX), self._client(transport) as client:
                for label in self._where.labels:
                    pages = client.list_configuration_settings(key_filter=wanted, label_filter=label)
                    found.extend([(setting.key, setting.value or "") async for setting in pages])
        except Exception as fault:
            log.warning("feature_flags_not_read", error=type(fault).__name__)
            reason = "the feature flags of App Configuration cannot be read; those known before go on"
            return Flags(by_name=self._flags.by_name, problems=(reason,))
        finally:
            await transport.close()
        return flags_of(found)

    def _client(self, transport: AioHttpTransport) -> AzureAppConfigurationClient:
        where, options = self._where, {"retry_total": RETRIES_MAX, "transport": transport}
        if where.connection_string is not None:
            return AzureAppConfigurationClient.from_connection_string(where.connection_string, **options)
        assert self._credential is not None, "an endpoint is opened with a credential"
        return AzureAppConfigurationClient(where.endpoint or "", self._credential, **options)

    async def close(self) -> None:
        await self._close_provider()
        for client in self._vaults.values():
            await client.close()
        self._vaults.clear()

    async def _close_provider(self) -> None:
        if self._provider is not None:
            with suppress(AzureError, OSError):
                await self._provider.close()
        if self._transport is not None:
            await self._transport.close()
        self._provider = self._transport = None


def _new_transport() -> AioHttpTransport:
    return AioHttpTransport(connection_timeout=CONNECT_SECONDS_MAX, read_timeout=READ_SECONDS_MAX)


def _unavailable(fault: Exception) -> ConfigurationUnavailable:
    if isinstance(fault, TimeoutError) and len(fault.args) > 1 and isinstance(fault.args[1], list):
        # How the library gives up at its start: with the faults that made it.
        fault = next((one for one in reversed(fault.args[1]) if isinstance(one, Exception)), fault)
    status = getattr(fault, "status_code", None)
    reason = f"HTTP {status}" if isinstance(status, int) else type(fault).__name__
    return ConfigurationUnavailable(f"App Configuration cannot be read ({reason})")
