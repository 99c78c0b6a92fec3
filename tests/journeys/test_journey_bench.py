"""`lucius bench` broken off: it ends at once, says nothing, and leaves no process and no file behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

SECONDS_MAX = 120.0
LOOK_SECONDS = 0.02


def processes_of(folder: Path) -> dict[int, str]:
    """Those that keep their temporary files in this folder, each with its command line."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile, or is not ours
            if f"TMPDIR={folder}" in (process / "environ").read_text(errors="replace").split("\0"):
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
    return found


def _hear_signals() -> None:
    """Whoever runs the tests in the background may have had them ignored, which children inherit."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Bench:
    """One run in a process group of its own, as a terminal gives it."""

    def __init__(self, home: Path, part: str) -> None:
        self.folder = home / "temporary"
        self.folder.mkdir()
        self._said = home / "said"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lucius", "bench", "--jobs", "1000000", "--only", part],
                env={**os.environ, "TMPDIR": str(self.folder)},
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_hear_signals,
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def until_said(self, text: str) -> None:
        self._until(lambda: text in self.said)

    def until_beside(self, module: str) -> None:
        """Until a process of this module runs."""
        self._until(lambda: any(module in line for line in processes_of(self.folder).values()))

    def _until(self, seen: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not seen():
            assert self._process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(LOOK_SECONDS)

    def interrupted(self) -> int:
        """The exit code after Ctrl-C, which a terminal sends to the whole group."""
        os.killpg(self._process.pid, signal.SIGINT)
        return self._process.wait(SECONDS_MAX)

    def told(self, number: signal.Signals) -> int:
        """The exit code after a signal that is sent to this process alone."""
        self._process.send_signal(number)
        return self._process.wait(SECONDS_MAX)

    def end(self) -> None:
        for pid in processes_of(self.folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(SECONDS_MAX)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[[str], Bench]]:
    """Starts one part of it."""
    with ExitStack() as stack:

        def start(part: str) -> Bench:
            begun = Bench(tmp_path, part)
            stack.callback(begun.end)
            return begun

        yield start


def check_nothing_is_left(run: Bench) -> None:
    assert "Traceback" not in run.said
    assert "never retrieved" not in run.said
    assert processes_of(run.folder) == {}
    assert list(run.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("part", "said", "module"),
    [
        ("in-process", "The machine itself", None),
        ("in-process", "Services in process", None),
        ("in-process", "Services in process", "lucius_lab.bench.server"),
        ("workers", "Three external HTTP workers", "lucius_lab.bench.worker"),
    ],
)
def test_an_interrupt_ends_all_of_it(
    part: str, said: str, module: str | None, bench: Callable[[str], Bench]
) -> None:
    run = bench(part)
    run.until_said(said)
    if module is not None:
        run.until_beside(module)
    assert run.interrupted() == 130
    check_nothing_is_left(run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_process_beside_it_outlives_it(number: signal.Signals, bench: Callable[[str], Bench]) -> None:
    run = bench("workers")
    run.until_beside("lucius_lab.bench.server")
    assert run.told(number) == 130
    check_nothing_is_left(run)
