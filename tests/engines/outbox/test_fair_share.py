"""What leaves next from a lane in which several tenants wait."""

from collections import defaultdict, deque
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from lucius.engines.outbox.fair_share import TURNS_A_READ, FairShare, TenantTurns
from lucius.ledger.indexes import DispatchEntry, Indexes
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.names import Tables, dispatch_key, dispatch_partition, tenant_group, time_key
from lucius.ledger.rows import DispatchRow, encode
from lucius.ledger.store import Row, discard, put

LANE = 3
PLACE = Tables().dispatch, dispatch_partition("ocr", LANE)
TENANTS = ("acme", "beta", "Zürich", "a#b", "a")
WEIGHTS = {"beta": 3, "a": 2}


class CountingStore(MemoryStore):
    queries = 0

    async def query(
        self, table: str, partition: str, *, start: str = "", end: str | None = None, limit: int
    ) -> list[Row]:
        self.queries += 1
        return await super().query(table, partition, start=start, end=end, limit=limit)


class Lane:
    """A lane with rows of tenants, as a dispatcher sees it that hands out what it reads."""

    def __init__(self, weights: dict[str, int] | None = None) -> None:
        self.store = CountingStore(spans=True)
        indexes = Indexes(JobLedger(self.store, LayoutName.LEDGER, Tables()))
        self.share = FairShare(indexes, weights or {})
        self.turns = TenantTurns()
        self.waiting: dict[str, deque[str]] = defaultdict(deque)
        self._clock_ms = 1_000

    async def add(self, tenant: str, count: int = 1, *, as_before: bool = False, told: bool = True) -> None:
        """`as_before`: where earlier versions put rows."""
        for _ in range(count):
            self._clock_ms += 1
            job_id = f"job_{tenant}_{self._clock_ms}".replace("#", "_")
            row = DispatchRow(version=1, written_at_ms=0, step_id="s", attempt_no=1, lease_id="l")
            key = dispatch_key(tenant, self._clock_ms, job_id)
            if as_before:
                key = time_key(self._clock_ms, job_id)
            await self.store.commit([put(*PLACE, key, encode(row))])
            self.waiting[tenant].append(job_id)
        if told:
            self.turns.note_waiting(tenant)

    async def read(self, limit: int) -> list[str]:
        """The tenants whose rows are handed out, in order."""
        entries, more = await self.share.read("ocr", LANE, self.turns, limit)
        assert len(entries) <= limit
        for entry in entries:
            await self.store.commit([discard(*PLACE, entry.key)])
        tenants = [self._taken(entry) for entry in entries]
        assert more or not any(self.waiting.values())
        return tenants

    def _taken(self, entry: DispatchEntry) -> str:
        for tenant, jobs in self.waiting.items():
            if jobs and jobs[0] == entry.job_id:
                jobs.popleft()
                return tenant
        raise AssertionError(f"{entry.job_id} is not the first that waits of its tenant")


adds = st.tuples(st.sampled_from(TENANTS), st.integers(1, 40))
reads = st.integers(1, 24)


@given(st.lists(adds | reads, max_size=60))
async def test_no_tenant_gets_more_than_one_turn_ahead_of_another(steps: list[tuple[str, int] | int]) -> None:
    lane = Lane(WEIGHTS)
    turn_max = -(-24 // TURNS_A_READ)
    ahead: dict[tuple[str, str], list[float]] = {pair: [0.0] for pair in combinations(TENANTS, 2)}
    for step in steps:
        if isinstance(step, tuple):
            await lane.add(*step)
            continue
        taken = await lane.read(step)
        for one, other in ahead:
            course = ahead[one, other]
            if not (lane.waiting[one] and lane.waiting[other]):
                ahead[one, other] = [0.0]  # one of them had nothing to hand out
                continue
            gained = taken.count(one) / WEIGHTS.get(one, 1) - taken.count(other) / WEIGHTS.get(other, 1)
            course.append(course[-1] + gained)
            assert max(course) - min(course) <= turn_max + 1e-9, (one, other, course)
    while any(lane.waiting.values()):
        assert await lane.read(8)


async def test_a_flood_of_one_tenant_lets_another_pass_at_once() -> None:
    lane = Lane()
    await lane.add("flood", 500)
    await lane.read(1)
    for _ in range(20):
        await lane.add("quiet")
        assert "quiet" in [*await lane.read(1), *await lane.read(1)]


async def test_tenants_take_turns_whatever_was_submitted_first() -> None:
    lane = Lane()
    await lane.add("acme", 30)
    await lane.add("beta", 30)
    taken = [tenant for _ in range(20) for tenant in await lane.read(1)]
    assert taken.count("acme") == taken.count("beta") == 10
    assert all(first != second for first, second in pairwise(taken))


async def test_a_read_within_the_turn_of_the_only_tenant_says_that_there_is_more() -> None:
    lane = Lane(WEIGHTS)
    await lane.add("a", 7)
    await lane.read(4)
    await lane.read(1)
    assert await lane.read(8) == ["a", "a"]


async def test_a_turn_whose_rows_were_not_all_read_goes_on_before_another_begins() -> None:
    lane = Lane()
    await lane.add("a#b", 36)
    await lane.read(19)
    await lane.add("Zürich", 37)
    taken = await lane.read(23)
    assert abs(taken.count("a#b") - taken.count("Zürich")) <= 6


async def test_a_weight_gives_more_turns() -> None:
    lane = Lane({"beta": 3})
    await lane.add("acme", 50)
    await lane.add("beta", 50)
    taken = [tenant for _ in range(40) for tenant in await lane.read(1)]
    assert (taken.count("acme"), taken.count("beta")) == (10, 30)


async def test_one_tenant_alone_costs_one_query_a_read() -> None:
    lane = Lane()
    await lane.add("acme", 100)
    for _ in range(3):
        await lane.read(1)
    before = lane.store.queries
    for _ in range(20):
        await lane.read(1)
    assert lane.store.queries == before + 20


async def test_a_lane_that_fits_into_a_read_costs_one_query() -> None:
    lane = Lane()
    for tenant in TENANTS:
        await lane.add(tenant, 2)
    assert len(await lane.read(24)) == 10
    assert lane.store.queries == 1
    assert await lane.read(24) == []
    assert lane.store.queries == 2


async def test_what_another_process_wrote_is_found_with_the_next_look_round() -> None:
    lane = Lane()
    await lane.add("acme", 50)
    for _ in range(3):
        await lane.read(1)
    await lane.add("beta", told=False)
    assert await lane.read(1) == ["acme"]
    lane.turns.look_round()
    assert "beta" in [*await lane.read(1), *await lane.read(1)]


async def test_rows_of_an_earlier_version_leave_with_the_others() -> None:
    lane = Lane()
    await lane.add("old", 20, as_before=True)
    await lane.add("acme", 20)
    taken = [tenant for _ in range(10) for tenant in await lane.read(4)]
    assert taken[:8].count("old") == taken[:8].count("acme") == 4
    assert (taken.count("old"), taken.count("acme")) == (20, 20)


async def test_a_row_that_is_not_ready_ends_the_turn_of_its_tenant_alone() -> None:
    lane = Lane()
    await lane.add("later", 100)
    await lane.add("acme", 2)
    not_ready = tenant_group("later")
    entries, more = await lane.share.read(
        "ocr", LANE, lane.turns, 8, ready=lambda entry: entry.group != not_ready
    )
    assert [entry.group for entry in entries] == [tenant_group("acme")] * 2
    assert not more


async def test_rows_that_are_taken_already_are_passed_over() -> None:
    lane = Lane()
    await lane.add("acme", 10)
    first, _ = await lane.share.read("ocr", LANE, lane.turns, 4)
    second, _ = await lane.share.read("ocr", LANE, lane.turns, 4, skip={entry.job_id for entry in first})
    assert [entry.job_id for entry in [*first, *second]] == list(lane.waiting["acme"])[:8]


async def test_reads_of_different_sizes_give_no_tenant_more() -> None:
    """A worker that asks for one and one that asks for six take turns: each meets another tenant."""
    lane = Lane()
    for tenant in ("acme", "beta"):
        await lane.add(tenant, 200)
    counts = dict.fromkeys(("acme", "beta"), 0)
    for limit in (1, 6) * 25:
        for tenant in await lane.read(limit):
            counts[tenant] += 1
    assert abs(counts["acme"] - counts["beta"]) <= 2, counts
