"""The built-in set, and a folder that people edit while it is served."""

import json
import os
from pathlib import Path

import pytest

from lucius.core.model import ProtocolSpec, StepPolicy
from lucius.registry import BuiltinRegistry, FolderRegistry, Registry

BUILTIN = BuiltinRegistry()


def text(protocol_id: str, *request_types: str, service: str = "mine") -> str:
    return json.dumps(
        {
            "protocol_id": protocol_id,
            "request_types": list(request_types),
            "steps": [{"step_type": "S", "service": service}],
        }
    )


def resolved(registry: Registry, request_type: str) -> ProtocolSpec:
    protocol = registry.resolve(request_type)
    assert protocol is not None
    return protocol


def folder(path: Path) -> FolderRegistry:
    return FolderRegistry(path, BUILTIN, StepPolicy())


@pytest.mark.parametrize(
    ("request_types", "protocol_id", "services"),
    [
        (["OCR"], "ocr_v1", ["ocr"]),
        (["EMBEDDING"], "embedding_v1", ["embedding"]),
        (["SIS"], "sis_v1", ["sis"]),
        (
            ["OCR_EMBEDDING", "OCR→EMBEDDING", "OCR->EMBEDDING", "  OCR_EMBEDDING "],
            "ocr_embedding_v1",
            ["ocr", "embedding"],
        ),
        (["EMBEDDING_SIS", "EMBEDDING→SIS", "EMBEDDING->SIS"], "embedding_sis_v1", ["embedding", "sis"]),
        (
            ["OCR_EMBEDDING_SIS", "OCR→EMBEDDING→SIS", "OCR->EMBEDDING->SIS"],
            "ocr_embedding_sis_v1",
            ["ocr", "embedding", "sis"],
        ),
    ],
)
def test_builtin(request_types: list[str], protocol_id: str, services: list[str]) -> None:
    for request_type in request_types:
        protocol = resolved(BUILTIN, request_type)
        assert protocol.protocol_id == protocol_id
        assert [step.service for step in protocol.steps] == services
        assert BUILTIN.find(protocol_id) is protocol


def test_builtin_set() -> None:
    assert len(BUILTIN.all()) == 6
    assert BUILTIN.problems() == ()
    assert len(BUILTIN.request_types()) == 12
    assert BUILTIN.resolve("ocr") is None
    assert BUILTIN.resolve("NOPE") is None
    assert BUILTIN.find("nope") is None


def test_builtin_takes_the_defaults_of_the_settings() -> None:
    registry = BuiltinRegistry(defaults=StepPolicy(max_attempts=9))
    assert {step.policy.max_attempts for protocol in registry.all() for step in protocol.steps} == {9}


def test_builtin_times_fit_the_work_unless_a_deployment_says_otherwise() -> None:
    def leases(registry: Registry) -> list[int]:
        (whole,) = (each for each in registry.all() if each.protocol_id == "ocr_embedding_sis_v1")
        return [step.policy.lease_ms // 60_000 for step in whole.steps]

    assert leases(BUILTIN) == [15, 5, 30]
    assert leases(BuiltinRegistry(defaults=StepPolicy(max_attempts=9))) == [15, 5, 30]
    assert leases(BuiltinRegistry(defaults=StepPolicy(lease_ms=480 * 60_000))) == [480] * 3
    assert leases(BuiltinRegistry(defaults=StepPolicy(max_duration_ms=2 * 86_400_000))) == [15] * 3


def test_a_folder_adds_to_what_is_below(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text("mine_v1", "MINE"))
    (tmp_path / "b.yml").write_text(
        "protocol_id: y\nrequest_types: [Y]\nsteps: [{step_type: S, service: s}]\n"
    )
    (tmp_path / "notes.txt").write_text("not a protocol")
    (tmp_path / ".hidden.yaml").write_text("{")
    registry = folder(tmp_path)
    assert resolved(registry, " MINE ").protocol_id == "mine_v1"
    assert resolved(registry, "Y").protocol_id == "y"
    assert resolved(registry, "OCR").protocol_id == "ocr_v1"
    assert len(registry.all()) == 8
    assert "MINE" in registry.request_types()
    assert registry.problems() == ()


def test_a_request_type_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text("mine_v1", "OCR_EMBEDDING"))
    registry = folder(tmp_path)
    assert resolved(registry, "OCR_EMBEDDING").protocol_id == "mine_v1"
    rest = resolved(registry, "OCR→EMBEDDING")
    assert rest.protocol_id == "ocr_embedding_v1"
    assert "OCR_EMBEDDING" not in rest.request_types
    assert registry.problems() == ()


def test_a_protocol_without_request_types_left_can_still_be_found(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text("mine_v1", "OCR"))
    registry = folder(tmp_path)
    assert "ocr_v1" not in {protocol.protocol_id for protocol in registry.all()}
    assert registry.find("ocr_v1") is not None


def test_an_id_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text("ocr_v1", "MY_OCR"))
    registry = folder(tmp_path)
    found = registry.find("ocr_v1")
    assert found is not None
    assert found.request_types == ("MY_OCR",)
    assert registry.resolve("OCR") is None
    assert BUILTIN.resolve("OCR") is not None


def test_two_files_claim_one_request_type(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(text("b_v1", "X", "ONLY_B"))
    (tmp_path / "a.json").write_text(text("a_v1", "X"))
    registry = folder(tmp_path)
    assert resolved(registry, "X").protocol_id == "a_v1"
    assert resolved(registry, "ONLY_B").protocol_id == "b_v1"
    (problem,) = registry.problems()
    assert problem.startswith("b.json: ")
    assert "a.json" in problem


def test_two_files_claim_one_id(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text("same", "A"))
    (tmp_path / "b.json").write_text(text("same", "B"))
    registry = folder(tmp_path)
    assert resolved(registry, "A").protocol_id == "same"
    assert registry.resolve("B") is None
    assert len(registry.problems()) == 1


def test_who_serves_a_name_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(text("m_v1", "X", "Y", service="old"))
    registry = folder(tmp_path)
    (tmp_path / "a.json").write_text(text("a_v1", "X", service="new"))
    (tmp_path / "b.json").write_text(text("m_v1", "Z", service="new"))
    assert registry.refresh()
    assert resolved(registry, "X").protocol_id == "m_v1"
    assert resolved(registry, "X").steps[0].service == "old"
    assert registry.resolve("Z") is None
    assert [problem.split(":")[0] for problem in registry.problems()] == ["a.json", "b.json"]
    assert all("m.json" in problem for problem in registry.problems())
    # An edit of its own takes nothing from it; giving a name up does, and so does going away.
    (tmp_path / "m.json").write_text(text("m_v1", "X", service="edited"))
    assert registry.refresh()
    assert resolved(registry, "X").steps[0].service == "edited"
    (tmp_path / "m.json").unlink()
    assert registry.refresh()
    assert resolved(registry, "X").protocol_id == "a_v1"
    assert resolved(registry, "Z").protocol_id == "m_v1"
    assert registry.problems() == ()


def test_who_is_left_out_keeps_no_name(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text("a_v1", "A"))
    (tmp_path / "b.json").write_text(text("b_v1", "B"))
    registry = folder(tmp_path)
    (tmp_path / "b.json").write_text(text("a_v1", "B"))
    (tmp_path / "c.json").write_text(text("c_v1", "B"))
    assert registry.refresh()
    assert resolved(registry, "B").protocol_id == "c_v1"
    assert resolved(registry, "A").protocol_id == "a_v1"
    (problem,) = registry.problems()
    assert problem.startswith("b.json: /protocol_id: ")


def test_refresh_does_nothing_when_nothing_changed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text("a_v1", "A"))
    registry = folder(tmp_path)
    before = resolved(registry, "A")
    assert registry.refresh() is False
    assert registry.resolve("A") is before


def test_an_edit_is_seen_and_others_are_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text("a_v1", "A"))
    (tmp_path / "b.json").write_text(text("b_v1", "B"))
    registry = folder(tmp_path)
    untouched = resolved(registry, "B")
    (tmp_path / "a.json").write_text(text("a_v2", "A"))
    os.utime(tmp_path / "a.json", ns=(1, 1))
    assert registry.refresh() is True
    assert resolved(registry, "A").protocol_id == "a_v2"
    assert registry.find("a_v1") is None
    assert registry.resolve("B") is untouched


BROKEN_DEFAULTS = text("a_v2", "A").replace(
    '"step_type"',
    '"payload_schema": {"properties": {"n": {"type": "string"}}}, "defaults": {"n": 5}, "step_type"',
)


@pytest.mark.parametrize(
    "bad",
    ["", "{", '{"protocol_id": "a_v2"', "[]", "x" * 300_000, text("a b", "A"), BROKEN_DEFAULTS],
)
def test_a_bad_edit_keeps_the_last_good_version(tmp_path: Path, bad: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text("a_v1", "A"))
    registry = folder(tmp_path)
    file.write_text(bad)
    assert registry.refresh() is True
    assert resolved(registry, "A").protocol_id == "a_v1"
    problems = registry.problems()
    assert problems
    assert all(problem.startswith("a.json: ") for problem in problems)
    assert registry.refresh() is False
    assert registry.problems() == problems
    file.write_text(text("a_v3", "A"))
    assert registry.refresh() is True
    assert resolved(registry, "A").protocol_id == "a_v3"
    assert registry.problems() == ()


def test_a_file_that_was_never_good_serves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("protocol_id: [")
    registry = folder(tmp_path)
    assert len(registry.all()) == 6
    assert len(registry.problems()) == 1


def test_a_removed_file_takes_its_protocol_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text("mine_v1", "OCR"))
    registry = folder(tmp_path)
    assert resolved(registry, "OCR").protocol_id == "mine_v1"
    (tmp_path / "a.json").unlink()
    assert registry.refresh() is True
    assert resolved(registry, "OCR").protocol_id == "ocr_v1"
    assert registry.find("mine_v1") is None


def test_a_folder_that_is_not_there_is_a_problem_and_may_come_later(tmp_path: Path) -> None:
    path = tmp_path / "protocols"
    registry = folder(path)
    assert resolved(registry, "OCR").protocol_id == "ocr_v1"
    assert len(registry.problems()) == 1
    path.mkdir()
    (path / "a.json").write_text(text("a_v1", "A"))
    assert registry.refresh() is True
    assert resolved(registry, "A").protocol_id == "a_v1"
    assert registry.problems() == ()
    path.rename(tmp_path / "away")
    assert registry.refresh() is True  # there is something to tell, once
    assert resolved(registry, "A").protocol_id == "a_v1"
    assert len(registry.problems()) == 1
    assert registry.refresh() is False
    (tmp_path / "away").rename(path)
    assert registry.refresh() is True
    assert registry.problems() == ()


def test_folders_can_be_stacked(tmp_path: Path) -> None:
    below, above = tmp_path / "below", tmp_path / "above"
    below.mkdir()
    above.mkdir()
    (below / "a.json").write_text(text("a_v1", "A"))
    lower = folder(below)
    upper = FolderRegistry(above, lower, StepPolicy())
    assert resolved(upper, "A").protocol_id == "a_v1"
    (below / "a.json").write_text(text("a_v22", "A"))
    assert lower.refresh() is True
    assert upper.refresh() is True
    assert resolved(upper, "A").protocol_id == "a_v22"
