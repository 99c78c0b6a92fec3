"""`lucius certify --load`: a real service under load, and what is said of it."""

import asyncio
import json
import shlex
from pathlib import Path

import pytest
from tests.certify.runs import LUCIUS, PATIENCE, options
from typer.testing import CliRunner

from lucius.certify.load import LoadReport, _at_once, _percentile_ms
from lucius.certify.transcript import Transcript
from lucius.cli.certifying import run_load
from lucius.cli.main import app
from lucius.cli.service_new import write_skeleton
from lucius.settings import read_settings

pytestmark = pytest.mark.xdist_group("certify-load")

LIMITED = ("--concurrency", "4", "--log-level", "warning")


def under_load(folder: Path, *levels: int, directives: int = 48) -> LoadReport:
    start = ["env", "-C", str(folder), *LUCIUS, "service", "run", "service:handle", *LIMITED]
    asked = options("HELLO", *start, sample=folder / "certify.json")
    return asyncio.run(
        run_load(
            asked, read_settings({}), directives=directives, levels=levels, say=_nothing, report=_nothing
        )
    )


def _nothing(_: object) -> None:
    pass


@pytest.fixture
def skeleton(tmp_path: Path) -> Path:
    write_skeleton(tmp_path / "hello", name="hello", step_type="HELLO", lang="python")
    return tmp_path / "hello"


def test_a_service_under_load(skeleton: Path) -> None:
    """No more at once than are out, nor than the service takes; each on its lane, each done once."""
    report = under_load(skeleton, 2, 16)
    assert report.passed and (report.service, report.carrier) == ("hello", "http")
    few, many = report.levels
    assert [(level.in_flight, level.directives, level.failed) for level in report.levels] == [
        (2, 48, 0),
        (16, 48, 0),
    ]
    assert 1 <= few.at_once <= 2 and 1 <= many.at_once <= 4 and many.lanes > 8
    for level in report.levels:
        assert 0 < level.ack_p50_ms <= level.ack_p99_ms and level.done_p50_ms >= level.ack_p50_ms
        assert level.per_second > 0 and level.faults == ()


def test_failures_under_load_are_counted_and_named(skeleton: Path) -> None:
    program = (skeleton / "service.py").read_text()
    begins = "def work(text: str) -> str:\n"
    busy = f'BUSY = iter([1] * 5)\n\n\n{begins}    if next(BUSY, 0):\n        raise Retryable("BUSY")\n'
    (skeleton / "service.py").write_text(program.replace(begins, busy))
    report = under_load(skeleton, 8, directives=20)
    (level,) = report.levels
    assert not report.passed and level.failed == 4, "the first five fail, one of them before it is counted"
    assert all(fault.endswith("FAILED_RETRY BUSY") for fault in level.faults)


async def test_what_was_at_work_at_one_time_is_counted() -> None:
    times = iter([0.0, 0.0, 3.0, 0.0, 1.0, 2.0, 0.0, 2.0, 4.0, 0.0, 5.0, 6.0])  # opened, ACK, RESULT of each
    transcript = Transcript(lambda: next(times))
    attempts = []
    for number in range(4):
        named = {"callback_token": str(number), "jobId": f"job_{number}", "attempt_no": 1}
        attempts.append(transcript.open(named, clocked=False))
        for kind in ("ACK", "RESULT"):
            await transcript.record_reply(attempts[-1], {"type": kind}, side=None)
    assert _at_once(attempts) == 2, "one that begins as another ends is not beside it"
    assert (_percentile_ms([0.2, None, 0.1], 0.5), _percentile_ms([None], 0.99)) == (200.0, 0.0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--in-flight", "8,0"), "--in-flight 8,0: give numbers from 1 to"),
        (("--in-flight", ""), "such as 1,8,64"),
        (("--strict",), "--load plays no rules"),
        (("--rule", "drain"), "--load plays no rules"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(words: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(app, ["certify", "--step-type", "X", "--load", "5", *words])
    assert done.exit_code == 2 and says in " ".join(done.output.split())


def test_the_report_is_a_table_or_a_document(skeleton: Path) -> None:
    start = shlex.join(["env", "-C", str(skeleton), *LUCIUS, "service", "run", "service:handle"])
    line = ["certify", "--step-type", "HELLO", "--start", start, "--ack-seconds", f"{PATIENCE.ack_seconds}"]
    line += ["--sample", str(skeleton / "certify.json"), "--load", "4", "--in-flight", "2"]
    shown = CliRunner().invoke(app, line)
    assert shown.exit_code == 0 and "A SECOND" in shown.output, shown.output
    assert "hello (HELLO) over http: directives of 4 lanes" in shown.output
    document = json.loads(CliRunner().invoke(app, [*line, "--json"]).stdout)
    assert (document["passed"], document["levels"][0]["directives"]) == (True, 4)
