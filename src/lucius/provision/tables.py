"""The tables of a storage account, as a place to provision."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from lucius.ledger.azure_tables_wire import Refused, Trouble, Wire
from lucius.provision.carry_out import Job, NotDone, NoWayIn
from lucius.provision.plan import Thing

TRIES: Final = 3
AGAIN_SECONDS: Final = 1.0


class TablesPlace:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def look(self, wanted: Sequence[Thing]) -> list[Thing]:
        for _ in range(TRIES - 1):
            found = await self._wire.list_tables()
            if isinstance(found, frozenset | Refused):
                break
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            found = await self._wire.list_tables()
        if not isinstance(found, frozenset):
            raise NoWayIn(_reason(found))
        return [thing for thing in wanted if thing.name.lower() in found]

    async def work(self, jobs: Sequence[Job]) -> Mapping[str, NotDone]:
        """A table has nothing that could be changed: each is to be made."""
        not_done: dict[str, NotDone] = {}
        for job in jobs:
            if (trouble := await self._wire.create_table(job.thing.name)) is not None:
                not_done[job.thing.name] = NotDone(reason=_reason(trouble), closed=True)
        return not_done


def _reason(trouble: Trouble) -> str:
    text = getattr(trouble, "reason", "there is no table service")
    if isinstance(trouble, Refused):
        return f"refused ({text}): it takes the role Storage Table Data Contributor"
    return f"cannot be reached ({text})"
