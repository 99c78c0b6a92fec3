"""Faults: the seed decides them, each has a number for ever, and taking one out leaves the others alone."""

from lucius_lab.sim.faults import PRESETS, FaultKind, FaultPlan, Faults, Site
from lucius_lab.sim.loop import Process, SimLoop

LOOP = SimLoop(0, start_ms=0)
FIRST, SECOND = Process(LOOP, "first", 1), Process(LOOP, "second", 2)


def plan(rates: str = "default", *, only: frozenset[int] | None = None, quiet_at: float = 10.0) -> FaultPlan:
    return FaultPlan(rates=PRESETS[rates], quiet_at_seconds=quiet_at, only=only)


def drawn(faults: Faults, process: Process, times: int) -> list[tuple[FaultKind, int]]:
    found: list[tuple[FaultKind, int]] = []
    for _ in range(times):
        kind = faults.at(Site.COMMIT, process)
        if kind is not None:
            found.append((kind, faults.number))
    return found


def test_the_same_seed_decides_the_same_and_another_one_otherwise() -> None:
    first = drawn(Faults(1, plan()), FIRST, 2_000)
    assert first == drawn(Faults(1, plan()), FIRST, 2_000)
    assert first != drawn(Faults(2, plan()), FIRST, 2_000)
    assert {kind for kind, _ in first} == {
        FaultKind.STORE_CONFLICT,
        FaultKind.STORE_UNAVAILABLE,
        FaultKind.STORE_TIMEOUT_BEFORE,
        FaultKind.STORE_TIMEOUT_AFTER,
        FaultKind.CRASH_BEFORE,
        FaultKind.CRASH_AFTER,
    }


def test_rates_are_kept() -> None:
    faults = Faults(7, plan())
    dropped = sum(faults.at(Site.PUBLISH, FIRST) is FaultKind.BUS_DROP for _ in range(20_000))
    assert 0.8 < dropped / (20_000 * PRESETS["default"][FaultKind.BUS_DROP]) < 1.2
    assert drawn(Faults(7, plan("none")), FIRST, 5_000) == []


def test_what_one_process_does_does_not_disturb_the_faults_of_another() -> None:
    alone, together = Faults(3, plan()), Faults(3, plan())
    for _ in range(500):
        together.at(Site.COMMIT, SECOND)
        together.at(Site.READ, FIRST)
    assert drawn(alone, FIRST, 2_000) == drawn(together, FIRST, 2_000)


def test_a_subset_can_be_played_again() -> None:
    every = drawn(Faults(5, plan()), FIRST, 2_000)
    kept = frozenset(number for _, number in every[::3])
    assert drawn(Faults(5, plan(only=kept)), FIRST, 2_000) == every[::3]
    assert drawn(Faults(5, plan(only=frozenset())), FIRST, 2_000) == []


def test_nothing_goes_wrong_once_it_is_quiet() -> None:
    assert drawn(Faults(5, plan(quiet_at=0.0)), FIRST, 2_000) == []


def test_outsiders_do_not_crash() -> None:
    immortal = Process(LOOP, "clients", 3, mortal=False)
    kinds = {kind for kind, _ in drawn(Faults(5, plan()), immortal, 5_000)}
    assert FaultKind.STORE_CONFLICT in kinds
    assert not kinds & {FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER}


def test_what_happened_is_written_down_and_counted() -> None:
    faults = Faults(5, plan())
    faults.note(FaultKind.BUS_DROP, FIRST, "a message", 17)
    faults.note(FaultKind.BUS_DROP, SECOND, "another", 18)
    assert [(fault.number, fault.process, fault.what) for fault in faults.happened] == [
        (17, "first", "a message"),
        (18, "second", "another"),
    ]
    assert faults.counts() == {FaultKind.BUS_DROP: 2}
