"""Fair shares: which of the directives that wait in one lane leave next.

In: the dispatch index, in which the rows of a tenant stand together, by their rank. Out: rows, of one tenant
after another. In its turn a tenant gives a quarter of what was asked for when the round began, times its
weight; then the next one that has rows has its turn. Between two tenants of equal weight that both have rows
all the time, the counts that one process hands out never differ by more than one turn. Order within a tenant
stays as it is.

Nothing of this is stored. A process that starts begins with the first tenant; two processes on one lane are
fair each by itself. A read costs one query while the rows of a lane fit into it, or while one tenant alone
has some.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping

from lucius.ledger.indexes import DispatchEntry, Indexes
from lucius.ledger.names import NO_GROUP, end_of_group, tenant_group

TURNS_A_READ = 4
PASSED_PAGE_ROWS = 128
PASSED_ROWS_MAX = 1_000  # in one read; what stands behind them waits until they are fewer

Weights = Mapping[str, int]


class TenantTurns:
    """Whose turn it is in one lane. `left`: how many more rows the tenant gives before its turn is over.
    `share`: what a turn of weight 1 is worth in the round that is under way.
    `alone`: the one tenant that has rows here, as of the last look round the lane."""

    __slots__ = ("alone", "group", "left", "share")

    def __init__(self) -> None:
        self.group = NO_GROUP
        self.left = 0
        self.share = 0
        self.alone: str | None = None

    def note_waiting(self, tenant_norm: str) -> None:
        """Something of this tenant waits now."""
        if self.alone is not None and self.alone != tenant_group(tenant_norm):
            self.alone = None

    def look_round(self) -> None:
        """Another process may have written rows of other tenants."""
        self.alone = None

    def start(self) -> str:
        if self.alone is not None:
            return self.alone
        return self.group if self.left or not self.group else end_of_group(self.group)


class FairShare:
    def __init__(self, indexes: Indexes, weights: Weights) -> None:
        """`weights`: of tenants, by name; 1 for the others."""
        self._indexes = indexes
        self._weights = {tenant_group(name): weight for name, weight in weights.items()}

    async def read(
        self,
        service: str,
        lane: int,
        turns: TenantTurns,
        limit: int,
        *,
        skip: Collection[str] = (),
        ready: Callable[[DispatchEntry], bool] | None = None,
        over: Callable[[DispatchEntry], bool] | None = None,
    ) -> tuple[list[DispatchEntry], bool]:
        """Up to `limit` rows, and whether there may be more. `skip`: jobs whose rows are taken already.
        `ready`: a row that is not ends its tenant's turn. `over`: rows to pass over."""

        def rows(count: int, start: str, end: str | None) -> Awaitable[list[DispatchEntry]]:
            return self._indexes.dispatch(service, lane, count, start=start, end=end)

        return await _Round(rows, turns, self._weights, limit, skip, ready, over).go()


class _Round:
    """One read: looks round the lane, beginning with whose turn it is, until it has seen enough."""

    def __init__(
        self,
        rows: Callable[[int, str, str | None], Awaitable[list[DispatchEntry]]],
        turns: TenantTurns,
        weights: Weights,
        limit: int,
        skip: Collection[str],
        ready: Callable[[DispatchEntry], bool] | None,
        over: Callable[[DispatchEntry], bool] | None,
    ) -> None:
        self._over = over
        self._passed = 0
        self._query = rows
        self._turns = turns
        self._weights = weights
        self._limit = limit
        self._skip = skip
        self._ready = ready
        self._rows: dict[str, list[DispatchEntry]] = {}  # by tenant, in the order of their turns
        self._ended: set[str] = set()  # tenants whose next row is not ready
        self._beyond: set[str] = set()  # tenants that may have rows after those that were read
        self._is_whole = False  # the whole lane was seen, but for rows of those
        self._origin, self._origin_left, self._turns_share = turns.group, turns.left, turns.share
        self._fresh = -(-limit // TURNS_A_READ)

    async def go(self) -> tuple[list[DispatchEntry], bool]:
        turns = self._turns
        await self._look(turns.start())
        alone = self._is_whole and len(self._beyond) == 1 and self._beyond == self._rows.keys() | self._ended
        turns.alone = next(iter(self._beyond)) if alone else None
        taken = self._take()
        more = bool(self._beyond) or not self._is_whole or any(self._rows.values())
        if not more:
            turns.group, turns.left, turns.share = NO_GROUP, 0, 0
        return taken, more

    async def _look(self, start: str) -> None:
        at, page_max = start, self._limit + len(self._skip)
        if self._over is not None:
            page_max = max(page_max, PASSED_PAGE_ROWS)
        end: str | None = None
        while not self._is_whole:
            page = await self._query(page_max, at, end)
            self._sort(page)
            if len(page) == page_max:
                before, at = at, self._after(page[-1])
                self._is_whole = at <= before or (end is not None and at >= end)
                if self._turns.alone is not None and not self._passed:  # nothing stands behind its rows
                    self._is_whole = True
                    if page[-1].group not in self._ended:
                        self._beyond.add(page[-1].group)
            elif end is None and start:
                at, end = "", start
            else:
                self._is_whole = True
            if sum(min(len(rows), self._turn_of(group)) for group, rows in self._rows.items()) >= self._limit:
                return

    def _sort(self, page: list[DispatchEntry]) -> None:
        for entry in page:
            group = entry.group
            if group in self._ended or entry.job_id in self._skip:
                continue
            if self._over is not None and self._over(entry):
                self._passed += 1
                if self._passed >= PASSED_ROWS_MAX:
                    self._ended.add(group)
                continue
            if self._ready is not None and not self._ready(entry):
                self._ended.add(group)
                continue
            self._rows.setdefault(group, []).append(entry)

    def _after(self, last: DispatchEntry) -> str:
        """Where to read on after a full page: within the same tenant only for the sake of its turn."""
        group = last.group
        if group not in self._ended:
            if len(self._rows.get(group, ())) < self._turn_of(group):
                return f"{last.key}\x00"
            self._beyond.add(group)
        return end_of_group(group)

    def _share_of(self, group: str, share: int) -> int:
        return share * self._weights.get(group, 1)

    def _round_share(self, group: str) -> int:
        """What a turn is worth in the round of this tenant: all of a round get the same, however much each
        read asks for, or those that meet the large reads would get more."""
        in_round = group > self._origin or (group == self._origin and self._origin_left > 0)
        return self._turns_share if in_round and self._turns_share else self._fresh

    def _turn_of(self, group: str) -> int:
        """Its first turn of this read may be the rest of one."""
        if self._origin_left and self._origin == group:
            return self._origin_left
        return self._share_of(group, self._round_share(group))

    def _take(self) -> list[DispatchEntry]:
        turns = self._turns
        shares = {group: self._turn_of(group) for group in self._rows}
        rounds = {group: self._round_share(group) for group in self._rows}
        taken: list[DispatchEntry] = []
        while any(self._rows.values()):
            for group, rows in self._rows.items():
                if not rows and group in self._beyond:  # its turn, with rows that were not read
                    turns.group, turns.left, turns.share = group, shares[group], rounds[group]
                    return taken
                count = min(shares[group], len(rows), self._limit - len(taken))
                if count:
                    taken += rows[:count]
                    del rows[:count]
                    turns.group, turns.left, turns.share = group, shares[group] - count, rounds[group]
                # A turn whose other rows were not read goes on in the next read.
                if len(taken) == self._limit or (count < shares[group] and group in self._beyond):
                    return taken
            if not self._is_whole:
                return taken
            rounds = dict.fromkeys(self._rows, self._fresh)
            shares = {group: self._share_of(group, self._fresh) for group in self._rows}
        return taken
