"""The part of `lucius bench` about the sdk measures the real thing, on every way that it names."""

from pathlib import Path

import pytest

from lucius.cli.bench import PARTS
from lucius.cli.bench_sdk import by_calls, over_memory_bus, over_nats
from lucius.cli.options import BENCH_PARTS
from lucius.sdk import SqliteShelf

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
    shelf = await SqliteShelf.open(file)
    assert await shelf.owed(10) == []
    await shelf.close()


def test_the_parts_have_the_names_that_the_command_line_offers() -> None:
    assert tuple(PARTS) == BENCH_PARTS
