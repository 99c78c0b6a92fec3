"""How the tests of core are run against a mutant: the quick ones only, and none looks for small examples.

A mutant that survives pays for every test, so the long walks are left out. What is killed here is killed by
the whole suite all the more: the score is a lower bound.
"""

import functools
import gc

import pytest
from hypothesis import Phase, settings

EXAMPLES = 30
# The last one starts a program, which would be the unchanged one.
LEFT_OUT = (
    "test_decide_properties.py",
    "test_every_situation_can_be_explained",
    "test_the_command_writes_the_same_page",
)
# Walks through all situations of a job: those of one step are enough here.
WALKS = "test_decide_exhaustive.py"
SHORT_WALKS = ("-1-outbox]", "-1-temporal]", "[1-outbox]", "[1-temporal]", "[1]")

settings.register_profile(
    "mutation",
    max_examples=EXAMPLES,
    phases=(Phase.explicit, Phase.generate),
    database=None,
    derandomize=True,
    deadline=None,
)
settings.load_profile("mutation")

# mutmut 3.8 asks a test for this private name, which pytest 9.2 no longer has.
if not hasattr(pytest.Item, "_nodeid"):
    pytest.Item._nodeid = property(lambda item: item.nodeid)


def pytest_configure(config: pytest.Config) -> None:
    """Tests are told apart for workers, of which there are none here."""
    config.addinivalue_line("markers", "xdist_group(name): which tests share a worker")


def pytest_sessionstart(session: pytest.Session) -> None:
    """A mutant runs in a fork of the process that ran the tests before: what they cached is not its doing."""
    for thing in gc.get_objects():
        if isinstance(thing, functools._lru_cache_wrapper) and thing.__module__.startswith("tests."):
            thing.cache_clear()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if _is_long(item.nodeid)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not _is_long(item.nodeid)]


def _is_long(nodeid: str) -> bool:
    if WALKS in nodeid:
        return not nodeid.endswith(SHORT_WALKS)
    return any(name in nodeid for name in LEFT_OUT)
