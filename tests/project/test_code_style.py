"""The rules of the code, checked on the files themselves: sizes, imports, names, clocks, words and paths.

Patterns are written so that they do not match their own text, since this file is among those they are held
against.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
SOURCE = TOP / "src" / "lucius"
LAB = TOP / "src" / "lucius_lab"
FUNCTION_LINES_MAX = 70
COMMAND_SECONDS_MAX = 120

# Packages whose decisions must come out the same when they are played again.
CLOCKLESS_PACKAGES = ("core", "jobs", "engines", "ledger")
CLOCKS = re.compile(
    r"\b(datetime\.(now|today)|utcnow|date\.today|time\.time(_ns)?\b|uuid[14678]\b|os\.urandom)"
    r"|^(random|secrets|uuid)\."
)
CLOCK_IMPORTS = {"random", "secrets", "uuid"}

UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|NotImplemented[E]rror)\b")
AVOIDED_TESTS = re.compile(r"\b(pytest|mark|unittest)\.(skip|xfail|importorskip|expectedFailure)")
# A folder of one machine. What stands before the slash tells it from a part of a URL or a longer path.
MACHINE_PATHS = re.compile(r"(?<![\w.})>*-])/(home|work|root|Users)/(?!/)")
INDEX_HOSTS = re.compile(
    r"pypi\.(org|python)|pythonhosted\.org|npmjs\.(org|com)|yarnpkg\.com|deb\.debian\.org"
    r"|[Aa]rtif[a]ctory|--(extra-)?index[-]url|find[-]links"
)


def _modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def _name(path: Path) -> str:
    return path.relative_to(TOP).as_posix()


def _lines_with(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    found = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{_name(path)}:{number}: {line.strip()}")
    return found


def _tracked() -> list[Path]:
    """The text files of the project: those git knows or would add; without git, all but hidden folders."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=TOP,
        capture_output=True,
        timeout=COMMAND_SECONDS_MAX,
    )
    if listing.returncode == 0:
        paths = [TOP / name for name in listing.stdout.decode().split("\0") if name]
    else:
        paths = [path for path in TOP.rglob("*") if not path.relative_to(TOP).parts[0].startswith(".")]
    return sorted(path for path in paths if path.is_file() and _is_text(path))


def _is_text(path: Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


# The client and the sdk are read by people who see nothing of the rest: theirs are the short names.
SHARED_CLASS_NAMES = {"Event", "Job", "Lucius", "Step", "Workspace"}

SOURCES = _modules(SOURCE) + _modules(LAB)
TESTS = _modules(TOP / "tests")
TRACKED = _tracked()


def test_there_is_something_to_check() -> None:
    assert {SOURCE / "core" / "states.py", SOURCE / "ledger" / "store.py"} <= set(SOURCES)
    assert Path(__file__) in TESTS
    assert {TOP / "pyproject.toml", TOP / "Makefile", *SOURCES} <= set(TRACKED)


def test_functions_are_short() -> None:
    long = {}
    for path in SOURCES + TESTS:
        for function in _functions(path):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                long[f"{_name(path)}:{function.lineno} {function.name}"] = lines
    assert long == {}


def test_every_package_and_module_says_what_it_is_for() -> None:
    packages = {path.parent for path in SOURCES}
    silent = [_name(package) for package in sorted(packages) if not (package / "__init__.py").is_file()]
    silent += [
        _name(path) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_a_class_name_stands_for_one_thing() -> None:
    defined: dict[str, list[str]] = {}
    for path in _modules(SOURCE):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                defined.setdefault(node.name, []).append(_name(path))
    shared = {name: paths for name, paths in defined.items() if len(paths) > 1}
    assert shared.keys() == SHARED_CLASS_NAMES, shared


def test_no_package_imports_what_it_may_not_know() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    checked = subprocess.run(
        [program, "--no-cache"], cwd=TOP, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "0 broken" in checked.stdout


@pytest.mark.parametrize("package", CLOCKLESS_PACKAGES)
def test_time_ids_and_chance_are_arguments(package: str) -> None:
    found = [
        f"{_name(path)}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"
        for path in _modules(SOURCE / package)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if any(CLOCKS.search(name) for name in _names_used(node))
    ]
    assert found == []


def _names_used(node: ast.AST) -> list[str]:
    """Dotted names as the pattern knows them, whether they are used or brought in by an import."""
    if isinstance(node, ast.Attribute):
        return [ast.unparse(node)]
    if isinstance(node, ast.Import):
        return [f"{alias.name}." for alias in node.names if alias.name in CLOCK_IMPORTS]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ("from time import time", True),
        ("import random", True),
        ("from uuid import uuid4 as fresh", True),
        ("now = datetime.datetime.now(tz)", True),
        ("call = time.time", True),
        ("jitter = random.random()", True),
        ("jitter = self.random.random()", False),
        ("limit = loop.time()", False),
        ("from datetime import datetime", False),
        ("wait = time.timeout", False),
    ],
)
def test_the_clock_check_sees_clocks(line: str, caught: bool) -> None:
    names = [name for node in ast.walk(ast.parse(line)) for name in _names_used(node)]
    assert any(CLOCKS.search(name) for name in names) is caught


def test_nothing_is_left_unfinished() -> None:
    assert _lines_with(UNFINISHED, SOURCES) == []


def test_no_test_is_avoided() -> None:
    assert _lines_with(AVOIDED_TESTS, TESTS) == []


def test_no_file_names_a_folder_of_one_machine() -> None:
    assert _lines_with(MACHINE_PATHS, TRACKED) == []


def test_no_file_names_a_package_index() -> None:
    assert _lines_with(INDEX_HOSTS, TRACKED) == []


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("open('" + "/ho" + "me/ann/x')", True),
        ("see " + "/wo" + "rk/main", True),
        ("file://" + "/ro" + "ot/x", True),
        ("https://example.com/home/x", False),
        ("s3://bucket/work/x", False),
        ("{base}/work/x", False),
    ],
)
def test_the_path_check_sees_folders_of_machines(text: str, caught: bool) -> None:
    assert bool(MACHINE_PATHS.search(text)) is caught
