"""Work on documents in processes of their own: what they may take, how they end, and what is told of it."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.contracts.test_json_schema import branching
from tests.support.services_setup import Bench, a_picture, as_bytes, as_pdf, text_pdf

from lucius.sdk import Final, Task
from lucius.services import tesseract
from lucius.services.embedding import make_embedding
from lucius.services.ocr import make_ocr
from lucius.services.pictures import picture_size
from lucius.services.sis import make_sis
from lucius.services.work_process import WorkProcesses, death
from lucius.services.work_slots import WorkSlots

FULL = 8 * 1024**2


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path.resolve())


@pytest.fixture
def processes() -> Iterator[WorkProcesses]:
    made = WorkProcesses(ask_seconds_max=2)
    yield made
    made.close()


def a_task(bench: Bench, **more: Any) -> Task:
    return Task(bench.directive("SIS", **more), bench.workspace, bench.report, heartbeat_seconds=60)


async def pid_of(processes: WorkProcesses, task: Task) -> int:
    """Of the process that works for a task, which it has forgotten afterwards."""
    async with processes.session(task) as session:
        await session.ask("text", b"A text.")
    await rested(processes)
    return session.pid


async def rested(processes: WorkProcesses) -> None:
    """A process is given back in a thread."""
    async with asyncio.timeout(30):
        while not processes._idle:
            await asyncio.sleep(0.01)


async def test_a_process_is_used_again(bench: Bench, processes: WorkProcesses) -> None:
    task = a_task(bench)
    assert await pid_of(processes, task) == await pid_of(processes, task)


async def test_what_is_wrong_with_a_document_does_not_cost_its_process(
    bench: Bench, processes: WorkProcesses
) -> None:
    before = await pid_of(processes, a_task(bench))
    (bench.folder / "input").write_text('{"dimensions": 3, "chunks": [{"text": "x", "vector": [1.0]}]}')
    with pytest.raises(Final) as failure:
        await bench.run(make_sis(processes=processes), "SIS", payload={"prompt": "Which?"})
    assert failure.value.code == "UNREADABLE_DOCUMENT"
    await rested(processes)
    assert await pid_of(processes, a_task(bench)) == before


async def test_a_task_leaves_nothing_for_the_next(bench: Bench, processes: WorkProcesses) -> None:
    async with processes.session(a_task(bench)) as session:
        await session.ask("ask", b"The tower is high.", payload={"prompt": "Which?"})
    await rested(processes)
    async with processes.session(a_task(bench)) as again:
        assert again.pid == session.pid
        with pytest.raises(RuntimeError):
            await again.ask("answer", number=0, top_k=1)


async def test_a_document_that_takes_all_memory_is_a_final_failure(bench: Bench) -> None:
    small = WorkProcesses(memory_bytes_max=24 * 1024**2)
    (bench.folder / "input").write_text("A sentence of some words. " * 300_000)
    with pytest.raises(Final) as failure:
        await bench.run(make_embedding(processes=small), "EMBEDDING")
    assert failure.value.code == "WORK_OUT_OF_MEMORY"
    small.close()


async def test_work_that_takes_too_long_is_a_final_failure_and_slowed_down_before(
    bench: Bench, processes: WorkProcesses
) -> None:
    names = {f"p{n} {' '.join(f'w{m}' for m in range(50))}": {"type": "string"} for n in range(300)}
    payload = {"prompt": "Which?", "output_schema": {"properties": names}, "top_k": 50}
    text = "".join(f"Word{n} w{n % 50} stands here with w{n % 49}. " for n in range(40_000))
    (bench.folder / "input").write_text(text)
    begun = time.monotonic()
    with pytest.raises(Final) as failure:
        await bench.run(make_sis(processes=processes), "SIS", payload=payload)
    assert failure.value.code == "WORK_TIME_EXCEEDED"
    assert time.monotonic() - begun < 60
    assert await pid_of(processes, a_task(bench)) > 0


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, "WORK_OUT_OF_MEMORY"),
        (signal.SIGABRT, "WORK_OUT_OF_MEMORY"),
        (signal.SIGSEGV, "WORK_PROCESS_DIED"),
        (signal.SIGXCPU, "WORK_TIME_EXCEEDED"),
    ],
)
async def test_a_process_that_dies_over_a_document_ends_the_step(
    bench: Bench, processes: WorkProcesses, number: signal.Signals, code: str
) -> None:
    with pytest.raises(Final) as failure:
        async with processes.session(a_task(bench)) as session:
            os.kill(session.pid, number)
            await session.ask("text", b"x" * FULL)
    assert failure.value.code == code
    assert await pid_of(processes, a_task(bench)) != session.pid


async def test_a_task_that_is_given_up_ends_its_process(bench: Bench, processes: WorkProcesses) -> None:
    pids: list[int] = []

    async def work() -> None:
        async with processes.session(a_task(bench)) as session:
            pids.append(session.pid)
            os.kill(session.pid, signal.SIGSTOP)
            await session.ask("text", b"A text.")

    working = asyncio.create_task(work())
    while not pids:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    for _ in range(500):
        if not Path(f"/proc/{pids[0]}").exists():
            break
        await asyncio.sleep(0.01)
    assert not Path(f"/proc/{pids[0]}").exists()


async def test_processes_end_with_their_parent(bench: Bench) -> None:
    processes = WorkProcesses()
    pid = await pid_of(processes, a_task(bench))
    assert Path(f"/proc/{pid}").exists()
    processes.close()
    assert not Path(f"/proc/{pid}").exists()


def test_ends_are_told_apart() -> None:
    assert [death(code).code for code in (None, 0, 1)] == ["WORK_PROCESS_DIED"] * 3


async def test_a_tenant_has_half_of_the_places() -> None:
    places = WorkSlots(4)
    entered: list[str] = []
    leave = asyncio.Event()

    async def work(tenant: str) -> None:
        async with places.place(tenant):
            entered.append(tenant)
            await leave.wait()

    working = [asyncio.create_task(work(tenant)) for tenant in "aaaaabbb"]
    await asyncio.sleep(0.01)
    assert sorted(entered) == ["a", "a", "b", "b"]
    working[2].cancel()
    leave.set()
    await asyncio.wait(working)
    assert sorted(entered) == ["a"] * 4 + ["b"] * 3
    async with places.place("a"), places.place("a"), places.place("c"), places.place("c"):
        pass


async def test_a_place_given_to_one_who_has_gone_is_free_again() -> None:
    places = WorkSlots(2)
    async with places.place("a"):
        waiting = asyncio.create_task(_enter(places, "a"))
        await asyncio.sleep(0)
    waiting.cancel()  # its turn has come, and it does not know yet
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(5), places.place("a"):
        pass


async def _enter(places: WorkSlots, tenant: str) -> None:
    async with places.place(tenant):
        pass


# -- documents made to do harm -----------------------------------------------------------------------------


async def test_a_schema_that_costs_too_much_ends_the_step(bench: Bench) -> None:
    (bench.folder / "input").write_text("The tower is 41 metres high.")
    with pytest.raises(Final) as failure:
        await bench.run(make_sis(), "SIS", payload={"prompt": "How high?", "output_schema": branching(8, 8)})
    assert failure.value.code == "OUTPUT_SCHEMA_TOO_COMPLEX"


async def test_a_picture_of_too_many_pixels_is_refused_before_it_is_unpacked(bench: Bench) -> None:
    picture = as_bytes(Image.new("1", (30_000, 30_000)), "PNG")
    begun = time.monotonic()
    with pytest.raises(Final) as failure:
        await bench.ocr(picture)
    assert time.monotonic() - begun < 2
    assert failure.value.code == "DOCUMENT_TOO_LARGE"
    assert "30000 x 30000" in failure.value.message


async def test_a_picture_whose_size_is_hidden_meets_the_bounds_of_its_reader(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tesseract, "picture_size", lambda _: None)
    with pytest.raises(Final) as failure:
        await bench.ocr(as_bytes(Image.new("1", (30_000, 30_000)), "PNG"), make_ocr(timeout_seconds=3))
    assert failure.value.code in ("UNREADABLE_DOCUMENT", "WORK_OUT_OF_MEMORY", "WORK_TIME_EXCEEDED")


async def test_a_text_that_is_too_long_is_refused(bench: Bench) -> None:
    (bench.folder / "input").write_bytes(b"A line of a text that is far too long.\n" * 500_000)
    for handler in (make_ocr(), make_embedding(), make_sis()):
        with pytest.raises(Final) as failure:
            await bench.run(handler, "STEP", payload={"prompt": "Which?"})
        assert failure.value.code == "DOCUMENT_TOO_LARGE"


async def test_a_pdf_that_holds_more_text_than_is_read_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lucius.services.documents.TEXT_BYTES_MAX", 100)
    with pytest.raises(Final) as failure:
        await bench.ocr(text_pdf(*["A page with some words on it"] * 5))
    assert failure.value.code == "DOCUMENT_TOO_LARGE"


async def test_a_pdf_whose_pages_are_its_pages_is_unreadable_or_empty(bench: Bench) -> None:
    kids = as_pdf(b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[2 0 R 2 0 R]/Count 2>>")
    try:
        assert not (await bench.ocr(kids)).strip()
    except Final as failure:
        assert failure.code == "UNREADABLE_DOCUMENT"


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP", "PPM"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_the_size_of_a_picture_is_read_in_its_first_bytes(form: str, mode: str) -> None:
    picture = a_picture("A line").convert(mode)
    assert picture_size(as_bytes(picture, form)) == picture.size


@pytest.mark.parametrize("more", [{"lossless": True}, {"exif": b"Exif\0\0", "quality": 5}])
def test_the_size_of_a_picture_in_each_kind_of_webp(more: dict[str, Any]) -> None:
    picture = a_picture("A line").convert("RGB")
    assert picture_size(as_bytes(picture, "WEBP", **more)) == picture.size


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP", "PPM"])
def test_a_picture_that_ends_early_has_no_size_or_the_one_it_says(form: str) -> None:
    picture = a_picture("A line")
    whole = as_bytes(picture, form)
    found = {picture_size(whole[:length]) for length in range(min(len(whole), 2_000))}
    assert found <= {None, picture.size} | {(picture.size[0], other) for other in range(picture.size[1])}


def test_the_size_of_a_picture_behind_much_fill_is_found_at_once() -> None:
    """Before a marker a JPEG may have as many bytes FF as there is room for; one by one they took seconds."""
    picture = a_picture("A line")
    whole = as_bytes(picture, "JPEG")
    begun = time.perf_counter()
    assert picture_size(whole[:2] + b"\xff" * 32_000_000 + whole[2:]) == picture.size
    assert picture_size(whole[:2] + b"\xff" * 32_000_000) is None
    assert time.perf_counter() - begun < 1
