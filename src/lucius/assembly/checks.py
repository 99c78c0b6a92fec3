"""What `/readyz` asks of the house itself."""

import asyncio
from pathlib import Path

from lucius.api.health import Degraded
from lucius.assembly.workflow_engine import Check
from lucius.ledger.names import Tables
from lucius.ledger.quarantine import Quarantine
from lucius.ledger.sqlite.disk_room import room_fault
from lucius.ledger.store import StoreError, TableStore, put
from lucius.registry.port import Registry


def ledger_check(store: TableStore, tables: Tables, file: Path | None = None) -> Check:
    """`file`: where the store keeps all that it is given; None: elsewhere, or nowhere."""
    # A full disk lets everybody read and takes an empty commit: only a write tells.
    written = put(tables.meta, "checks", "ready", b"{}")

    async def check() -> str | None:
        try:
            await store.commit([written])
        except StoreError as fault:
            return str(fault)
        return None if file is None else await asyncio.to_thread(room_fault, file)

    return check


def rows_check(quarantine: Quarantine) -> Check:
    """Damage stops only the jobs that it hit, so that the process stays ready and says so."""

    async def check() -> str | None:
        words = quarantine.words()
        return None if words is None else Degraded(words)

    return check


def protocols_check(registry: Registry) -> Check:
    async def check() -> str | None:
        return None if registry.all() else "no protocol is known"

    return check
