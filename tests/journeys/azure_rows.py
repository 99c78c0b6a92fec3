"""All rows of a ledger in tables, read with Microsoft's library alone: nothing of Lucius but the names."""

import json
from pathlib import Path
from typing import Any

from azure.data.tables.aio import TableServiceClient

from lucius.ledger.azure_tables.entity import body_of
from lucius.ledger.azure_tables.names import key_from_azure, table_from_azure
from lucius_lab.emulators.azurite import connection_string


async def rows(data: Path, prefix: str = "lucius") -> dict[str, list[tuple[str, str, dict[str, Any]]]]:
    """By table: (partition, key, document) of every row in the Azurite that belongs to a data folder."""
    note = json.loads((data / "azurite" / "process.json").read_bytes())
    found: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    ours = connection_string(note["port"], note["key"])
    async with TableServiceClient.from_connection_string(ours) as service:
        async for table in service.list_tables():
            logical = table_from_azure(prefix, table.name)
            if logical is None:
                continue
            held = found.setdefault(logical, [])
            async for entity in service.get_table_client(table.name).list_entities():
                partition, key = key_from_azure(entity["PartitionKey"]), key_from_azure(entity["RowKey"])
                held.append((partition, key, json.loads(body_of(entity) or b"{}")))
    return found
