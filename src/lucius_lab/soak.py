"""The long duties: what takes hours and looks for what a short run would miss.

In: a list of duties, each a command that does some units of work from a seed. Out: a state file that a later
run goes on from, and a table of what ran, how long, and what failed. A duty is run chunk by chunk; only a
chunk that came to its end counts, so an interrupt loses one chunk at most. A chunk that failed is run again
by the next run, until it passes.
"""

import argparse
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

FOLDER: Final = Path(".soak")
STATE_FILE: Final = "state.json"
LOCK_FILE: Final = "lock"
# A duty that fails so often without a success between has one cause, and more chunks would not show more.
FAILURES_IN_A_ROW_MAX: Final = 3
STOP_SECONDS_MAX: Final = 15
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
LOG_TAIL_BYTES: Final = 2_000
LOG_TAIL_LINES: Final = 8
INTERRUPTED: Final = 130

PYTHON: Final = "{python}"
COUNT: Final = "{count}"
SEED: Final = "{seed}"
SERVERS: Final = (PYTHON, "-m", "lucius_lab.schedules_servers", "--store")
PYTEST: Final = (PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider")

Say = Callable[[str], None]


class Duty(msgspec.Struct, frozen=True, kw_only=True):
    """A command with a position. Among its arguments COUNT stands for how many units to do, SEED for a number
    that no other chunk of the duty gets, in any round, and PYTHON for the interpreter."""

    name: str
    command: tuple[str, ...]
    unit: str = "runs"
    units: int = 1
    chunk_units: int = 1
    environment: Mapping[str, str] = {}
    chunk_seconds_max: int = 3_600


DUTIES: Final = (
    Duty(
        name="simulation",
        unit="schedules",
        units=500_000,
        chunk_units=5_000,
        command=(PYTHON, "-m", "lucius", "lab", "run", "--seeds", COUNT, "--first", SEED),
    ),
    Duty(
        name="forgetting",
        command=(*PYTEST, "-k", "forgotten", "tests/lab/test_schedules.py"),
        environment={"LUCIUS_SOAK": "1"},
    ),
    Duty(
        name="azure",
        unit="schedules",
        units=1_000,
        chunk_units=50,
        command=(*SERVERS, "azure", "--count", COUNT, "--seed", SEED),
    ),
    Duty(
        name="postgres",
        unit="schedules",
        units=10_000,
        chunk_units=500,
        command=(*SERVERS, "postgres", "--count", COUNT, "--seed", SEED),
    ),
    Duty(
        name="fuzz",
        unit="inputs",
        units=1_000_000,
        chunk_units=20_000,
        command=(PYTHON, "-m", "lucius_lab.fuzz.run", "--count", COUNT, "--seed", SEED),
    ),
    Duty(
        name="chaos",
        unit="kills",
        units=1_000,
        chunk_units=50,
        command=(PYTHON, "-m", "lucius_lab.chaos.run", "--kills", COUNT, "--seed", SEED),
    ),
    Duty(
        name="equivalence",
        unit="scripts",
        units=2_000,
        chunk_units=200,
        command=(PYTHON, "-m", "lucius", "lab", "equivalence", "--generated", COUNT, "--seed", SEED),
    ),
    Duty(
        name="journeys",
        command=(*PYTEST, "--timeout=3600", "tests/journeys", "tests/lab/test_crash_points.py"),
        environment={"LUCIUS_SOAK": "1"},
        chunk_seconds_max=2 * 3_600,
    ),
    Duty(
        name="model",
        command=(*PYTEST, "--timeout=0", "-k", "model", "tests/lab"),
        environment={"LUCIUS_SOAK": "1"},
        chunk_seconds_max=4 * 3_600,
    ),
    Duty(
        name="mutation",
        command=(PYTHON, "tools/mutation.py"),
        chunk_seconds_max=8 * 3_600,
    ),
)


class FailedChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that did not pass, with what it takes to see it again. `exit_code` None: it ran out of time."""

    start: int
    command: str
    exit_code: int | None
    log: str


class DutyProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a duty has come. A round is over when every unit was done and no chunk is left that failed."""

    round: int = 0
    next_unit: int = 0
    seconds: float = 0.0
    failures: tuple[FailedChunk, ...] = ()

    def over(self, duty: Duty) -> bool:
        return self.next_unit >= duty.units and not self.failures


class DutyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: what there is to say of a duty after a run."""

    duty: str
    round: int
    done: int
    units: int
    unit: str
    seconds: float
    over: bool
    failures: tuple[FailedChunk, ...]


class SoakRunning(Exception):
    """Another soak is at work in the same folder."""


class Journal:
    """The positions of all duties, kept in a file that is whole at any moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / STATE_FILE
        self._positions: dict[str, DutyProgress] = {}
        if self._file.exists():
            self._positions = msgspec.json.decode(self._file.read_bytes(), type=dict[str, DutyProgress])

    def __getitem__(self, duty: Duty) -> DutyProgress:
        return self._positions.get(duty.name, DutyProgress())

    def keep(self, duty: Duty, position: DutyProgress) -> None:
        self._positions[duty.name] = position
        fresh = self._file.with_suffix(".new")
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(self._positions), indent=2))
        fresh.replace(self._file)


def soak(duties: Sequence[Duty], folder: Path, say: Say) -> list[DutyRow]:
    """Runs what is left of the duties, in order. An interrupt leaves what was done in the journal."""
    journal = Journal(folder)
    if all(journal[duty].over(duty) for duty in duties):
        for duty in duties:
            journal.keep(duty, DutyProgress(round=journal[duty].round + 1))
    for duty in duties:
        _run_duty(duty, journal, say)
    return rows(duties, folder)


def rows(duties: Sequence[Duty], folder: Path) -> list[DutyRow]:
    journal = Journal(folder)
    return [_row(duty, journal[duty]) for duty in duties]


def _row(duty: Duty, position: DutyProgress) -> DutyRow:
    missed = sum(_chunk_units(duty, failure.start) for failure in position.failures)
    return DutyRow(
        duty=duty.name,
        round=position.round,
        done=min(position.next_unit, duty.units) - missed,
        units=duty.units,
        unit=duty.unit,
        seconds=round(position.seconds, 1),
        over=position.over(duty),
        failures=position.failures,
    )


def _run_duty(duty: Duty, journal: Journal, say: Say) -> None:
    in_a_row = 0
    for start in list(_starts(duty, journal[duty])):
        began = time.monotonic()
        failure = _run_chunk(duty, journal[duty].round, start, journal.folder)
        position = _moved(duty, journal[duty], start, failure, time.monotonic() - began)
        journal.keep(duty, position)
        say(_progress(duty, position))
        in_a_row = 0 if failure is None else in_a_row + 1
        if failure is not None:
            say(_complaint(failure))
        if in_a_row == FAILURES_IN_A_ROW_MAX:
            say(f"{duty.name}: {in_a_row} chunks failed in a row; the rest is left for the next run")
            return


def _starts(duty: Duty, position: DutyProgress) -> Iterator[int]:
    """Where the chunks begin that are left: those that failed, then those that were never run."""
    yield from (failure.start for failure in position.failures)
    yield from range(position.next_unit, duty.units, duty.chunk_units)


def _chunk_units(duty: Duty, start: int) -> int:
    return min(duty.chunk_units, duty.units - start)


def _moved(
    duty: Duty, position: DutyProgress, start: int, failure: FailedChunk | None, seconds: float
) -> DutyProgress:
    failures = tuple(earlier for earlier in position.failures if earlier.start != start)
    return DutyProgress(
        round=position.round,
        next_unit=max(position.next_unit, start + _chunk_units(duty, start)),
        seconds=position.seconds + seconds,
        failures=failures if failure is None else (*failures, failure),
    )


def _run_chunk(duty: Duty, round_no: int, start: int, folder: Path) -> FailedChunk | None:
    count, seed = _chunk_units(duty, start), round_no * duty.units + start
    meant = {PYTHON: sys.executable, COUNT: str(count), SEED: str(seed)}
    command = [meant.get(part, part) for part in duty.command]
    log = folder / f"{duty.name}-{seed}.log"
    with log.open("wb") as output:
        exit_code = _call(
            command, {**os.environ, **duty.environment}, output.fileno(), duty.chunk_seconds_max
        )
    if exit_code == 0:
        log.unlink()
        return None
    shown = [f"{name}={value}" for name, value in duty.environment.items()]
    shown += ["python" if part == PYTHON else meant.get(part, part) for part in duty.command]
    return FailedChunk(start=start, command=" ".join(shown), exit_code=exit_code, log=str(log))


def _call(command: list[str], environment: dict[str, str], output: int, seconds_max: int) -> int | None:
    """The exit code; None if time ran out. The command has a process group of its own, so that whatever it
    started ends with it."""
    process = subprocess.Popen(  # noqa: S603 - the commands are ours
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            _stop(process)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Asks first, so that it can clean up; then the processes that are left of the group are ended."""
    os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=STOP_SECONDS_MAX)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _progress(duty: Duty, position: DutyProgress) -> str:
    done = min(position.next_unit, duty.units)
    lane_leases = done / duty.units
    left = (
        f", about {_span(position.seconds / lane_leases - position.seconds)} to go"
        if 0 < lane_leases < 1
        else ""
    )
    took = _span(position.seconds)
    return f"{duty.name}: {done:,} of {duty.units:,} {duty.unit} ({lane_leases:.1%}) in {took}{left}"


def _complaint(failure: FailedChunk) -> str:
    how = "ran out of time" if failure.exit_code is None else f"ended with {failure.exit_code}"
    lines = Path(failure.log).read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").splitlines()
    tail = "".join(f"\n    {line}" for line in lines[-LOG_TAIL_LINES:])
    return f"  failed: {failure.command}\n  {how}; {failure.log} says{tail}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def table(found: Sequence[DutyRow]) -> str:
    lines = [f"{'duty':<12}{'round':>6}{'done':>12}{'of':>12} {'':<11}{'took':>14}  "]
    for row in found:
        verdict = (
            "passed" if row.over else f"{len(row.failures)} failed" if row.failures else "to be continued"
        )
        took = _span(row.seconds)
        counted = f"{row.round:>6}{row.done:>12,}{row.units:>12,} {row.unit:<11}"
        lines.append(f"{row.duty:<12}{counted}{took:>14}  {verdict}")
    lines += [f"  {failure.command}" for row in found for failure in row.failures]
    return "\n".join(lines)


def main(argv: Sequence[str], duties: Sequence[Duty] = DUTIES) -> int:
    names = [duty.name for duty in duties]
    parser = argparse.ArgumentParser(prog="python -m lucius_lab.soak", description="Run the long duties.")
    parser.add_argument("--only", action="append", choices=names, help="this duty alone; may be given again")
    parser.add_argument("--json", action="store_true", help="the final table as JSON")
    parser.add_argument("--fresh", action="store_true", help="forget how far earlier runs have come")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where positions and logs are kept")
    asked = parser.parse_args(argv)
    chosen = [duty for duty in duties if asked.only is None or duty.name in asked.only]
    asked.folder.mkdir(parents=True, exist_ok=True)
    try:
        with _alone(asked.folder), _interruptible():
            if asked.fresh:
                _forget(chosen, asked.folder)
            return _run(chosen, asked.folder, as_json=asked.json)
    except SoakRunning as busy:
        sys.stderr.write(f"{busy}\n")
        return 2


def _run(duties: Sequence[Duty], folder: Path, *, as_json: bool) -> int:
    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    interrupted = False
    try:
        found = soak(duties, folder, say)
    except KeyboardInterrupt:
        say("interrupted; the next run goes on from here")
        found, interrupted = rows(duties, folder), True
    sys.stdout.write((msgspec.json.encode(found).decode() if as_json else table(found)) + "\n")
    if interrupted:
        return INTERRUPTED
    return 0 if all(row.over for row in found) else 1


def _forget(duties: Sequence[Duty], folder: Path) -> None:
    journal = Journal(folder)
    for duty in duties:
        journal.keep(duty, DutyProgress())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the folder's lock. It goes with the process, whatever ends it."""
    with (folder / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SoakRunning(f"another soak is at work in {folder}") from None
        yield


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM interrupt, even where a shell in the background has set the first to be ignored; the
    commands inherit that."""
    before = {which: signal.signal(which, signal.default_int_handler) for which in STOP_SIGNALS}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
