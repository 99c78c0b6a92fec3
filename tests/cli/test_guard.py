"""Programs below a guard: they end when their owner is gone, however it ended, also those of `lucius dev`.
And what lies in the current folder is not taken for a part of Lucius."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lucius.guard import GRACE_SECONDS, KILLED_BY, NOT_STARTED, guarded, own_environment, own_python
from lucius_lab.emulators.azurite import SCRIPT, STOP_SECONDS_MAX, AzuriteFailed, find_script
from lucius_lab.processes import PartProcess

LOOK_SECONDS = 0.05
SOON_SECONDS = 10.0
ENDS_SECONDS_MAX = STOP_SECONDS_MAX + 15.0

pytestmark = [pytest.mark.xdist_group("temporal"), pytest.mark.timeout(300)]

# One write a line, also where nothing is buffered: the owner and the program write into one pipe.
SLEEPS = r"import os, time; os.write(1, b'1\n'); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"
# An owner that starts a program from a thread, lets the thread end, and goes on.
OWNER = """
import os, subprocess, sys, threading, time
from lucius.guard import guarded

def start():
    program = [sys.executable, "-c", sys.argv[1]]
    line = guarded(*program, grace_seconds=1.0)
    kept.append(subprocess.Popen(line, stdin=subprocess.PIPE, start_new_session=True))

kept = []
thread = threading.Thread(target=start)
thread.start()
thread.join()
os.write(1, b"%d\\n" % kept[0].pid)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    """One that has ended, and of which nobody was told, is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


def below(pid: int) -> dict[int, str]:
    """All processes that came of this one, and their command lines."""
    numbers = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]
    parents = {number: parent_of(number) for number in numbers}
    found: dict[int, str] = {}
    level = [pid]
    while level:
        level = [child for child, parent in parents.items() if parent in level]
        for child in level:
            try:
                line = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue
            found[child] = line.replace(b"\0", b" ").decode()
    return found


def until(true: Callable[[], bool], seconds: float = SOON_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(LOOK_SECONDS)


@pytest.fixture
def owner() -> Iterator[Callable[[str], tuple["subprocess.Popen[str]", int]]]:
    begun: list[subprocess.Popen[str]] = []

    def begin(program: str) -> tuple["subprocess.Popen[str]", int]:
        """The owner, and the guard of its program, once that is at work."""
        line = [sys.executable, "-c", OWNER, program]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        begun.append(process)
        assert process.stdout is not None
        words = {process.stdout.readline().strip() for _ in range(2)}
        return process, int((words - {"1"}).pop())

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def test_a_program_ends_with_an_owner_that_is_killed_even_if_it_does_not_want_to(
    owner: Callable[[str], tuple["subprocess.Popen[str]", int]],
) -> None:
    process, guard = owner(STUBBORN)
    (program,) = below(guard)
    time.sleep(0.5)
    assert alive(program)  # though the thread that started it has ended
    process.kill()
    process.wait()
    until(lambda: not alive(program) and not alive(guard))


def test_a_program_ends_with_a_guard_that_is_killed(
    owner: Callable[[str], tuple["subprocess.Popen[str]", int]],
) -> None:
    _, guard = owner(STUBBORN)
    (program,) = below(guard)
    os.kill(guard, signal.SIGKILL)
    until(lambda: not alive(program))


def test_a_guard_passes_on_what_it_is_told_and_ends_as_its_program() -> None:
    def ended(code: str, *told: signal.Signals) -> int:
        line = guarded(sys.executable, "-c", code)
        pipe = subprocess.PIPE
        with subprocess.Popen(line, stdin=pipe, stdout=pipe, start_new_session=True) as one:
            if told:
                assert one.stdout is not None and one.stdout.readline()
            for number in told:
                one.send_signal(number)
            return one.wait(GRACE_SECONDS * 2)

    assert ended("raise SystemExit(3)") == 3
    assert ended("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)") == KILLED_BY + signal.SIGSEGV
    assert ended(SLEEPS, signal.SIGTERM) == KILLED_BY + signal.SIGTERM
    assert ended(STUBBORN, signal.SIGTERM, signal.SIGQUIT) == KILLED_BY + signal.SIGKILL


def test_a_program_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    line = guarded(str(tmp_path / "none"))
    code, said = _ended(line)
    assert (code, b"No such file" in said) == (NOT_STARTED, True)


def test_an_empty_entry_of_the_path_is_not_the_current_folder() -> None:
    assert own_environment({"PYTHONPATH": ":/one::/two:"})["PYTHONPATH"] == "/one:/two"
    assert own_environment({"PYTHONPATH": "/one"}) == {"PYTHONPATH": "/one"}
    assert own_environment({}) == {}


def hostile(folder: Path) -> Path:
    """A folder with modules that leave a mark if they are ever loaded."""
    names = ("json.py", "lucius/__init__.py", "lucius/cli/main.py", "asyncio.py", "msgspec.py", "signal.py")
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"open({str(folder / 'LOADED')!r}, 'a').write({name!r})\n")
    return folder


@pytest.mark.parametrize("path", [None, ":/nowhere"])
def test_nothing_of_the_current_folder_is_loaded(tmp_path: Path, path: str | None) -> None:
    folder = hostile(tmp_path)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = path
    line = guarded(*own_python("-m", "lucius.cli.main", "--version"))
    done, _ = _ended(line, cwd=folder, env=own_environment(env))
    assert done == 0
    assert not (folder / "LOADED").exists()


def _ended(line: list[str], **more: Any) -> tuple[int, bytes]:
    """The owner holds the pipe all the time."""
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **more
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        return process.wait(60), said


def test_an_azurite_of_the_current_folder_does_not_come_before_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = find_script()
    script = tmp_path / SCRIPT
    script.parent.mkdir(parents=True)
    script.touch()
    monkeypatch.chdir(tmp_path)
    assert find_script() == ours
    assert find_script(tmp_path) == script
    monkeypatch.setattr("lucius_lab.emulators.azurite.ROOT_UID", os.geteuid() + 1)
    monkeypatch.setattr("os.geteuid", lambda: script.stat().st_uid + 2)
    with pytest.raises(AzuriteFailed, match="not found"):
        find_script(tmp_path)


@pytest.mark.parametrize("engine", ["outbox", "temporal"])
def test_dev_loads_nothing_of_the_folder_it_is_started_in(tmp_path: Path, engine: str) -> None:
    """Its sample, its parts: each is a process of its own."""
    folder = hostile(tmp_path / "here")
    program = Path(sys.executable).with_name("lucius")
    line = [str(program), "dev", "--engine", engine, "--port", "0", "--data", str(tmp_path / "data")]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(line, cwd=folder, stderr=said, stdout=said)
    try:
        until(lambda: b"Stays up" in (tmp_path / "said").read_bytes() or process.poll() is not None, 120)
        text = (tmp_path / "said").read_text()
        assert process.poll() is None, text
        assert (tmp_path / "data" / "sample" / "answer.json").exists(), text
    finally:
        process.terminate()
        process.wait(60)
    assert not (folder / "LOADED").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--engine", "temporal"),
        ("--bus", "nats"),
        ("--profile", "azure-local"),
    ],
)
def test_nothing_is_left_of_a_dev_that_is_killed(tmp_path: Path, options: tuple[str, ...]) -> None:
    line = ("dev", "--data", str(tmp_path / "data"), "--services", "none", *options)
    dev = PartProcess(tmp_path, "dev", *line, port_option="--port")
    dev.start()
    left = below(dev.pid)
    if "temporal" in options:
        for words in ("temporal server", "nats-server", " invoker ", " worker "):
            assert any(words in line for line in left.values()), (words, left)
    assert left
    dev.kill()
    until(lambda: not any(map(alive, left)), ENDS_SECONDS_MAX)
    assert str(tmp_path) not in json.dumps(list(below(1).values()))
