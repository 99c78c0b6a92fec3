"""The cloud on this machine: what `lucius dev --profile azure-local` brings along of Azure, unless a setting
names it. It speaks the protocols of Microsoft's libraries; it is not Azure."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from lucius.assembly.secrets import new_server_secret
from lucius.settings import Settings
from lucius_lab.emulators.own_azurite import own_azurite


@asynccontextmanager
async def azure_local(settings: Settings, data: Path) -> AsyncIterator[Settings]:
    """Settings that lead to tables and an App Configuration. Raises `StoreUnavailable`."""
    from lucius_lab.emulators.app_configuration.app import (
        AppConfigurationEmulator,
        connection_string,
        serving,
    )  # few processes need them

    async with AsyncExitStack() as stack:
        if not settings.table_account.wanted:
            settings = await stack.enter_async_context(own_azurite(settings, data))
        if not settings.app_configuration.wanted:
            secret = new_server_secret()
            emulator = AppConfigurationEmulator(now_seconds=time.time, secret=secret)
            port = await stack.enter_async_context(serving(emulator))
            configuration = msgspec.structs.replace(
                settings.app_configuration, connection_string=connection_string(port, secret)
            )
            settings = msgspec.structs.replace(settings, app_configuration=configuration)
        yield settings
