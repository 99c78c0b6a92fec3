"""What is read from App Configuration, as a registry: no store, no clock."""

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from lucius.assembly.azure.app_configuration import LiveModes
from lucius.core.model import ProtocolSpec, StepPolicy
from lucius.core.states import Mode
from lucius.jobs.submit import ModeConfig
from lucius.registry import BuiltinRegistry, FolderRegistry, Registry
from lucius.registry.app_configuration.last_good_copy import LastGoodCopy, read_copy, write_copy
from lucius.registry.app_configuration.registry import AppConfigurationRegistry
from lucius.registry.app_configuration.values import ConfigurationSnapshot, flags_of


def document(protocol_id: str, *request_types: str, **step: object) -> str:
    steps = [{"step_type": "S", "service": "mine", **step}]
    return json.dumps({"protocol_id": protocol_id, "request_types": list(request_types), "steps": steps})


def registry() -> AppConfigurationRegistry:
    return AppConfigurationRegistry(lambda policy: BuiltinRegistry(defaults=policy), StepPolicy())


def reading(values: Mapping[str, str], **more: object) -> ConfigurationSnapshot:
    return ConfigurationSnapshot(values=dict(values), **more)  # type: ignore[arg-type]


def resolved(found: Registry, request_type: str) -> ProtocolSpec:
    protocol = found.resolve(request_type)
    assert protocol is not None
    return protocol


def test_documents_are_laid_over_the_built_in_set() -> None:
    found = registry()
    yaml = "protocol_id: y\nrequest_types: [Y, OCR]\nsteps: [{step_type: S, service: mine}]"
    assert found.take(reading({"protocols/a": document("a_v1", "A"), "protocols/y": yaml, "sentinel": "1"}))
    assert resolved(found, " A ").protocol_id == "a_v1"
    assert resolved(found, "OCR").protocol_id == "y"
    assert resolved(found, "SIS").protocol_id == "sis_v1"
    assert found.find("ocr_v1") is not None
    assert {"A", "Y", "OCR", "SIS"} <= set(found.request_types())
    assert found.problems() == ()


def test_the_same_again_is_no_news() -> None:
    found = registry()
    said = reading({"protocols/a": document("a_v1", "A"), "sentinel": "1"})
    assert found.take(said)
    served = found.all()
    assert not found.take(said)
    assert not found.take(reading({**said.values, "sentinel": "2"}))
    assert found.all() is served


@pytest.mark.parametrize("bad", ["", "{", "[]", "x" * 300_000, document("a b", "A"), '{"protocol_id": NaN}'])
def test_a_bad_document_keeps_the_last_good_version(bad: str) -> None:
    found = registry()
    found.take(reading({"protocols/a": document("a_v1", "A")}))
    assert found.take(reading({"protocols/a": bad}))
    assert resolved(found, "A").protocol_id == "a_v1"
    problems = found.problems()
    assert all(problem.startswith("lucius/protocols/a: ") for problem in problems)
    assert problems[-1] == "lucius/protocols/a: the last good version (a_v1) is still served"
    assert found.good_values() == {"protocols/a": document("a_v1", "A")}
    found.take(reading({"protocols/a": document("a_v2", "A")}))
    assert resolved(found, "A").protocol_id == "a_v2"
    assert found.problems() == ()


def test_a_document_that_was_never_good_serves_nothing() -> None:
    found = registry()
    found.take(reading({"protocols/a": "{"}))
    assert len(found.all()) == 6
    assert len(found.problems()) == 1
    assert found.good_values() == {}


def test_a_removed_key_takes_its_protocol_with_it() -> None:
    found = registry()
    found.take(reading({"protocols/a": document("mine_v1", "OCR")}))
    assert found.take(reading({}))
    assert resolved(found, "OCR").protocol_id == "ocr_v1"
    assert found.find("mine_v1") is None


def test_two_documents_claim_one_request_type() -> None:
    found = registry()
    found.take(reading({"protocols/b": document("b_v1", "X"), "protocols/a": document("a_v1", "X")}))
    assert resolved(found, "X").protocol_id == "a_v1"
    (problem,) = found.problems()
    assert problem.startswith("lucius/protocols/b: ")
    assert "lucius/protocols/a" in problem


def test_who_serves_a_request_type_keeps_it() -> None:
    found = registry()
    found.take(reading({"protocols/b": document("b_v1", "X")}))
    found.take(reading({"protocols/b": document("b_v1", "X"), "protocols/a": document("a_v1", "X")}))
    assert resolved(found, "X").protocol_id == "b_v1"
    (problem,) = found.problems()
    assert problem.startswith("lucius/protocols/a: ")


def test_a_value_that_cannot_be_had_keeps_what_was_known() -> None:
    found = registry()
    found.take(reading({"protocols/a": document("a_v1", "A")}))
    found.take(reading({}, faults={"protocols/a": "cannot be resolved", "protocols/b": "cannot be resolved"}))
    assert resolved(found, "A").protocol_id == "a_v1"
    assert len(found.problems()) == 3


def test_defaults_reach_the_built_in_set_and_the_documents() -> None:
    found = registry()
    found.take(
        reading({"protocols/a": document("a_v1", "A"), "protocols/b": document("b_v1", "B", lease="1m")})
    )
    found.take(
        reading(
            {
                "protocols/a": document("a_v1", "A"),
                "protocols/b": document("b_v1", "B", lease="1m"),
                "defaults": json.dumps({"mode": "safe", "max_attempts": 7, "lease": "2m"}),
            }
        )
    )
    assert resolved(found, "OCR").steps[0].policy.max_attempts == 7
    assert resolved(found, "A").steps[0].policy.lease_ms == 120_000
    assert resolved(found, "B").steps[0].policy.lease_ms == 60_000
    assert found.overrides.global_mode is Mode.DEFAULT
    found.take(reading({"protocols/a": document("a_v1", "A")}))
    assert resolved(found, "OCR").steps[0].policy.max_attempts == 3
    assert resolved(found, "A").steps[0].policy.max_attempts == 3


def test_bad_defaults_and_a_bad_document_meet() -> None:
    found = registry()
    good = document("a_v1", "A")
    found.take(reading({"defaults": '{"max_attempts": 5}', "protocols/a": good}))
    found.take(reading({"defaults": '{"max_atempts": 5}', "protocols/a": "{"}))
    assert resolved(found, "A").steps[0].policy.max_attempts == 5
    found.take(reading({"defaults": '{"max_attempts": 6}', "protocols/a": "{"}))
    assert resolved(found, "A").steps[0].policy.max_attempts == 6
    assert any("still served" in problem for problem in found.problems())


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("tenants/t", '{"mode": "FAST"}', "/mode: must be DEFAULT (or SAFE) or BURST"),
        (
            "tenants/t",
            '{"mod": "BURST"}',
            "/mod: is not known here; known are budget, burst_allowed, inflight_max, mode; was mode",
        ),
        ("tenants/t", '{"burst_allowed": "no"}', "/burst_allowed: must be true or false"),
        ("tenants/t", '{"inflight_max": true}', "/inflight_max: must be a whole number of jobs from 0 to"),
        ("tenants/t", '{"inflight_max": -1}', "/inflight_max: must be a whole number of jobs from 0 to"),
        ("tenants/t", "7", "the document must be an object"),
        ("defaults", '{"mode": 1}', "/mode: must be DEFAULT (or SAFE) or BURST"),
        (
            "defaults",
            '{"lease": "0"}',
            "/lease: must be a span from 1ms to 3650d, such as 30, 500ms, 30s, 15m or 2h",
        ),
        ("settings/PATH", "x", "a setting is named as its variable, LUCIUS_…"),
        ("tenant/t", "{}", "nothing is kept under this key"),
    ],
)
def test_problems_are_told_by_key(key: str, text: str, told: str) -> None:
    found = registry()
    found.take(reading({key: text}))
    (problem,) = found.problems()
    assert problem.startswith(f"lucius/{key}: {told}")


def test_tenants_and_defaults_decide_modes_over_the_settings() -> None:
    found = registry()
    own = ModeConfig(tenant_modes={"a": Mode.BURST, "b": Mode.BURST}, burst_denied=frozenset({"c", "d"}))
    own = msgspec.structs.replace(own, tenant_limits={"f": 5, "g": 7})
    modes = LiveModes(found, own)

    def shown() -> ModeConfig:
        return ModeConfig(
            global_mode=modes.global_mode,
            tenant_modes=modes.tenant_modes,
            burst_denied=modes.burst_denied,
            tenant_limits=modes.tenant_limits,
        )

    assert shown() == own
    found.take(
        reading(
            {
                "defaults": '{"mode": "BURST"}',
                "tenants/ B ": "mode: DEFAULT",
                "tenants/C": '{"burst_allowed": true}',
                "tenants/e": '{"burst_allowed": false}',
                "tenants/ F": '{"inflight_max": 0}',
            }
        )
    )
    assert modes.global_mode is Mode.BURST
    assert modes.tenant_modes == {"a": Mode.BURST, "b": Mode.DEFAULT}
    assert modes.burst_denied == {"d", "e"}
    assert modes.tenant_limits == {"f": 0, "g": 7}
    found.take(reading({}))
    assert shown() == own


def test_a_folder_above_sees_what_changes_below(tmp_path: Path) -> None:
    found = registry()
    (tmp_path / "b.json").write_text(document("b_v1", "B"))
    folder = FolderRegistry(tmp_path, found, StepPolicy())
    found.take(reading({"protocols/a": document("a_v1", "A", "B")}))
    assert folder.refresh()
    assert resolved(folder, "A").protocol_id == "a_v1"
    assert resolved(folder, "B").protocol_id == "b_v1"


def test_secrets_are_neither_kept_nor_shown() -> None:
    found = registry()
    secret = "canary-5c0ffee: ["
    values = {"settings/LUCIUS_NATS_PASSWORD": secret, "protocols/a": secret}
    found.take(reading(values, secret_keys=frozenset(values)))
    assert found.settings() == {"LUCIUS_NATS_PASSWORD": secret}
    assert found.good_values() == {}
    shown = repr((found.problems(), reading(values), found._entries))
    assert "5c0ffee" not in shown
    assert found.problems() == ("lucius/protocols/a: what the key vault holds is not such a document",)


def test_flags() -> None:
    filtered = json.dumps({"enabled": True, "conditions": {"client_filters": [{"name": "Percentage"}]}})
    found = flags_of(
        [
            (".appconfig.featureflag/on", '{"enabled": true, "conditions": {"client_filters": []}}'),
            (".appconfig.featureflag/off", '{"enabled": false}'),
            (".appconfig.featureflag/some", filtered),
            (".appconfig.featureflag/broken", "[]"),
            (".appconfig.featureflag/twice", "["),
            (".appconfig.featureflag/twice", '{"enabled": true}'),
        ]
    )
    assert found.by_name == {"on": True, "off": False, "some": False, "broken": False, "twice": True}
    assert [problem.partition(":")[0].rpartition("/")[2] for problem in found.problems] == ["some", "broken"]


def test_a_change_of_flags_alone_is_news() -> None:
    found = registry()
    assert found.take(reading({}, features={"beta": True}))
    assert found.features == {"beta": True}
    assert not found.take(reading({}, features={"beta": True}))


def test_a_copy_is_read_back_for_its_own_store_only(tmp_path: Path) -> None:
    file = tmp_path / "copy.json"
    copy = LastGoodCopy(source="https://a#prod", read_at_ms=1, values={"k": "v"}, features={"f": True})
    write_copy(file, copy)
    write_copy(file, copy)
    assert [path.name for path in tmp_path.iterdir()] == ["copy.json"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_copy(file, "https://a#prod") == copy
    assert read_copy(file, "https://a#test") is None
    file.write_text(file.read_text()[:-3])
    assert read_copy(file, "https://a#prod") is None
    assert read_copy(tmp_path / "none", "https://a#prod") is None


def test_a_copy_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "copy.json"
    write_copy(file, LastGoodCopy(source="s", read_at_ms=1, values={}))
    spoiled = LastGoodCopy(source="s", read_at_ms=2, values={"k": object()})  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        write_copy(file, spoiled)
    assert [path.name for path in tmp_path.iterdir()] == ["copy.json"]
    kept = read_copy(file, "s")
    assert kept is not None
    assert kept.read_at_ms == 1
