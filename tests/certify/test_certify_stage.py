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
from tests.project.test_docs import DOCS, anchors_of

from lucius.certify.http_side import HttpSide
from lucius.certify.rules import LAST, RULES
from lucius.certify.samples import SKELETON, pictures_pdf, read_samples, samples_for
from lucius.certify.testbed import CertifySubject, ServiceTestbed
from lucius.certify.transcript import ObservedAttempt, Transcript
from lucius.certify.values import Carrier, CertifyTimeouts
from lucius.cli.service_new import LANGUAGES, write_skeleton
from lucius.sdk import parse_directive
from lucius.services.pdf import open_pdf

HEADERS = {"Authorization": "Bearer nonsense"}


class Setup:
    def __init__(self, testbed: ServiceTestbed, side: HttpSide, http: httpx2.AsyncClient) -> None:
        self.testbed, self.side, self.http = testbed, side, http

    async def lease(self, **more: Any) -> httpx2.Response:
        wanted = {"service": "hello", "max": 10, "wait_seconds": 1, **more}
        return await self.http.post("/v1/directives:lease", json=wanted)

    async def say(self, attempt: ObservedAttempt, kind: str, **more: Any) -> httpx2.Response:
        given = attempt.directive
        head = {name: given[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}
        return await self.http.post(
            f"/v1/callbacks/{kind.lower()}",
            json={**head, "type": kind, "timestamp": "2026-01-01T00:00:00Z", **more},
            headers={"Authorization": f"Bearer {given['callback_token']}"},
        )


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    clock, numbers = count(), count(1)
    transcript = Transcript(lambda: float(next(clock)))
    side = HttpSide(transcript, "hello")
    asked = CertifySubject(
        service="hello",
        step_type="HELLO",
        carrier=Carrier.HTTP,
        samples=SKELETON,
        timeouts=CertifyTimeouts(),
        base_url="http://certifier",
        folder=tmp_path,
    )
    testbed = ServiceTestbed(
        asked,
        transcript,
        side,
        polled=side,
        process=None,
        now_ms=lambda: 1_700_000_000_000,
        new_id=lambda: f"{next(numbers):024x}",
    )
    transport = httpx2.ASGITransport(app=side.app())
    async with httpx2.AsyncClient(transport=transport, base_url="http://certifier") as http:
        yield Setup(testbed, side, http)


async def test_a_directive_is_one_of_the_contract(setup: Setup) -> None:
    first = await setup.testbed.dispatch("ok")
    second = await setup.testbed.dispatch("slow", after=first)
    schema = json.loads((DOCS / "schemas" / "directive.json").read_text())
    for attempt in (first, second):
        assert list(jsonschema_rs.validator_for(schema).iter_errors(attempt.directive)) == []
        assert parse_directive(attempt.directive) is not None
    assert second.directive["attempt_no"] == 2
    assert second.directive["jobId"] == first.directive["jobId"]
    assert second.directive["lease_id"] != first.directive["lease_id"]
    leased = (await setup.lease()).json()["directives"]
    assert leased == [first.directive, second.directive]


async def test_replies_are_answered_as_lucius_answers_them(setup: Setup) -> None:
    attempt = await setup.testbed.dispatch("ok")
    assert (await setup.say(attempt, "ACK")).json() == {"outcome": "applied", "stop": False}
    assert (await setup.say(attempt, "ACK")).json() == {"outcome": "duplicate", "stop": False}
    attempt.stop = True
    assert (await setup.say(attempt, "PROGRESS", progress=1)).json() == {"outcome": "applied", "stop": True}
    attempt.results_unanswered = 1
    assert (await setup.say(attempt, "RESULT", status="SUCCEEDED")).status_code == 503
    assert (await setup.say(attempt, "RESULT", status="SUCCEEDED")).json()["outcome"] == "applied"
    assert (await setup.say(attempt, "PROGRESS", progress=2)).json() == {"outcome": "recorded", "stop": True}
    attempt.stale = True
    refused = await setup.say(attempt, "RESULT", status="SUCCEEDED")
    assert (refused.status_code, refused.json()["code"]) == (409, "STALE_ATTEMPT")
    assert refused.json()["stop"] is True
    asked = await setup.http.get(
        "/v1/callbacks/attempt", headers={"Authorization": f"Bearer {attempt.directive['callback_token']}"}
    )
    assert asked.json() == {"current": False, "stop": True, "reason": "the job waits for another attempt"}
    assert len(attempt.results) == 2 and setup.testbed.transcript.strays == []


async def test_calls_that_lucius_refuses_are_refused_and_written_down(setup: Setup) -> None:
    attempt = await setup.testbed.dispatch("ok")
    for wanted in ({"max": 0}, {"wait_seconds": 31}, {"lanes": [16]}, {"colour": 1}, {"service": "He llo"}):
        assert (await setup.lease(**wanted)).status_code == 422
    post = setup.http.post
    assert (await post("/v1/callbacks/ack", content=b"{", headers=HEADERS)).status_code == 400
    assert (await post("/v1/callbacks/ack", json={}, headers=HEADERS)).status_code == 401
    assert (await setup.http.get("/v1/callbacks/attempt", headers=HEADERS)).status_code == 401
    packed = {**HEADERS, "Content-Encoding": "gzip"}
    assert (await post("/v1/callbacks/ack", json={}, headers=packed)).status_code == 415
    assert (await post("/v1/directives:lease", json={}, headers=packed)).status_code == 415
    assert len(setup.testbed.transcript.strays) == 10
    assert (await setup.say(attempt, "RESULT", status="GOOD")).status_code == 422
    assert "must be SUCCEEDED" in str(attempt.received[0].problem)
    assert (await setup.lease(service="other", wait_seconds=0)).json() == {"directives": []}


async def test_a_poll_that_is_called_off_takes_nothing(setup: Setup) -> None:
    assert not await setup.side.until_polled(0.01)
    await setup.side.close()
    assert (await setup.lease(wait_seconds=30)).json() == {"directives": []}


async def test_a_service_that_is_told_to_end_gets_the_time_to_call_off_its_poll(setup: Setup) -> None:
    """On a busy machine it hears of it late, and what this poll got meanwhile would be lost."""
    polling = asyncio.create_task(setup.lease(wait_seconds=30))
    assert await setup.side.until_polled(10)
    waiting = asyncio.create_task(setup.testbed.polls_called_off())
    await asyncio.sleep(2 * setup.testbed.timeouts.settle_seconds)
    assert not waiting.done()
    await setup.side.end_polls()
    await asyncio.wait_for(waiting, 10)
    assert (await polling).json() == {"directives": []}


def test_every_rule_stands_in_the_contract_and_on_its_page() -> None:
    anchors = anchors_of(DOCS / "guides" / "platform-services.md")
    assert {rule.paragraph for rule in RULES} <= anchors
    page = (DOCS / "reference" / "certificate.md").read_text()
    for rule in RULES:
        link = f"../guides/platform-services.md#{rule.paragraph}"
        row = f"| `{rule.id}` | {rule.title} | [{rule.paragraph}]({link}) |"
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
