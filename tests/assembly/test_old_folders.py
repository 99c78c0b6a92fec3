"""Data folders that an older version left behind, killed while jobs were in every state.

They open, the workers that still hold attempts can report, and every job comes to its end. The folders were
written by the version before the packages were laid out anew (`tests/support/old_folder.py`). Its clock was
put back, so they are older than today on any machine. A job is QUEUED on the Temporal engine alone.
"""

import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.api_setup import Caller, until
from tests.support.old_folder import SPANS, command, done

from lucius.api.app import make_app
from lucius.assembly import Embedded, open_embedded
from lucius.assembly.clock_and_ids import now_ms
from lucius.assembly.doctor import examine, open_installation, repair
from lucius.ledger.index_audit import IndexFault, IndexKind
from lucius.settings import read_settings

Json = Any

FOLDERS = Path(__file__).with_name("old_folders")
ENDS = {
    "processing": "SUCCEEDED",
    "reported": "SUCCEEDED",
    "leased": "SUCCEEDED",
    "half": "SUCCEEDED",
    "waiting": "SUCCEEDED",
    "waiting_second": "SUCCEEDED",
    "retry": "SUCCEEDED",
    "pausing": "SUCCEEDED",
    "paused": "SUCCEEDED",
    "cancelling": "CANCELLED",
    "cancelled": "CANCELLED",
    "succeeded": "SUCCEEDED",
    "failed": "FAILED_FINAL",
    "exhausted": "FAILED_FINAL",
}
STATES = {*ENDS.values(), "DISPATCHING", "IN_PROGRESS", "PAUSING", "PAUSED", "CANCELLING"}
ENDED = {"SUCCEEDED", "FAILED_FINAL", "CANCELLED"}
STEP_STATES = ENDED | {"PENDING", "DISPATCHING", "INITIATED", "PROCESSING", "FAILED_RETRY"}


class OldFolder(Caller):
    def __init__(self, folder: Path, lucius: Embedded, client: httpx2.AsyncClient) -> None:
        super().__init__(client)
        self.data = folder / "data"
        self.lucius = lucius
        written = json.loads((folder / "jobs.json").read_text())
        self.left: dict[str, Json] = written["jobs"]
        self.directives: dict[str, Json] = written["directives"]
        self.ids: dict[str, str] = {name: job["jobId"] for name, job in self.left.items()}

    async def work(self) -> None:
        """Works everything off that there is to lease."""
        for service in ("first", "second"):
            for directive in await self.lease(service):
                assert (await self.reply(directive, "RESULT", **done("late")))["outcome"] == "applied"

    async def work_until_ended(self, job_ids: set[str]) -> None:
        async def look() -> bool:
            await self.work()
            return {await self.state(job_id) for job_id in job_ids} <= ENDED

        await until(look, seconds=30)


@pytest.fixture(params=["ledger", "table"])
async def old(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OldFolder]:
    with tarfile.open(FOLDERS / f"{request.param}.tar.xz") as packed:
        if hasattr(tarfile, "data_filter"):  # not in every 3.11
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(tmp_path)
    lucius = await open_embedded(
        read_settings({**SPANS, "LUCIUS_OUTBOX_RETRY_INTERVAL": "200ms"}),
        storage=request.param,
        data=tmp_path / "data",
        base_url="http://lucius",
        protocols=tmp_path / "protocols",
    )
    transport = httpx2.ASGITransport(make_app(lucius.deployment), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://lucius", timeout=60) as client:
        yield OldFolder(tmp_path, lucius, client)


def agrees(now: Json, then: Json) -> bool:
    """Whether every member of then is there, and the same; later versions may add some."""
    if isinstance(then, dict):
        if then.get("state") == "SUCCEEDED" and "progress" in then:
            then = {**then, "progress": 100}  # the last report of a step stood there once
        return all(name in now and agrees(now[name], value) for name, value in then.items())
    if isinstance(then, list):
        return len(now) == len(then) and all(map(agrees, now, then))
    return bool(now == then)


def test_the_folders_hold_jobs_in_every_state() -> None:
    for packed in FOLDERS.iterdir():
        with tarfile.open(packed) as folder:
            file = folder.extractfile("./jobs.json")
            assert file is not None
            jobs = json.load(file)["jobs"]
        assert jobs.keys() == ENDS.keys()
        assert {job["state"] for job in jobs.values()} == STATES
        assert {step["state"] for job in jobs.values() for step in job["steps"]} == STEP_STATES


@pytest.mark.xdist_group("old_folders")
async def test_jobs_of_an_old_folder_come_to_their_ends(old: OldFolder) -> None:
    for name, then in old.left.items():
        assert agrees(await old.job(old.ids[name]), then), name

    await old.lucius.start({})
    try:
        for name, directive in old.directives.items():
            assert (await old.reply(directive, "RESULT", **done(name)))["outcome"] == "applied", name
        assert await old.state(old.ids["cancelling"]) == "CANCELLED"
        for name in old.ids:
            again = await old.post("/v1/orchestrate", command(name))
            assert (again.status_code, again.json()["jobId"]) == (202, old.ids[name]), name
            assert again.headers["idempotent-replayed"] == "true"
        for name in ("paused", "pausing"):
            assert await old.state(old.ids[name]) == "PAUSED"
            assert (await old.control(old.ids[name], "resume")).status_code < 300

        await old.work_until_ended(set(old.ids.values()))
        assert {name: await old.state(job_id) for name, job_id in old.ids.items()} == ENDS
        for name, then in old.left.items():
            if then["state"] in ENDED:
                assert agrees(await old.job(old.ids[name]), then), name
            events = await old.events(old.ids[name])
            assert [event["seq"] for event in events] == list(range(1, len(events) + 1)), name
        first_steps = {name: (await old.job(job_id))["steps"][0] for name, job_id in old.ids.items()}
        assert {name for name, step in first_steps.items() if step["attempt_no"] > 1} == {"retry"}

        redriven = set()
        for name in ("failed", "exhausted"):
            answer = await old.post(f"/v1/admin/dlq/{old.ids[name]}:redrive")
            redriven.add(answer.json()["jobId"])
        await old.work_until_ended(redriven)
        assert {await old.state(job_id) for job_id in redriven} == {"SUCCEEDED"}
    finally:
        await old.lucius.stop()

    installation = await open_installation(SPANS, old.data, "", now_ms=now_ms, report=lambda text: None)
    try:
        # The old version wrote no rows for the search and for the lists of single states. A repair adds them.
        examination = await examine(installation)
        assert set(examination.damage.counts) <= {
            (IndexKind.LIST, IndexFault.LOST),
            (IndexKind.SEARCH, IndexFault.LOST),
            (IndexKind.RETENTION, IndexFault.WRONG),
        }
        assert {finding.check for finding in examination.findings} <= {"files", "indexes"}
        _, moved_on = await repair(installation, examination)
        assert moved_on == 0
        left = (await examine(installation)).findings
        assert [finding for finding in left if finding.check != "files"] == []  # those may be open to others
    finally:
        await installation.store.close()
