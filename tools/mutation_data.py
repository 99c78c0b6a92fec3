"""Mutants of what mutmut leaves alone: the tables and constants of `lucius.core`, outside of functions.

A string gets a tail, a number one more, a truth its opposite; a member of an enum becomes its neighbour; an
entry of a table, a set or a list of states is taken out. Each mutant is a whole module, tried by the tests of
core in a process of its own.
"""

import ast
import copy
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

CORE = Path("src/lucius/core")
SECONDS_MAX = 300
# Tests that look at the tables first, long walks last.
FIRST, LAST = ("test_tables", "test_lifecycle", "test_values"), ("test_decide_exhaustive", "test_canonical")
# Plugins of other tests take longer to load than most mutants to kill.
FEW_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
PLUGINS = ("-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout")
COMMAND = (sys.executable, "-m", "pytest", "-x", "-q", *PLUGINS)


class Mutant(NamedTuple):
    module: str
    name: str
    source: str


def run(work: Path, workers: int) -> dict[str, Counter[str]]:
    """Tries every mutant; verdicts are kept as they come, so that a later run goes on."""
    kept = work / "data.json"
    verdicts: dict[str, str] = json.loads(kept.read_text()) if kept.exists() else {}
    waiting = [mutant for mutant in _mutants(work) if mutant.name not in verdicts]
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(workers):
        copies.put(_copy(work, work / f"data-{number}"))

    def tried(mutant: Mutant) -> tuple[Mutant, str]:
        place = copies.get()
        try:
            return mutant, _try(mutant, place)
        finally:
            copies.put(place)

    with ThreadPoolExecutor(workers) as pool:
        for mutant, verdict in pool.map(tried, waiting):
            verdicts[mutant.name] = verdict
            kept.write_text(json.dumps(verdicts, indent=1))
            if verdict == "survived":
                sys.stderr.write(f"survived: {mutant.name}\n")
    found: dict[str, Counter[str]] = {}
    for name, verdict in verdicts.items():
        found.setdefault(name.split(":")[0], Counter())[verdict] += 1
    return found


def _copy(work: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    for name in ("src", "tests", "docs"):
        shutil.copytree(work / name, place / name)
    shutil.copy2(work / "pyproject.toml", place)
    return place


def _try(mutant: Mutant, place: Path) -> str:
    target = place / CORE / f"{mutant.module}.py"
    original = target.read_text()
    target.write_text(mutant.source)
    tests = sorted((place / "tests" / "core").glob("test_*.py"), key=_rank)
    environment = {**os.environ, **FEW_PLUGINS, "PYTHONPATH": str(place / "src")}
    try:
        ended = subprocess.run(  # noqa: S603 - ours
            [*COMMAND, *map(str, tests)], cwd=place, env=environment, capture_output=True, timeout=SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        return "timed out"
    finally:
        target.write_text(original)
    return "survived" if ended.returncode == 0 else "killed"


def _rank(path: Path) -> tuple[int, str]:
    if path.stem.startswith(FIRST):
        return 0, path.name
    return (2 if path.stem.startswith(LAST) else 1), path.name


def _mutants(work: Path) -> Iterator[Mutant]:
    for path in sorted((work / CORE).glob("*.py")):
        tree = ast.parse(path.read_text())
        enums = _enums(work)
        count = sum(1 for _ in _changes(tree, enums))
        for number in range(count):
            fresh = copy.deepcopy(tree)
            line, what, change = list(_changes(fresh, enums))[number]
            change()
            source = ast.unparse(ast.fix_missing_locations(fresh))
            yield Mutant(path.stem, f"{path.stem}:{line}:{number} {what}", source)


def _enums(work: Path) -> dict[str, list[str]]:
    """The members of every enum of core, also under the short names that the tables use."""
    found: dict[str, list[str]] = {}
    for path in (work / CORE).glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "StrEnum" for base in node.bases):
                names = [each.targets[0] for each in node.body if isinstance(each, ast.Assign)]
                found[node.name] = [name.id for name in names if isinstance(name, ast.Name)]
    return {**found, "J": found["JobState"], "S": found["StepState"]}


Change = tuple[int, str, Callable[[], None]]


def _changes(tree: ast.Module, enums: dict[str, list[str]]) -> Iterator[Change]:
    for statement in tree.body:
        inner = statement.body if isinstance(statement, ast.ClassDef) else [statement]
        for node in inner:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for part in ast.walk(node.value):
                    yield from _changes_of(part, enums)


def _changes_of(node: ast.AST, enums: dict[str, list[str]]) -> Iterator[Change]:
    match node:
        case ast.Constant(value=bool() as value):
            yield _set(node, "value", not value, f"{value}")
        case ast.Constant(value=int() as value):
            yield _set(node, "value", value + 1, f"{value}")
        case ast.Constant(value=str() as value):
            yield _set(node, "value", value + "XX", repr(value))
        case ast.Attribute(value=ast.Name(id=owner), attr=attr) if attr in enums.get(owner, ()):
            members = enums[owner]
            other = members[(members.index(attr) + 1) % len(members)]
            yield _set(node, "attr", other, f"{owner}.{attr} -> {other}")
        case ast.Dict(keys=keys, values=values):
            for index, key in enumerate(keys):
                shown = "**" if key is None else ast.unparse(key)
                yield node.lineno, f"without {shown}", _removal(index, keys, values)
        case ast.Set(elts=parts) | ast.Tuple(elts=parts) | ast.Call(args=parts) if len(parts) > 1:
            for index, part in enumerate(parts):
                yield part.lineno, f"without {ast.unparse(part)}", _removal(index, parts)


def _set(node: ast.Constant | ast.Attribute, field: str, value: object, what: str) -> Change:
    return node.lineno, what, lambda: setattr(node, field, value)


def _removal(index: int, *lists: list[ast.expr] | list[ast.expr | None]) -> Callable[[], None]:
    def remove() -> None:
        for each in lists:
            del each[index]

    return remove
