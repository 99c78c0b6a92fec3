"""A store on a real account, with tables of its own that are deleted in the end."""

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

from azure.data.tables.aio import TableServiceClient

from lucius.assembly.azure.identity import make_identity
from lucius.ledger.azure_tables.store import AzureTablesStore
from lucius.settings import read_settings

_numbers = count(1)
_STAMP = int(time.time())  # a name that was deleted cannot be taken again at once


@asynccontextmanager
async def real_store(account: str) -> AsyncIterator[AzureTablesStore]:
    settings = read_settings({"LUCIUS_TABLE_CONNECTION": account})
    asked, prefix = settings.table_account, f"s{_STAMP}n{next(_numbers)}"
    async with AsyncExitStack() as stack:
        credential: Any = None
        if asked.account_url is not None:
            credential = await stack.enter_async_context(make_identity(settings.identity))
        store = await AzureTablesStore.open(
            connection_string=asked.connection_string,
            account_url=asked.account_url,
            credential=credential,
            prefix=prefix,
            new_write_id=lambda: secrets.token_hex(8),
            patience_seconds_max=60.0,
        )
        stack.push_async_callback(_delete, asked.connection_string, asked.account_url, credential, prefix)
        stack.push_async_callback(store.close)
        yield store


async def _delete(text: str | None, url: str | None, credential: Any, prefix: str) -> None:
    service = (
        TableServiceClient(url, credential=credential)
        if url is not None
        else TableServiceClient.from_connection_string(text or "")
    )
    async with service:
        names = [table.name async for table in service.list_tables()]
        for name in names:
            if name.lower().startswith(f"{prefix}z"):
                await service.delete_table(name)
