"""The part of `lucius bench` about the sdk measures the real thing, on every way that it names."""

from pathlib import Path

import pytest

from lucius.cli.options import BENCH_PARTS
from lucius.sdk import SqliteResultStore
from lucius_lab.bench.main import PARTS
from lucius_lab.bench.sdk import by_calls, over_memory_bus, over_nats

DIRECTIVES = 50


@pytest.mark.xdist_group("nats")
async def test_every_way_is_measured_to_the_last_result(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    taken = [
        await by_calls(DIRECTIVES),
        await by_calls(DIRECTIVES, results_file=file),
        await over_memory_bus(DIRECTIVES),
        await over_nats(DIRECTIVES, tmp_path),
    ]
    assert all(one.directives == DIRECTIVES and one.per_second > 0 and one.cpu_us > 0 for one in taken)
    result_store = await SqliteResultStore.open(file)
    assert await result_store.undelivered(10) == []
    await result_store.close()


def test_the_parts_have_the_names_that_the_command_line_offers() -> None:
    assert tuple(PARTS) == BENCH_PARTS
