"""Whatever evaluates, parses or draws what comes from outside is known to one module, which bounds it.

A second module that used the library would have to find all its bounds again: it asks the one that has them.
"""

import ast
import resource
import zlib
from pathlib import Path
from typing import Any

import pytest
from azure.data.tables import EdmType, EntityProperty

import lucius
from lucius.ledger.azure_tables import entity as azure_tables_entity

SOURCE = Path(lucius.__file__).parents[1]

KNOWN_TO = {
    "jsonschema_rs": {"lucius/contracts/json_schema.py"},
    "yaml": {"lucius/registry/documents.py"},
    "pypdfium2": {"lucius/services/pdf_child.py"},
    "PIL": set(),
    "xml": set(),
    "lxml": set(),
    "pickle": set(),
    "marshal": set(),
    # The pictures of pages are packed there, and nothing is unpacked.
    "zlib": {
        "lucius/assembly/artifacts.py",
        "lucius/assembly/backup.py",
        "lucius/ledger/azure_tables/entity.py",
    },
    "gzip": {"lucius_lab/fuzz/values.py"},
    "zipfile": {"lucius/console/guide.py", "lucius/mcp/docs.py"},
    "tarfile": {"lucius/assembly/backup.py"},
    "bz2": set(),
    "lzma": set(),
}


def importers(library: str) -> set[str]:
    return {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(name.partition(".")[0] == library for name in _imported(path))
    }


def _imported(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and [alias.name for alias in node.names] != ["crc32"]:
            found.append(node.module or "")
    return found


@pytest.mark.parametrize("library", KNOWN_TO)
def test_a_library_that_reads_what_comes_from_outside_is_known_to_one_module(library: str) -> None:
    assert importers(library) == KNOWN_TO[library]


def packed_zeros(megabytes: int) -> bytes:
    """Without ever having them unpacked."""
    packing = zlib.compressobj(1)
    return b"".join(packing.compress(bytes(1_000_000)) for _ in range(megabytes)) + packing.flush()


def a_row(packed: bytes, bytes_said: int) -> dict[str, Any]:
    return {
        "PartitionKey": "job_1",
        "RowKey": "JOB",
        "Bytes": EntityProperty(bytes_said, EdmType.INT64),
        azure_tables_entity._PARTS[0]: packed,
    }


@pytest.mark.parametrize("said", [0, 10, 1_000])
def test_a_packed_row_is_unpacked_no_further_than_it_says(said: int) -> None:
    packed = packed_zeros(300)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert azure_tables_entity.body_of(a_row(packed, said)) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_a_packed_row_that_says_what_it_is_is_read() -> None:
    body = bytes(range(256)) * 300
    assert azure_tables_entity.body_of(a_row(zlib.compress(body), len(body))) == body
    assert azure_tables_entity.body_of(a_row(zlib.compress(body)[:-4], len(body))) is None
