"""Against the real thing. What is needed for it is asked for by name, and without it nothing is tried."""

import os

import pytest

NEEDED = {
    "real_account": (
        "LUCIUS_SMOKE_TABLE_CONNECTION",
        "a connection string of a storage account, or its https address",
    ),
    "real_namespace": (
        "LUCIUS_SMOKE_SERVICEBUS_CONNECTION",
        "a connection string of a Service Bus namespace with the right to manage, or its host name; the name"
        " must hold the word smoke, since the topics in it are deleted",
    ),
}
EXIT_NOTHING_TRIED = 3


def _asked_for(fixture: str) -> str:
    return os.environ.get(NEEDED[fixture][0], "").strip()


def pytest_collection_finish(session: pytest.Session) -> None:
    used = {name for item in session.items if isinstance(item, pytest.Function) for name in item.fixturenames}
    missing = [NEEDED[name] for name in NEEDED if name in used and not _asked_for(name)]
    if missing:
        lines = [f"  {name}: {meaning}" for name, meaning in missing]
        pytest.exit("\n".join(["Nothing was tried. Not set:", *lines]), returncode=EXIT_NOTHING_TRIED)


@pytest.fixture
def real_account() -> str:
    return _asked_for("real_account")


@pytest.fixture
def real_namespace() -> str:
    return _asked_for("real_namespace")
