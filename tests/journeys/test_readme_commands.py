"""What the README, the worked session and the examples promise: copied, pasted and run as a reader does."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller

HOME = Path(__file__).parents[2]
EXAMPLES = HOME / "examples"
README = HOME / "README.md"
SESSION = HOME / "docs" / "tutorials" / "worked-session.md"
SECONDS_MAX = 180
TEXT = "Lucius keeps jobs. It never\nloses one.\nIt is patient with workers. It says why.\n"

README_URL = "http://127.0.0.1:8420"
SERVER_LINE = "LUCIUS_AUTH=required .venv/bin/lucius dev --services none --protocols protocols\n"

WORKERS = {
    "python": [sys.executable, str(EXAMPLES / "workers" / "summarise.py")],
    "node": ["node", str(EXAMPLES / "workers" / "summarise.mjs")],
    "shell": ["bash", str(EXAMPLES / "workers" / "summarise.sh")],
    "sdk": [sys.executable, str(EXAMPLES / "workers" / "summarise_sdk.py")],
}


def blocks_of(page: Path, journey: str) -> list[str]:
    """The commands of a page that are marked as belonging to this journey."""
    marked = re.compile(rf"<!-- journey: {journey} -->\n```bash\n(.*?)```", re.DOTALL)
    found: list[str] = marked.findall(page.read_text(encoding="utf-8"))
    return found


def pasted(blocks: list[str], folder: Path, env: Mapping[str, str] | None = None) -> list[str]:
    """What the blocks print, one text each: in one shell, as a reader has it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "echo '#####'\n".join(blocks)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"exec 2>&1\n{script}"],
        cwd=folder,
        env={**os.environ, "PATH": path, **(env or {})},
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.split("#####\n")


def test_no_command_of_the_pages_takes_the_key_of_another() -> None:
    blocks = "".join(blocks_of(README, "curl") + blocks_of(SESSION, "session"))
    keys = re.findall(r"(?:Idempotency-Key: |--key )([\w-]+)", blocks)
    assert len(keys) == len(set(keys)) == 3  # all of them are for one tenant, on one data folder


def test_the_curl_section_of_the_readme_finishes_a_job(launch: "Launch", tmp_path: Path) -> None:
    blocks = blocks_of(README, "curl")
    assert len(blocks) == 4
    lucius = launch()
    printed = pasted([block.replace(README_URL, lucius.url) for block in blocks], tmp_path)
    submitted, leased, replies, job = printed
    assert '"duplicate":false' in submitted
    assert '"type": "DIRECTIVE"' in leased
    assert replies.splitlines() == ['{"outcome":"applied","stop":false}'] * 3
    assert '"state": "SUCCEEDED"' in job
    assert lucius.stop() == 0


def test_the_worked_session_goes_as_it_is_shown(launch: "Launch") -> None:
    first, *later = blocks_of(SESSION, "session")
    assert blocks_of(SESSION, "session server") == [SERVER_LINE]
    lucius = launch("--protocols", "protocols", env={"LUCIUS_AUTH": "required"}, start=False)
    folder = lucius.data.parent
    folder.mkdir(parents=True)
    key_made = first.replace(".lucius", lucius.data.name)
    told, key = pasted([key_made, 'echo "$LUCIUS_API_KEY"\n'], folder)
    assert "only time the key is shown" in told
    lucius.start()
    assert "authentication is required" in lucius.stderr
    env = {"LUCIUS_URL": lucius.url, "LUCIUS_API_KEY": key.strip()}
    why, watched, late, ended = pasted(
        [block.replace(README_URL, lucius.url) for block in later], folder, env
    )
    assert why.startswith("accepted   yes\n")
    assert "waiting for a worker of stamp to take step_01" in why
    assert why.endswith("  CANCELLED\n")
    assert "FAILED_FINAL: ACK_TIMEOUT: no ACK within 2 s of publishing\n" in watched
    assert watched.endswith("exit code 3\n")
    recorded, event, hint = late.splitlines()
    assert recorded == '{"outcome":"recorded","stop":true}'
    assert re.fullmatch(
        r" +6  \S+  REPLY_LATE  step_01  attempt 1  RESULT  SUCCEEDED  s3://out/letter.pdf", event
    )
    assert hint.endswith(" --step step_01 --seq 6`")
    adopted, again, _, *rows = ended.splitlines()
    listed = [tuple(row.split()[:2]) for row in rows[:4]]
    assert listed[:2] == [(again, "DISPATCHING"), (adopted, "SUCCEEDED")]
    assert [state for _, state in listed[2:]] == ["FAILED_FINAL", "CANCELLED"]
    assert rows[4].endswith("(ops) is revoked.")
    assert rows[5].startswith("error: UNAUTHENTICATED: ")
    assert rows[-1] == "exit code 4"
    assert key.strip() not in lucius.stderr
    assert lucius.stop() == 0


@contextmanager
def working(command: list[str], log: Path, url: str) -> "Iterator[subprocess.Popen[bytes]]":
    with log.open("wb") as out:
        worker = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "LUCIUS_URL": url},
        )
    try:
        yield worker
    finally:
        # The whole group: killed like this, the shell cannot end its curl.
        subprocess.run(["kill", "-KILL", "--", f"-{worker.pid}"], check=False, stderr=subprocess.DEVNULL)
        worker.wait()


@pytest.mark.parametrize("language", list(WORKERS))
async def test_an_example_worker_finishes_a_job(
    language: str, launch: "Launch", caller_at: "Callable[[Lucius], Caller]", tmp_path: Path
) -> None:
    assert shutil.which(WORKERS[language][0]) is not None
    lucius = launch("--protocols", str(EXAMPLES / "protocols"))
    caller = caller_at(lucius)
    letter, summary = lucius.data / "letter.txt", lucius.data / "out" / "summary.txt"
    letter.write_text(TEXT)
    command = [*WORKERS[language], *([str(lucius.data)] if language == "sdk" else [])]
    with working(command, tmp_path / "worker.log", lucius.url):
        refs: dict[str, Any] = {
            "input_ref": {"uri": letter.as_uri()},
            "output_ref": {"uri": summary.as_uri()},
        }
        job_id = await caller.submit(request_type="SUMMARISE", payload={"sentences": 3}, **refs)
        job = await caller.reach(job_id, "SUCCEEDED", "FAILED_FINAL")
    assert (job["state"], job["attempts_total"]) == ("SUCCEEDED", 1), (tmp_path / "worker.log").read_text()
    assert summary.read_text() == "Lucius keeps jobs. It never\nloses one. It is patient with workers.\n"
    made = Path(job["final_output"].removeprefix("file://"))
    assert made.parts[-3:] == ("summarise", "1", "summary.txt")
    assert made.read_text() == summary.read_text()


@pytest.mark.parametrize("language", ["python", "node", "shell"])
async def test_an_example_worker_says_that_its_input_is_missing(
    language: str, launch: "Launch", caller_at: "Callable[[Lucius], Caller]", tmp_path: Path
) -> None:
    protocol = (EXAMPLES / "protocols" / "summarise.yaml").read_text()
    (tmp_path / "protocols").mkdir()
    once = protocol.replace("service: summarise\n", "service: summarise\n    max_attempts: 1\n")
    (tmp_path / "protocols" / "once.yaml").write_text(once)
    lucius = launch("--protocols", str(tmp_path / "protocols"))
    caller = caller_at(lucius)
    refs: dict[str, Any] = {
        "input_ref": {"uri": (lucius.data / "gone.txt").as_uri()},
        "output_ref": {"uri": (lucius.data / "summary.txt").as_uri()},
    }
    with working([*WORKERS[language], lucius.url], tmp_path / "worker.log", lucius.url):
        job_id = await caller.submit(request_type="SUMMARISE", payload={}, **refs)
        job = await caller.reach(job_id, "SUCCEEDED", "FAILED_FINAL")
    assert (job["state"], job["error_code"]) == ("FAILED_FINAL", "INPUT_UNAVAILABLE")


async def test_a_shell_that_is_told_to_end_takes_no_directive_with_it(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]", tmp_path: Path
) -> None:
    lucius = launch("--protocols", str(EXAMPLES / "protocols"))
    caller = caller_at(lucius)
    letter = lucius.data / "letter.txt"
    letter.write_text(TEXT)
    refs: dict[str, Any] = {
        "input_ref": {"uri": letter.as_uri()},
        "output_ref": {"uri": (lucius.data / "summary.txt").as_uri()},
    }
    wanted: dict[str, Any] = {"request_type": "SUMMARISE", "payload": {"sentences": 1}, **refs}
    with working(WORKERS["shell"], tmp_path / "worker.log", lucius.url) as worker:
        await caller.reach(await caller.submit(idempotency_key="before", **wanted), "SUCCEEDED")
        worker.terminate()
        assert worker.wait(30) == 0, (tmp_path / "worker.log").read_text()
        with pytest.raises(ProcessLookupError):
            os.killpg(worker.pid, 0)  # its curl is gone, too
    job_id = await caller.submit(idempotency_key="after", **wanted)
    await asyncio.sleep(0.5)
    assert (await caller.job(job_id))["state"] == "DISPATCHING"


def test_a_shell_that_is_told_to_end_leaves_nobody_behind(tmp_path: Path) -> None:
    """Whenever that is: its curl may just have begun, or be about to end."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for number in range(20):
            with working(WORKERS["shell"], tmp_path / "worker.log", url) as worker:
                time.sleep(0.005 * number)
                worker.terminate()
                if worker.wait(15) == -signal.SIGTERM:
                    continue  # before it could hear of it
                with pytest.raises(ProcessLookupError):
                    os.killpg(worker.pid, 0)
