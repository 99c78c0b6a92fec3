"""The guided tour names functions and modules that exist."""

import importlib
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "the-way-of-a-job.md"
HOPS_MIN = 30

_FUNCTION = re.compile(r"`(lucius(?:\.\w+)+):([\w.]+)`")
_MODULE = re.compile(r"`(lucius(?:\.\w+)+)`")


def functions_named(text: str) -> list[tuple[str, str]]:
    return _FUNCTION.findall(text)


def missing_of(functions: list[tuple[str, str]]) -> list[str]:
    """Those that cannot be imported, or cannot be called."""
    missing = []
    for module, path in functions:
        found: object = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name, None)
        if not callable(found):
            missing.append(f"{module}:{path}")
    return missing


def test_every_function_of_the_tour_exists() -> None:
    functions = functions_named(PAGE.read_text(encoding="utf-8"))
    assert len(set(functions)) >= HOPS_MIN
    assert missing_of(functions) == []


def test_every_module_of_the_tour_exists() -> None:
    for module in _MODULE.findall(PAGE.read_text(encoding="utf-8")):
        importlib.import_module(module)


def test_hops_are_numbered_without_a_gap() -> None:
    numbers = re.findall(r"^(\d+)\. ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, len(numbers) + 1))


def test_a_function_that_is_gone_is_noticed() -> None:
    named = functions_named(
        "`lucius.core.decide:decide`, `lucius.core.decide:guess`, `lucius.core.fold:fold.not`"
    )
    assert missing_of(named) == ["lucius.core.decide:guess", "lucius.core.fold:fold.not"]
