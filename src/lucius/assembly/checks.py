"""What `/readyz` asks of the house itself."""

from lucius.api.health import Degraded
from lucius.assembly.engine_room import Check
from lucius.ledger.names import Tables
from lucius.ledger.quarantine import Quarantine
from lucius.ledger.store import StoreError, TableStore, put
from lucius.registry.port import Registry


def ledger_check(store: TableStore, tables: Tables) -> Check:
    # A full disk lets everybody read and takes an empty commit: only a write tells.
    written = put(tables.meta, "checks", "ready", b"{}")

    async def check() -> str | None:
        try:
            await store.commit([written])
        except StoreError as fault:
            return str(fault)
        return None

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
