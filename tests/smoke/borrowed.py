"""The tests of another suite that run on a fixture of the same name."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any


def borrowed(suite: ModuleType, *fixtures: str) -> dict[str, Callable[..., Any]]:
    """Those of its tests that use one of these fixtures: what the others run on is not the real thing."""
    found = {
        name: test
        for name, test in vars(suite).items()
        if name.startswith("test_") and set(fixtures) & set(inspect.signature(test).parameters)
    }
    assert found, f"{suite.__name__} has no tests for {fixtures}"
    return found
