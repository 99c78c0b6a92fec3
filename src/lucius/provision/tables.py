"""The tables of a storage account, as a place to provision."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from lucius.ledger.azure_tables.wire import TableWire, Trouble, WireRefused
from lucius.provision.apply import AccessFailed, ActionFailed, ProvisionTask
from lucius.provision.plan import Resource

TRIES: Final = 3
AGAIN_SECONDS: Final = 1.0


class TablesTarget:
    def __init__(self, wire: TableWire) -> None:
        self._wire = wire

    async def look(self, wanted: Sequence[Resource]) -> list[Resource]:
        for _ in range(TRIES - 1):
            found = await self._wire.list_tables()
            if isinstance(found, frozenset | WireRefused):
                break
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            found = await self._wire.list_tables()
        if not isinstance(found, frozenset):
            raise AccessFailed(_reason(found))
        return [thing for thing in wanted if thing.name.lower() in found]

    async def work(self, jobs: Sequence[ProvisionTask]) -> Mapping[str, ActionFailed]:
        """A table has nothing that could be changed: each is to be made."""
        not_done: dict[str, ActionFailed] = {}
        for job in jobs:
            if (trouble := await self._wire.create_table(job.thing.name)) is not None:
                not_done[job.thing.name] = ActionFailed(reason=_reason(trouble), closed=True)
        return not_done


def _reason(trouble: Trouble) -> str:
    text = getattr(trouble, "reason", "there is no table service")
    if isinstance(trouble, WireRefused):
        return f"refused ({text}): it takes the role Storage Table Data Contributor"
    return f"cannot be reached ({text})"
