"""The `services:` document: what it says, what it cannot say, and how it is followed."""

from pathlib import Path
from typing import Any

import pytest

from lucius.core.flow import BreakerRule, Rate, ServiceLimits
from lucius.core.model import StepPolicy
from lucius.registry.app_configuration.registry import AppConfigurationRegistry
from lucius.registry.app_configuration.values import ConfigurationSnapshot
from lucius.registry.builtin import BuiltinRegistry
from lucius.registry.folder import FolderRegistry
from lucius.registry.service_limits import parse_services

FULL = """
services:
  embedding:
    concurrency: 20
    rate: 100/s
    burst: 5
    per_tenant: {concurrency: 4, rate: 600/min}
    breaker: {failures: 3, probe_every: 30s}
  "*":
    breaker: true
"""
EMBEDDING = ServiceLimits(
    concurrency=20,
    rate=Rate(tokens=100, per_ms=1_000, burst=5),
    tenant_concurrency=4,
    tenant_rate=Rate(tokens=600, per_ms=60_000, burst=1),
    breaker=BreakerRule(failures_max=3, probe_every_ms=30_000),
)


def _folder(path: Path) -> FolderRegistry:
    return FolderRegistry(path, BuiltinRegistry(), StepPolicy())


def test_a_document_beside_the_protocols_limits_services(tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text(FULL)
    registry = _folder(tmp_path)
    assert registry.problems() == ()
    assert registry.services()["embedding"] == EMBEDDING
    assert registry.services()["*"].breaker == BreakerRule(failures_max=5, probe_every_ms=10_000)
    assert registry.resolve("OCR") is not None


def test_a_change_is_followed_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text("services: {ocr: {concurrency: 1}}")
    registry = _folder(tmp_path)
    file.write_text("services: {ocr: {concurrency: 200}}")
    assert registry.refresh()
    assert registry.services()["ocr"].concurrency == 200
    file.write_text("services: {ocr: {concurency: 2}}")
    registry.refresh()
    assert registry.services()["ocr"].concurrency == 200
    assert registry.problems() == (
        "limits.yaml: /services/ocr/concurency: is not known here; known are concurrency, rate, burst, "
        "per_tenant, breaker; was concurrency meant?",
        "limits.yaml: the limits of its last good version hold",
    )
    file.unlink()
    registry.refresh()
    assert registry.services() == {}


def test_a_service_has_the_limits_of_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("services: {ocr: {concurrency: 1}}")
    (tmp_path / "b.yaml").write_text("services: {ocr: {concurrency: 2}, sis: {concurrency: 3}}")
    registry = _folder(tmp_path)
    assert {name: each.concurrency for name, each in registry.services().items()} == {"ocr": 1, "sis": 3}
    assert registry.problems() == ("b.yaml: /services/ocr: is limited by a.yaml already",)


def test_app_configuration_has_them_too_and_a_folder_goes_before_it(tmp_path: Path) -> None:
    below = AppConfigurationRegistry(lambda policy: BuiltinRegistry(defaults=policy), StepPolicy())
    below.take(
        ConfigurationSnapshot(values={"services": "services: {ocr: {concurrency: 9}, sis: {rate: 5/s}}"})
    )
    assert below.problems() == ()
    (tmp_path / "a.yaml").write_text("services: {ocr: {concurrency: 1}}")
    registry = FolderRegistry(tmp_path, below, StepPolicy())
    assert registry.services()["ocr"].concurrency == 1
    assert registry.services()["sis"].rate == Rate(tokens=5, per_ms=1_000, burst=1)
    below.take(ConfigurationSnapshot(values={}))
    assert registry.refresh()
    assert set(registry.services()) == {"ocr"}


@pytest.mark.parametrize(
    ("services", "problem"),
    [
        ([], "the document must be an object with the one member services"),
        ({"Ü": {}}, "/services/Ü: must be * or of the form"),
        ({"ocr": 20}, "/services/ocr: must be an object with concurrency, rate"),
        ({"ocr": {"concurrency": 0}}, "/services/ocr/concurrency: must be a whole number from 1 to 1000"),
        ({"ocr": {"rate": "100"}}, "/services/ocr/rate: must be such as 100/s or 600/min"),
        ({"ocr": {"rate": "0/s"}}, "/services/ocr/rate: must be such as 100/s or 600/min"),
        ({"ocr": {"burst": 3}}, "/services/ocr/burst: goes with a rate"),
        ({"ocr": {"per_tenant": {"rates": "1/s"}}}, "/services/ocr/per_tenant/rates: is not known here"),
        ({"ocr": {"breaker": 5}}, "/services/ocr/breaker: must be true, false or an object"),
        ({"ocr": {"breaker": {"probe_every": "1ms"}}}, "/services/ocr/breaker/probe_every: must be a span"),
    ],
)
def test_what_cannot_be_meant_is_told(services: Any, problem: str) -> None:
    parsed = parse_services({"services": services})
    assert isinstance(parsed, tuple)
    assert parsed[0].startswith(problem)
