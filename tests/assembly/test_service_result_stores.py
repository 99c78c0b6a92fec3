"""Where `lucius service run` keeps RESULTs, as its option says."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from lucius.assembly.services import NoResultStore, open_memory, results_fault
from lucius.assembly.wiring import make_workspace
from lucius.sdk import Dedupe, DurableDedupe, MemoryDedupe, parse_directive
from lucius.settings import Settings, read_settings

DIRECTIVE = {
    "jobId": "job_1",
    "stepId": "step_01",
    "tenant_id": "a",
    "step_type": "OCR",
    "attempt_no": 1,
    "lease_id": "l",
}


async def opened(stack: AsyncExitStack, where: str | None, data: Path) -> Dedupe:
    settings: Settings = read_settings({})
    workspace = make_workspace(settings, data)
    return await open_memory(stack, where, "a/b c", settings, data, workspace)


@pytest.mark.parametrize("where", [None, "file", "objects"])
async def test_results_are_found_by_the_next_process(where: str | None, tmp_path: Path) -> None:
    place = (tmp_path / "kept").as_uri() if where == "objects" else where
    one = parse_directive(DIRECTIVE)
    assert one is not None
    async with AsyncExitStack() as stack:
        await (await opened(stack, place, tmp_path)).finish(one, {"status": "SUCCEEDED"})
    async with AsyncExitStack() as stack:
        dedupe = await opened(stack, place, tmp_path)
        assert isinstance(dedupe, DurableDedupe)
        assert await dedupe.begin(one.key) == {"status": "SUCCEEDED"}


async def test_without_a_place_for_a_file_memory_does_unless_a_file_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "results-a%2Fb%20c.db").mkdir()
    async with AsyncExitStack() as stack:
        assert isinstance(await opened(stack, None, tmp_path), MemoryDedupe)
        assert isinstance(await opened(stack, "memory", tmp_path), MemoryDedupe)
        with pytest.raises(NoResultStore):
            await opened(stack, "file", tmp_path)
        with pytest.raises(NoResultStore):
            await opened(stack, "file:///outside/of/the/data/folder", tmp_path)


def test_a_place_that_could_never_do_is_refused() -> None:
    settings = read_settings({})
    assert "LUCIUS_TABLE_CONNECTION" in (results_fault("tables", settings) or "")
    assert "file, memory, tables" in (results_fault("disk", settings) or "")
    with_tables = read_settings({"LUCIUS_TABLE_CONNECTION": "UseDevelopmentStorage=true"})
    for where in (None, "file", "memory", "tables", "s3://bucket/results", "az://box/x"):
        assert results_fault(where, with_tables) is None
