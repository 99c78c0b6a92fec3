"""`lucius protocols …` and `lucius lane`: some against a played API, some with nothing but this machine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.played_api import Done, PlayedApi

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "routing.json").read_text()
)
PROTOCOL: dict[str, Any] = {
    "protocol_id": "ocr_v1",
    "request_types": ["OCR", "SCAN"],
    "steps": [
        {
            "step_type": "OCR",
            "service": "ocr",
            "payload_key": "ocr",
            "defaults": {"language": "en"},
            "payload_schema": {"type": "object"},
        }
    ],
}


def test_list_shows_request_types_and_steps(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    played_api.on("GET", "/v1/protocols", played_api.listed(PROTOCOL))
    done = command_line("protocols", "list")
    assert done.code == 0
    assert done.out.splitlines() == [
        "PROTOCOL  REQUEST TYPES  STEPS",
        "ocr_v1    OCR, SCAN      OCR",
    ]
    assert json.loads(command_line("protocols", "list", "--json").out) == {
        "items": [PROTOCOL],
        "next_cursor": None,
    }


def test_show_prints_the_schema_of_each_step(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    played_api.on("GET", "/v1/protocols/ocr_v1", played_api.said(200, PROTOCOL))
    done = command_line("protocols", "show", "ocr_v1")
    assert done.code == 0
    assert "request types  OCR, SCAN" in done.out
    assert '{"language":"en"}' in done.out
    assert '{"type":"object"}' in done.out
    assert json.loads(command_line("protocols", "show", "ocr_v1", "--json").out) == PROTOCOL


def test_check_accepts_a_good_document_without_a_server(
    played_api: "PlayedApi", command_line: "Callable[..., Done]", tmp_path: Path
) -> None:
    path = tmp_path / "ocr.json"
    path.write_text(json.dumps(PROTOCOL))
    done = command_line("protocols", "check", str(path))
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == "protocol       ocr_v1"
    checked = json.loads(command_line("protocols", "check", str(path), "--json").out)
    assert checked["valid"] is True
    assert checked["protocol"]["request_types"] == ["OCR", "SCAN"]
    assert played_api.asked == []


def test_check_reads_yaml_and_names_every_problem(
    command_line: "Callable[..., Done]", tmp_path: Path
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("protocol_id: x\nrequest_types: [X]\nsteps: [{service: ocr, max_attempts: 0}]\n")
    done = command_line("protocols", "check", str(path), "--json")
    assert done.code == 1
    answer = json.loads(done.out)
    assert answer["valid"] is False
    assert {problem.split(":")[0] for problem in answer["problems"]} == {
        "/steps/0/step_type",
        "/steps/0/max_attempts",
    }
    assert "is not a protocol" in done.err
    assert "/steps/0/max_attempts" in done.err


def test_check_tells_what_is_not_yaml(command_line: "Callable[..., Done]") -> None:
    done = command_line("protocols", "check", "-", stdin=b"steps: [")
    assert (done.code, done.out) == (1, "")
    assert "cannot be read as YAML" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: str(case["routing_key_used"])[:30])
def test_lane_agrees_with_the_vectors(command_line: "Callable[..., Done]", case: dict[str, Any]) -> None:
    burst = case["mode"] == "BURST"
    arguments = [case["tenant_id"], *([case["doc_id"]] if burst else [])]
    done = command_line("lane", "--json", "--", *arguments)
    assert done.code == 0
    answer = json.loads(done.out)
    names = ("lane", "topic", "reply_topic", "routing_key_used")
    assert {name: answer[name] for name in names} == {name: case[name] for name in names}
    assert answer["mode"] == ("BURST" if burst else "DEFAULT")


def test_lane_refuses_a_blank_tenant(command_line: "Callable[..., Done]") -> None:
    done = command_line("lane", "  ")
    assert (done.code, done.out) == (2, "")
    assert "must not be blank" in done.err


def test_check_takes_documents_of_services_too(tmp_path: Path, command_line: "Callable[..., Done]") -> None:
    path = tmp_path / "limits.yaml"
    path.write_text("services: {ocr: {concurrency: 20, rate: 100/s}}")
    done = command_line("protocols", "check", str(path))
    assert (done.code, done.out.split()) == (0, ["services", "ocr"])
    path.write_text("services: {ocr: {concurency: 20}}")
    done = command_line("protocols", "check", str(path))
    assert done.code == 1
    assert "is not a document of services" in done.err
    assert "was concurrency meant?" in done.err
