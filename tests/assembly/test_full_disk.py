"""A disk without room is seen by the first look at `/readyz`, though SQLite still writes over old parts of
its log; and once there is room again, by the next."""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lucius.assembly.process import ledger_check
from lucius.ledger.names import Tables
from lucius.ledger.sqlite.disk_room import room_fault
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import put

DISK_BYTES = 48 * 1024 * 1024
ROUNDS = 180
PROBES = 3


class Disk:
    """A file system of its own; where none can be mounted, a process whose files may grow no more."""

    def __init__(self, folder: Path, *, mounted: bool) -> None:
        self._folder = folder
        self._ballast = folder / "ballast"
        self._mounted = mounted

    def fill(self) -> None:
        if not self._mounted:
            full = max(file.stat().st_size for file in self._folder.iterdir())
            resource.setrlimit(resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
            return
        with self._ballast.open("wb", buffering=0) as file:
            for size in (65_536, 4_096, 1):
                try:
                    while file.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, *, mounted: bool) -> Iterator[Disk]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = mounted and subprocess.run(mount, capture_output=True).returncode == 0
    disk = Disk(folder, mounted=mounted)
    try:
        yield disk
    finally:
        disk.free()
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("mounted", [True, False])
async def test_the_first_look_tells_that_the_disk_is_full(tmp_path: Path, mounted: bool) -> None:
    with small_disk(tmp_path / "data", mounted=mounted) as disk:
        store = await SqliteStore.open(tmp_path / "data" / "lucius.db")
        check = ledger_check(store, Tables(), store.path)
        for number in range(ROUNDS):  # until the log was begun again, and has old parts to write over
            await store.commit([put("jobs", "p", str(number % 8), bytes([number]) * 60_000)])
        assert await check() is None
        disk.fill()
        for _ in range(PROBES):
            fault = await check()
            assert fault is not None and "disk" in fault
        assert await store.get("jobs", "p", "7") is not None
        disk.free()
        assert await check() is None
        await store.close()
        assert {file.name for file in (tmp_path / "data").iterdir()} == {"lucius.db", "lucius.db-turn"}


def test_a_look_writes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    assert room_fault(tmp_path / "lucius.db") is None
    assert list(tmp_path.iterdir()) == []
    assert "no room" in (room_fault(tmp_path / "gone" / "lucius.db") or "")
