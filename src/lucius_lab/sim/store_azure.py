"""Azure's tables as the store that a simulation shares: the adapter of a deployment, on a real Azurite."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

from lucius.ledger.azure_tables.store import AzureTablesStore
from lucius.ledger.azure_tables.wire import TableWire
from lucius_lab.sim.store_server import ServerThread, SharedServerStore

PATIENCE_SECONDS_MAX: Final = 60.0


class AzureTables:
    """One account, and the thread that talks to it."""

    def __init__(self, connection_string: str) -> None:
        self.thread = ServerThread("azure tables")
        self.wire = self.thread.now(TableWire.to_connection_string(connection_string))

    def close(self) -> None:
        self.thread.now(self.wire.close())
        self.thread.end()


@contextmanager
def azure_tables(connection_string: str) -> Iterator[AzureTables]:
    account = AzureTables(connection_string)
    try:
        yield account
    finally:
        account.close()


class SharedAzureStore(SharedServerStore):
    """Under a prefix of its own."""

    def __init__(self, account: AzureTables, prefix: str) -> None:
        writes = count(1)
        inner = AzureTablesStore(
            account.wire,
            prefix=prefix,
            new_write_id=lambda: f"{next(writes):016x}",
            patience_seconds_max=PATIENCE_SECONDS_MAX,
        )
        super().__init__(account.thread, inner)
