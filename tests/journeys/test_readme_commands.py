"""What the README and the examples promise, done as a reader would: copied, pasted and run."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.journeys.conftest import Launch
    from tests.journeys.harness import Lucius
    from tests.rooms.api.api_desk import Desk

HOME = Path(__file__).parents[2]
EXAMPLES = HOME / "examples"
SECONDS_MAX = 60
TEXT = "Lucius keeps jobs. It never loses one. It is patient with workers. It says why.\n"

_CURL_BLOCK = re.compile(r"<!-- journey: curl -->\n```bash\n(.*?)```", re.DOTALL)

WORKERS = {
    "python": [sys.executable, str(EXAMPLES / "workers" / "summarise.py")],
    "node": ["node", str(EXAMPLES / "workers" / "summarise.mjs")],
    "shell": ["bash", str(EXAMPLES / "workers" / "summarise.sh")],
    "sdk": [sys.executable, str(EXAMPLES / "workers" / "summarise_sdk.py")],
}


def test_the_curl_section_of_the_readme_finishes_a_job(launch: "Launch", tmp_path: Path) -> None:
    blocks = _CURL_BLOCK.findall((HOME / "README.md").read_text(encoding="utf-8"))
    assert len(blocks) == 4
    lucius = launch()
    # One shell for all, as a reader has it; a line between the blocks tells their outputs apart.
    script = "echo '#####'\n".join(blocks).replace("http://127.0.0.1:8420", lucius.url)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    submitted, leased, replies, job = done.stdout.split("#####\n")
    assert '"duplicate":false' in submitted
    assert '"type": "DIRECTIVE"' in leased
    assert replies.splitlines() == ['{"outcome":"applied","stop":false}'] * 3
    assert '"state": "SUCCEEDED"' in job
    assert lucius.stop() == 0


@contextmanager
def working(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        worker = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield
    finally:
        # The whole group: the shell's curl would go on waiting without its shell.
        subprocess.run(["kill", "-KILL", "--", f"-{worker.pid}"], check=False)
        worker.wait()


@pytest.mark.parametrize("language", list(WORKERS))
async def test_an_example_worker_finishes_a_job(
    language: str, launch: "Launch", desk_at: "Callable[[Lucius], Desk]", tmp_path: Path
) -> None:
    assert shutil.which(WORKERS[language][0]) is not None
    lucius = launch("--protocols", str(EXAMPLES / "protocols"))
    desk = desk_at(lucius)
    letter, summary = lucius.data / "letter.txt", lucius.data / "summary.txt"
    letter.write_text(TEXT)
    command = [*WORKERS[language], *([str(lucius.data)] if language == "sdk" else []), lucius.url]
    with working(command, tmp_path / "worker.log"):
        refs: dict[str, Any] = {
            "input_ref": {"uri": letter.as_uri()},
            "output_ref": {"uri": summary.as_uri()},
        }
        job_id = await desk.submit(request_type="SUMMARISE", payload={"sentences": 3}, **refs)
        job = await desk.reach(job_id, "SUCCEEDED", "FAILED_FINAL")
    assert (job["state"], job["attempts_total"]) == ("SUCCEEDED", 1), (tmp_path / "worker.log").read_text()
    assert summary.read_text() == "Lucius keeps jobs. It never loses one. It is patient with workers.\n"
    made = Path(job["final_output"].removeprefix("file://"))
    assert made.parts[-3:] == ("summarise", "1", "summary.txt")
    assert made.read_text() == summary.read_text()
