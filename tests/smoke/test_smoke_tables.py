"""The suite of every table store, on a storage account."""

from collections.abc import AsyncIterator

import pytest
from tests.conformance import test_table_store, test_table_store_races
from tests.smoke.borrowed import borrowed
from tests.smoke.real_tables import real_store

from lucius.ledger.azure_tables.store import AzureTablesStore

globals().update(borrowed(test_table_store, "store"))
globals().update(borrowed(test_table_store_races, "store"))


@pytest.fixture
async def store(real_account: str) -> AsyncIterator[AzureTablesStore]:
    async with real_store(real_account) as ready:
        yield ready
