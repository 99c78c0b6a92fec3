"""Whatever evaluates, parses or draws what comes from outside is known to one module, which bounds it.

A second module that used the library would have to find all its bounds again: it asks the one that has them.
"""

import ast
from pathlib import Path

import pytest

import lucius

SOURCE = Path(lucius.__file__).parent

KNOWN_TO = {
    "jsonschema_rs": {"contracts/json_schema.py"},
    "yaml": {"registry/documents.py"},
    "pypdfium2": {"services/pdf_child.py"},
    "PIL": set(),
    "xml": set(),
    "lxml": set(),
    "pickle": set(),
    "marshal": set(),
    "gzip": {"lab/fuzz_values.py"},
    "zipfile": set(),
    "tarfile": set(),
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
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return found


@pytest.mark.parametrize("library", KNOWN_TO)
def test_a_library_that_reads_what_comes_from_outside_is_known_to_one_module(library: str) -> None:
    assert importers(library) == KNOWN_TO[library]
