"""The client against a played server: retries, keys, errors, and what it makes of nonsense."""

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.client_environment import World
from tests.support.played_api import PlayedApi

from lucius.client import (
    BY_CONTENT,
    Job,
    JobCancelled,
    JobFailed,
    JobStillOpen,
    Lucius,
    LuciusError,
    RetryPolicy,
    Unreachable,
)

ENVELOPE: dict[str, Any] = {
    "tenant_id": "acme",
    "request_type": "OCR",
    "input_ref": {"uri": "s3://in/a.pdf"},
    "output_ref": {"uri": "s3://out/a.json"},
    "payload": {},
    "schema_version": "1",
}
ACCEPTED = {"jobId": "job_1", "state": "QUEUED", "duplicate": False}


async def test_a_limit_is_waited_for_with_the_same_key(
    played_api: "PlayedApi", lucius_at: Callable[..., Lucius], world: "World"
) -> None:
    busy = played_api.problem(429, "TENANT_LIMIT", "too many")._replace(headers={"Retry-After": "3"})
    full = played_api.problem(503, "SYSTEM_SATURATED", "full")
    played_api.on("POST", "/v1/orchestrate", busy, full, played_api.said(202, ACCEPTED))
    told: list[tuple[str | None, float]] = []
    async with lucius_at(on_retry=lambda error, pause: told.append((error.code, pause))) as lucius:
        accepted = await lucius.submit(ENVELOPE)
    assert (accepted.job_id, accepted.state, accepted.duplicate) == ("job_1", "QUEUED", False)
    assert {asked.headers["idempotency-key"] for asked in played_api.asked} == {"auto-1"}
    assert [asked.body for asked in played_api.asked] == [played_api.asked[0].body] * 3
    # Never sooner than the server asked; without its word, a growing pause with chance in it.
    assert world.slept == [pytest.approx(3.1), pytest.approx(0.3)]
    assert [code for code, _ in told] == ["TENANT_LIMIT", "SYSTEM_SATURATED"]


async def test_patience_has_bounds(
    played_api: "PlayedApi", lucius_at: Callable[..., Lucius], world: "World"
) -> None:
    late = played_api.problem(429, "TENANT_LIMIT", "too many")._replace(headers={"Retry-After": "31"})
    played_api.on("POST", "/v1/orchestrate", late)
    async with lucius_at() as lucius:
        with pytest.raises(LuciusError) as caught:
            await lucius.submit(ENVELOPE)
        assert (caught.value.code, caught.value.status) == ("TENANT_LIMIT", 429)
        assert caught.value.retry_after_seconds == 31
        assert (len(played_api.asked), world.slept) == (1, [])
        played_api.on("GET", "/v1/jobs/job_1", played_api.problem(503, "SYSTEM_SATURATED", "full"))
        with pytest.raises(LuciusError, match="SYSTEM_SATURATED: full"):
            await lucius.job("job_1")
    assert len(world.slept) == RetryPolicy().retries_max
    assert world.slept == sorted(world.slept)
    assert sum(world.slept) <= RetryPolicy().total_seconds_max


@pytest.mark.parametrize("text", ["soon", "-1", "1e3", "9999999", "Wed, 21 Oct 2026 07:28:00 GMT", ""])
async def test_a_retry_after_that_is_no_number_of_seconds_is_left_out(
    played_api: "PlayedApi", lucius_at: Callable[..., Lucius], world: "World", text: str
) -> None:
    busy = played_api.problem(503, "SYSTEM_SATURATED", "full")._replace(headers={"Retry-After": text})
    played_api.on("GET", "/v1/jobs/job_1", busy, played_api.said(200, played_api.job("QUEUED")))
    async with lucius_at() as lucius:
        assert (await lucius.job("job_1")).state == "QUEUED"
    assert world.slept == [pytest.approx(0.15)]


@pytest.mark.parametrize(
    ("envelope", "key", "sent"),
    [
        (ENVELOPE, None, "auto-1"),
        (ENVELOPE, "mine", "mine"),
        (ENVELOPE, BY_CONTENT, None),
        (ENVELOPE | {"idempotency_key": "inside"}, None, None),
        (b'{"idempotency_key": "inside"}', None, None),
        (b"not json", None, "auto-1"),
    ],
)
async def test_every_command_has_a_key_or_is_its_own(
    played_api: "PlayedApi", lucius_at: Callable[..., Lucius], envelope: Any, key: Any, sent: str | None
) -> None:
    played_api.on("POST", "/v1/orchestrate", played_api.said(202, ACCEPTED))
    async with lucius_at() as lucius:
        await lucius.submit(envelope, idempotency_key=key)
    assert played_api.asked[0].headers.get("idempotency-key") == sent


async def test_members_make_an_envelope_and_win_over_one(
    played_api: "PlayedApi", lucius_at: Callable[..., Lucius]
) -> None:
    played_api.on("POST", "/v1/orchestrate", played_api.said(202, ACCEPTED))
    async with lucius_at() as lucius:
        await lucius.submit(
            tenant_id="acme", request_type="OCR", input_ref="s3://in/a.pdf", output_ref="s3://out/a.json"
        )
        await lucius.submit(ENVELOPE, tenant_id="other")
        with pytest.raises(TypeError, match="takes no members"):
            await lucius.submit(b"{}", tenant_id="x")
        with pytest.raises(ValueError, match="JSON compliant"):
            await lucius.submit(ENVELOPE, payload={"n": float("nan")})
        with pytest.raises(ValueError, match="printable ASCII"):
            await lucius.submit(ENVELOPE, idempotency_key="a\nb")
    sent = [json.loads(asked.body) for asked in played_api.asked]
    assert sent == [ENVELOPE, ENVELOPE | {"tenant_id": "other"}]


async def test_a_batch_carries_a_key_for_each_and_keeps_the_order(
    played_api: "PlayedApi", lucius_at: Callable[..., Lucius]
) -> None:
    refusal = json.loads(played_api.problem(422, "INVALID_PAYLOAD", "no").body)
    played_api.on("POST", "/v1/orchestrate:batch", played_api.said(200, {"items": [ACCEPTED, refusal]}))
    async with lucius_at() as lucius:
        first, second = await lucius.batch([ENVELOPE, ENVELOPE | {"idempotency_key": "k"}])
        with pytest.raises(ValueError, match="at most 500"):
            await lucius.batch([ENVELOPE] * 501)
    assert getattr(first, "job_id", None) == "job_1"
    assert getattr(second, "code", None) == "INVALID_PAYLOAD"
    commands = json.loads(played_api.asked[0].body)["commands"]
    assert [command["idempotency_key"] for command in commands] == ["auto-1", "k"]


async def test_a_refusal_names_its_fields_and_keeps_the_document(
    played_api: "PlayedApi", lucius_at: Callable[..., Lucius]
) -> None:
    refusal = played_api.problem(
        422, "INVALID_PAYLOAD", "does not fit", [{"pointer": "/payload/x", "message": "must be a number"}]
    )
    played_api.on("POST", "/v1/orchestrate", refusal)
    async with lucius_at() as lucius:
        with pytest.raises(LuciusError) as caught:
            await lucius.submit(ENVELOPE)
    error = caught.value
    assert (error.code, error.status, error.message) == ("INVALID_PAYLOAD", 422, "does not fit")
    assert [(fault.pointer, fault.message) for fault in error.errors] == [("/payload/x", "must be a number")]
    assert error.body == refusal.body
    assert str(error) == "INVALID_PAYLOAD: does not fit; /payload/x: must be a number"
    assert len(played_api.asked) == 1


def _hangs_up(times: int) -> tuple[str, Callable[[], int]]:
    """A server that takes a request and hangs up without a word, so often; how often it did."""
    listener = socket.create_server(("127.0.0.1", 0))
    count = 0

    def serve() -> None:
        nonlocal count
        with listener:
            while count < times:
                caller, _ = listener.accept()
                with caller:
                    caller.recv(65_536)
                    count += 1

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}", lambda: count


@pytest.mark.parametrize(("key", "tries"), [("k", 4), (None, 1)])
async def test_what_could_be_done_twice_is_not_repeated_after_a_break(
    world: "World", key: str | None, tries: int
) -> None:
    url, count = _hangs_up(tries)
    async with Lucius(url, "", outside=world.outside(), retry=RetryPolicy(retries_max=3)) as lucius:
        with pytest.raises(Unreachable) as caught:
            await lucius.rerun("job_1", idempotency_key=key)
    assert caught.value.sent
    assert count() == tries


async def test_nobody_there_is_unreachable_and_never_tells_the_key(world: "World") -> None:
    # Whatever could not be sent may be sent again.
    async with Lucius("http://127.0.0.1:1", "very-secret", outside=world.outside()) as lucius:
        with pytest.raises(Unreachable, match=r"^Cannot connect to http://127\.0\.0\.1:1: ") as caught:
            await lucius.rerun("job_1")
    assert not caught.value.sent
    assert len(world.slept) == RetryPolicy().retries_max
    assert "very-secret" not in repr(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "key", "words"),
    [
        ("ftp://host", None, "The url must look like"),
        ("http://ann:secret@host", None, "must not carry a name or password"),
        ("http://host", "secret\n", None),
        ("http://host", "sec\nret", "characters that no key has"),
    ],
)
def test_addresses_and_keys_are_checked_at_once(
    world: "World", url: str, key: str | None, words: str | None
) -> None:
    if words is None:
        assert Lucius(url, key, outside=world.outside()).url == "http://host"
        return
    with pytest.raises(ValueError, match=words) as caught:
        Lucius(url, key, outside=world.outside())
    assert "secret" not in str(caught.value)
    assert key is None or key not in str(caught.value)


async def test_the_environment_fills_in(played_api: "PlayedApi", world: "World") -> None:
    played_api.on("GET", "/v1/protocols", played_api.listed())
    outside = world.outside(LUCIUS_URL=played_api.url, LUCIUS_API_KEY="k-1")
    async with Lucius(outside=outside) as lucius:
        assert await lucius.protocols() == ()
    async with Lucius(api_key="k-2", outside=outside) as lucius:
        await lucius.protocols()
    sent = [asked.headers["authorization"] for asked in played_api.asked]
    assert sent == ["Bearer k-1", "Bearer k-2"]
    assert Lucius(outside=world.outside()).url == "http://127.0.0.1:8420"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, b"<html>", LuciusError),
        (200, b'{"state": "QUEUED"}', LuciusError),
        (200, b'{"jobId": 5, "state": "QUEUED"}', LuciusError),
        (302, b"", LuciusError),
        (404, b'{"detail": "no"}', LuciusError),
        (502, b"bad gateway", Unreachable),
    ],
)
async def test_what_no_lucius_says_is_an_error(
    played_api: "PlayedApi", lucius_at: Callable[..., Lucius], status: int, body: bytes, kind: type[Exception]
) -> None:
    played_api.on("GET", "/v1/jobs/job_1", played_api.listed()._replace(status=status, body=body))
    async with lucius_at(retry=RetryPolicy(retries_max=0)) as lucius:
        with pytest.raises(kind) as caught:
            await lucius.job("job_1")
    assert isinstance(caught.value, LuciusError)
    assert (caught.value.code, caught.value.status) == (None, status)


async def test_a_newer_server_may_say_more(played_api: "PlayedApi", lucius_at: Callable[..., Lucius]) -> None:
    newer = played_api.job("HIBERNATING", played_api.step(1, "DREAMING", mood="calm")) | {"colour": "blue"}
    played_api.on("GET", "/v1/jobs/job_1", played_api.said(200, newer))
    async with lucius_at() as lucius:
        job = await lucius.job("job_1", wait_seconds=2)
        answer = await lucius.request("GET", "/v1/jobs/job_1")
    assert (job.state, job.terminal, job.steps[0].state) == ("HIBERNATING", False, "DREAMING")
    assert answer.doc["colour"] == "blue"
    assert played_api.asked[0].query == {"wait": "2"}


async def test_lists_follow_their_cursors_and_never_in_circles(
    played_api: "PlayedApi", lucius_at: Callable[..., Lucius]
) -> None:
    one, two = ({"jobId": name, "state": "QUEUED"} for name in ("a", "b"))
    played_api.on("GET", "/v1/jobs", played_api.listed(one, next_cursor="c1"), played_api.listed(two))
    async with lucius_at() as lucius:
        found = [job.job_id async for job in lucius.jobs(tenant_id="acme", state="QUEUED", limit=1)]
        assert found == ["a", "b"]
        query = {"tenant_id": "acme", "state": "QUEUED", "limit": "1"}
        assert [asked.query for asked in played_api.asked] == [query, query | {"cursor": "c1"}]
        played_api.on("GET", "/v1/admin/dlq", played_api.listed(one, next_cursor="round"))
        with pytest.raises(LuciusError, match="leads back"):
            _ = [job async for job in lucius.dlq()]


async def test_run_raises_with_the_job_inside(
    played_api: "PlayedApi", lucius_at: Callable[..., Lucius], world: "World"
) -> None:
    played_api.on("POST", "/v1/orchestrate", played_api.said(202, ACCEPTED))
    async with lucius_at() as lucius:
        failed = played_api.job("FAILED_FINAL", error_code="BAD_PDF", error_message="no pages")
        played_api.on(
            "GET",
            "/v1/jobs/job_1",
            played_api.said(200, played_api.job("QUEUED")),
            played_api.said(200, failed),
        )
        with pytest.raises(JobFailed, match=r"^job_1 FAILED_FINAL: BAD_PDF: no pages$") as caught:
            await lucius.run(ENVELOPE)
        assert isinstance(caught.value.job, Job)
        assert (caught.value.code, caught.value.job.error_message) == ("BAD_PDF", "no pages")
        assert world.slept == [0.2]
        played_api.on("GET", "/v1/jobs/job_1", played_api.said(200, played_api.job("CANCELLED")))
        with pytest.raises(JobCancelled):
            await lucius.run(ENVELOPE)
        played_api.on("GET", "/v1/jobs/job_1", played_api.said(200, played_api.job("PAUSED")))
        with pytest.raises(JobStillOpen, match="still PAUSED") as open_still:
            await lucius.run(ENVELOPE, within_seconds=0)
        assert open_still.value.job.state == "PAUSED"


async def test_ids_are_quoted_on_their_way(played_api: "PlayedApi", lucius_at: Callable[..., Lucius]) -> None:
    async with lucius_at() as lucius:
        for call in (lucius.job, lucius.cancel, lucius.explain, lucius.redrive, lucius.protocol):
            with pytest.raises(LuciusError, match="NOT_FOUND"):
                await call("../admin?x#y")
    assert all("..%2Fadmin%3Fx%23y" in asked.path and not asked.query for asked in played_api.asked)
