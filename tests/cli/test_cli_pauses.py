"""`lucius pause …` and `lucius resume …` against a played API."""

import json
from collections.abc import Callable
from typing import Any

from tests.support.played_api import Done, PlayedApi

PAUSE: dict[str, Any] = {
    "kind": "service",
    "name": "ocr",
    "since": "2026-01-02T12:04:07.000Z",
    "reason": "no licence",
    "by": None,
}


def test_a_service_is_paused_with_a_reason(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    played_api.on("POST", "/v1/pauses", played_api.said(200, PAUSE))
    done = command_line("pause", "service", "ocr", "--reason", "no licence")
    assert (done.code, "service ocr is paused since 2026-01-02" in done.out + done.err) == (0, True)
    (asked,) = played_api.asked
    assert json.loads(asked.body) == {"kind": "service", "name": "ocr", "reason": "no licence"}


def test_what_is_paused_is_listed(played_api: "PlayedApi", command_line: "Callable[..., Done]") -> None:
    played_api.on("GET", "/v1/pauses", played_api.said(200, {"items": [PAUSE]}))
    done = command_line("pause", "list")
    assert done.out.splitlines()[1].split()[:2] == ["service", "ocr"]


def test_a_tenant_is_resumed(played_api: "PlayedApi", command_line: "Callable[..., Done]") -> None:
    answer = {"kind": "tenant", "name": "acme", "was_paused": True}
    played_api.on("POST", "/v1/pauses:resume", played_api.said(200, answer))
    done = command_line("resume", "tenant", "acme")
    assert (done.code, "tenant acme goes on" in done.out + done.err) == (0, True)
    (asked,) = played_api.asked
    assert json.loads(asked.body) == {"kind": "tenant", "name": "acme"}


def test_jobs_are_counted_first_and_resumed_if_asked(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    answer = {"matched": 3, "affected": 3, "refused": [], "next_cursor": None}
    played_api.on("POST", "/v1/jobs:bulk", played_api.said(200, answer))
    done = command_line("resume", "jobs", "--service", "ocr")
    assert "3 of 3 paused jobs would go on; --yes resumes them" in done.out + done.err
    done = command_line("resume", "jobs", "--service", "ocr", "--yes")
    assert "3 of 3 paused jobs go on" in done.out + done.err
    counted, resumed = (json.loads(asked.body) for asked in played_api.asked)
    assert counted == {
        "action": "resume",
        "filter": {"state": ["PAUSED"], "service": "ocr"},
        "dry_run": True,
    }
    assert resumed == {**counted, "dry_run": False}
