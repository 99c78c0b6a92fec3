"""The file of tenants: what it may say, and what is said of what it may not."""

from pathlib import Path

import pytest

from lucius.core.states import Mode
from lucius.registry.tenant_rules import TenantRule, parse_tenants_file
from lucius.settings import BadSetting, read_settings


@pytest.mark.parametrize(
    "text",
    [
        "tenants:\n  ' Zürich ': {mode: safe, inflight_max: 3}\n  acme: {burst_allowed: true}\n",
        '{"tenants": {"Zürich": {"mode": "DEFAULT", "inflight_max": 3}, "acme": {"burst_allowed": true}}}',
    ],
)
def test_rules_are_read_by_tenant(text: str) -> None:
    assert parse_tenants_file(text.encode()) == {
        "zürich": TenantRule(mode=Mode.DEFAULT, inflight_max=3),
        "acme": TenantRule(burst_allowed=True),
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the document is empty"),
        ("tenants: [", "cannot be read as YAML"),
        ("acme: {}", "with the one member tenants"),
        ("tenants: {}\nmore: 1", "with the one member tenants"),
        ("tenants: [acme]", "with the one member tenants"),
        ("tenants: {acme: 7}", "/tenants/acme: must be an object"),
        ("tenants: {' ': {}}", "must be the name of a tenant"),
        ("tenants: {acme: {}, ' ACME': {}}", "and there once"),
        ("tenants: {acme: {inflight_maximum: 7}}", "/tenants/acme/inflight_maximum: is not known here"),
        ("tenants: {acme: {inflight_maximum: 7}}", "was inflight_max meant?"),
        ("tenants: {acme: {inflight_max: 1.5}}", "/tenants/acme/inflight_max: must be a whole number"),
    ],
)
def test_a_file_that_cannot_be_used_stops_the_start(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "tenants.yaml"
    path.write_text(text)
    with pytest.raises(BadSetting, match="LUCIUS_TENANTS_FILE: ") as refused:
        read_settings({"LUCIUS_TENANTS_FILE": str(path)})
    assert told in str(refused.value)


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="LUCIUS_TENANTS_FILE names no file that can be read"):
        read_settings({"LUCIUS_TENANTS_FILE": str(tmp_path / "none.yaml")})
