"""Comparing and putting right, on a place that is a dictionary: apply, then check, gives nothing."""

from collections.abc import Mapping, Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lucius.ledger.names import Tables
from lucius.provision.apply import (
    ActionFailed,
    ProvisionAction,
    ProvisionReport,
    ProvisionTask,
    apply,
    check,
    jobs_of,
)
from lucius.provision.plan import (
    DUPLICATE_DETECTION,
    DUPLICATE_WINDOW,
    FIXED,
    BusPlan,
    Resource,
    ResourceKind,
    Setting,
    compare,
    wanted_bus,
    wanted_tables,
)

WANTED = [
    *wanted_tables("lucius", Tables()),
    *wanted_bus(BusPlan(services=("ocr", "sis"), reply_subscription="lucius-invoker")),
]


class Played:
    """A place that does what it is told, but for what it refuses by name."""

    def __init__(
        self, things: Sequence[Resource] = (), refuses: Mapping[str, ActionFailed] | None = None
    ) -> None:
        self.things = {thing.name: thing for thing in things}
        self.refuses = refuses or {}
        self.jobs: list[ProvisionTask] = []

    async def look(self, wanted: Sequence[Resource]) -> list[Resource]:
        return list(self.things.values())

    async def work(self, jobs: Sequence[ProvisionTask]) -> Mapping[str, ActionFailed]:
        self.jobs += jobs
        for job in jobs:
            if job.thing.name in self.refuses:
                continue
            before = self.things.get(job.thing.name, job.thing)
            changed: dict[str, Setting] = {name: job.thing.settings[name] for name in job.settings}
            self.things[job.thing.name] = msgspec.structs.replace(
                before, settings={**before.settings, **changed}
            )
        return {
            job.thing.name: self.refuses[job.thing.name] for job in jobs if job.thing.name in self.refuses
        }


@st.composite
def some_state(draw: st.DrawFn) -> list[Resource]:
    """What is wanted, with some of it missing and some of it different."""
    found: list[Resource] = []
    for thing in draw(st.lists(st.sampled_from(WANTED), unique_by=lambda thing: thing.name, max_size=20)):
        names = draw(st.sets(st.sampled_from(sorted(thing.settings)))) if thing.settings else set()
        other: dict[str, Setting] = {
            name: not value if isinstance(value, bool) else f"not {value}"
            for name, value in thing.settings.items()
            if name in names
        }
        found.append(msgspec.structs.replace(thing, settings={**thing.settings, **other}))
    return found


@given(state=some_state())
async def test_apply_then_check_gives_only_what_cannot_be_changed(state: list[Resource]) -> None:
    place = Played(state)
    before = await check(place, WANTED)
    report = await apply(place, WANTED)
    fixed = [finding for finding in before.findings if not finding.changeable]
    assert list(report.findings) == [finding for finding in report.findings if not finding.changeable]
    assert [(each.name, each.setting) for each in report.findings] == [
        (each.name, each.setting) for each in fixed
    ]
    assert {finding.setting for finding in fixed} <= FIXED
    again = await apply(place, WANTED)
    assert (again.done, again.findings) == ((), report.findings)
    assert len(report.done) == len(place.jobs)


async def test_from_nothing_to_everything() -> None:
    place = Played()
    assert len((await check(place, WANTED)).findings) == len(WANTED)
    assert (await apply(place, WANTED)).findings == ()
    assert await check(place, WANTED) == ProvisionReport()


def test_names_are_compared_as_azure_does_and_strangers_are_ignored() -> None:
    loud = [msgspec.structs.replace(thing, name=thing.name.upper()) for thing in WANTED]
    assert compare(WANTED, [*loud, Resource(kind=ResourceKind.TOPIC, name="somebody-elses")]) == []
    # A table is no topic, whatever it is called.
    topic = Resource(kind=ResourceKind.TOPIC, name="a")
    assert len(compare([topic], [Resource(kind=ResourceKind.TABLE, name="a")])) == 1


def test_without_detection_nothing_is_said_of_its_window() -> None:
    wanted = next(thing for thing in WANTED if thing.kind is ResourceKind.TOPIC)
    found = msgspec.structs.replace(
        wanted, settings={**wanted.settings, DUPLICATE_DETECTION: False, DUPLICATE_WINDOW: 0}
    )
    (finding,) = compare([wanted], [found])
    assert (finding.setting, finding.changeable) == (DUPLICATE_DETECTION, False)
    assert jobs_of([wanted], [finding]) == []


async def test_what_was_refused_is_told_with_the_reason() -> None:
    one, other = WANTED[0], WANTED[1]
    refused = ActionFailed(reason="not allowed", closed=True)
    report = await apply(Played(refuses={one.name: refused}), [one, other])
    assert [(each.name, each.why_not) for each in report.findings] == [(one.name, "not allowed")]
    assert report.done == (ProvisionAction(kind=other.kind, name=other.name, deed="created"),)
    assert report.closed


async def test_what_was_done_though_its_answer_was_lost_is_done() -> None:
    class Lossy(Played):
        async def work(self, jobs: Sequence[ProvisionTask]) -> Mapping[str, ActionFailed]:
            await super().work(jobs)
            return {job.thing.name: ActionFailed(reason="cannot be reached", closed=True) for job in jobs}

    report = await apply(Lossy(), WANTED[:2])
    assert (report.findings, report.notes, len(report.done)) == ((), (), 2)


def test_two_services_of_one_name_have_one_subscription() -> None:
    plan = BusPlan(services=("ocr", "ocr"), reply_subscription="r")
    assert len(wanted_bus(plan)) == 32 + 16 + 16
