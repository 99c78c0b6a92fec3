"""What the certifier hands out and answers is what Lucius hands out and answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from tests.rooms.test_docs import DOCS, anchors_of

from lucius.certify.book import Attempt, Book
from lucius.certify.http_door import HttpDoor
from lucius.certify.rules import LAST, RULES
from lucius.certify.samples import SKELETON, pictures_pdf, read_samples, samples_for
from lucius.certify.stage import Asked, Stage
from lucius.certify.values import Carrier, Patience
from lucius.cli.service_new import LANGUAGES, write_skeleton
from lucius.sdk import parse_directive
from lucius.services.pdf import open_pdf

HEADERS = {"Authorization": "Bearer nonsense"}


class Scene:
    def __init__(self, stage: Stage, door: HttpDoor, http: httpx2.AsyncClient) -> None:
        self.stage, self.door, self.http = stage, door, http

    async def lease(self, **more: Any) -> httpx2.Response:
        wish = {"service": "hello", "max": 10, "wait_seconds": 1, **more}
        return await self.http.post("/v1/directives:lease", json=wish)

    async def say(self, attempt: Attempt, kind: str, **more: Any) -> httpx2.Response:
        given = attempt.directive
        head = {name: given[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}
        return await self.http.post(
            f"/v1/callbacks/{kind.lower()}",
            json={**head, "type": kind, "timestamp": "2026-01-01T00:00:00Z", **more},
            headers={"Authorization": f"Bearer {given['callback_token']}"},
        )


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    clock, numbers = count(), count(1)
    book = Book(lambda: float(next(clock)))
    door = HttpDoor(book, "hello")
    asked = Asked(
        service="hello",
        step_type="HELLO",
        carrier=Carrier.HTTP,
        samples=SKELETON,
        patience=Patience(),
        base_url="http://certifier",
        folder=tmp_path,
    )
    stage = Stage(
        asked,
        book,
        door,
        polled=door,
        process=None,
        now_ms=lambda: 1_700_000_000_000,
        new_id=lambda: f"{next(numbers):024x}",
    )
    transport = httpx2.ASGITransport(app=door.app())
    async with httpx2.AsyncClient(transport=transport, base_url="http://certifier") as http:
        yield Scene(stage, door, http)


async def test_a_directive_is_one_of_the_contract(scene: Scene) -> None:
    first = await scene.stage.hand("ok")
    second = await scene.stage.hand("slow", after=first)
    schema = json.loads((DOCS / "schemas" / "directive.json").read_text())
    for attempt in (first, second):
        assert list(jsonschema_rs.validator_for(schema).iter_errors(attempt.directive)) == []
        assert parse_directive(attempt.directive) is not None
    assert second.directive["attempt_no"] == 2
    assert second.directive["jobId"] == first.directive["jobId"]
    assert second.directive["lease_id"] != first.directive["lease_id"]
    leased = (await scene.lease()).json()["directives"]
    assert leased == [first.directive, second.directive]


async def test_replies_are_answered_as_lucius_answers_them(scene: Scene) -> None:
    attempt = await scene.stage.hand("ok")
    assert (await scene.say(attempt, "ACK")).json() == {"outcome": "applied", "stop": False}
    assert (await scene.say(attempt, "ACK")).json() == {"outcome": "duplicate", "stop": False}
    attempt.stop = True
    assert (await scene.say(attempt, "PROGRESS", progress=1)).json() == {"outcome": "applied", "stop": True}
    attempt.results_unanswered = 1
    assert (await scene.say(attempt, "RESULT", status="SUCCEEDED")).status_code == 503
    assert (await scene.say(attempt, "RESULT", status="SUCCEEDED")).json()["outcome"] == "applied"
    assert (await scene.say(attempt, "PROGRESS", progress=2)).json() == {"outcome": "recorded", "stop": True}
    attempt.stale = True
    refused = await scene.say(attempt, "RESULT", status="SUCCEEDED")
    assert (refused.status_code, refused.json()["code"]) == (409, "STALE_ATTEMPT")
    assert refused.json()["stop"] is True
    asked = await scene.http.get(
        "/v1/callbacks/attempt", headers={"Authorization": f"Bearer {attempt.directive['callback_token']}"}
    )
    assert asked.json() == {"current": False, "stop": True, "reason": "the job waits for another attempt"}
    assert len(attempt.results) == 2 and scene.stage.book.strays == []


async def test_calls_that_lucius_refuses_are_refused_and_written_down(scene: Scene) -> None:
    attempt = await scene.stage.hand("ok")
    for wish in ({"max": 0}, {"wait_seconds": 31}, {"lanes": [16]}, {"colour": 1}, {"service": "He llo"}):
        assert (await scene.lease(**wish)).status_code == 422
    post = scene.http.post
    assert (await post("/v1/callbacks/ack", content=b"{", headers=HEADERS)).status_code == 400
    assert (await post("/v1/callbacks/ack", json={}, headers=HEADERS)).status_code == 401
    assert (await scene.http.get("/v1/callbacks/attempt", headers=HEADERS)).status_code == 401
    packed = {**HEADERS, "Content-Encoding": "gzip"}
    assert (await post("/v1/callbacks/ack", json={}, headers=packed)).status_code == 415
    assert (await post("/v1/directives:lease", json={}, headers=packed)).status_code == 415
    assert len(scene.stage.book.strays) == 10
    assert (await scene.say(attempt, "RESULT", status="GOOD")).status_code == 422
    assert "must be SUCCEEDED" in str(attempt.heard[0].problem)
    assert (await scene.lease(service="other", wait_seconds=0)).json() == {"directives": []}


async def test_a_poll_that_is_called_off_takes_nothing(scene: Scene) -> None:
    assert not await scene.door.until_polled(0.01)
    await scene.door.close()
    assert (await scene.lease(wait_seconds=30)).json() == {"directives": []}


async def test_a_service_that_is_told_to_end_gets_the_time_to_call_off_its_poll(scene: Scene) -> None:
    """On a busy machine it hears of it late, and what this poll got meanwhile would be lost."""
    polling = asyncio.create_task(scene.lease(wait_seconds=30))
    assert await scene.door.until_polled(10)
    waiting = asyncio.create_task(scene.stage.polls_called_off())
    await asyncio.sleep(2 * scene.stage.patience.settle_seconds)
    assert not waiting.done()
    await scene.door.end_polls()
    await asyncio.wait_for(waiting, 10)
    assert (await polling).json() == {"directives": []}


def test_every_rule_stands_in_the_contract_and_on_its_page() -> None:
    anchors = anchors_of(DOCS / "platform-services.md")
    assert {rule.paragraph for rule in RULES} <= anchors
    page = (DOCS / "certificate.md").read_text()
    for rule in RULES:
        row = f"| `{rule.id}` | {rule.title} | [{rule.paragraph}](platform-services.md#{rule.paragraph}) |"
        assert row in page
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert {rule.id for rule in RULES} > LAST


def test_the_samples_of_the_skeletons_are_those_that_are_built_in(tmp_path: Path) -> None:
    for lang in LANGUAGES:
        write_skeleton(tmp_path / lang, name="hello", step_type="HELLO", lang=lang)
        assert read_samples(tmp_path / lang / "certify.json") == samples_for("HELLO", tmp_path) == SKELETON


async def test_the_long_document_has_pages_without_text() -> None:
    async with open_pdf(pictures_pdf(3)) as pdf:
        assert [await pdf.text(number) for number in range(pdf.pages)] == [None, None, None]
