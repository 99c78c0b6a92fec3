"""All certificates of this folder are made at once: most of the time each of them waits."""

import pytest
from tests.certify.runs import certificates

from lucius.certify.values import Certificate
from lucius.cli.certifying import CertifyOptions


@pytest.fixture(scope="session")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    """By name: those that the modules which are run now have wanted."""
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    modules = {it.module.__name__: it.module for it in functions if hasattr(it.module, "wanted")}
    asked: dict[str, CertifyOptions] = {}
    heavy: frozenset[str] = frozenset()
    for name in sorted(modules, reverse=True):  # the longest first
        asked |= modules[name].wanted(tmp_path_factory)
        heavy |= getattr(modules[name], "HEAVY", heavy)
    return certificates(asked, heavy)
