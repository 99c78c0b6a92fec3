"""Watching a job against a played server: streams that break, leave things out, or are not offered."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.client_environment import World
from tests.support.played_api import PlayedApi

from lucius.client import Lucius, LuciusError


def _stream(played_api: "PlayedApi", *events: dict[str, Any], tail: str = "") -> Any:
    text = "retry: 1000\n\n: hello\n\n" + "".join(
        f"id: {event['seq']}\nevent: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events
    )
    return played_api.listed()._replace(
        body=(text + tail).encode(), headers={"Content-Type": "text/event-stream; charset=utf-8"}
    )


async def test_watch_reads_the_stream_and_comes_back_where_it_broke(
    played_api: "PlayedApi", lucius_at: Callable[..., Lucius]
) -> None:
    first, second, third, last = (
        played_api.event(seq, kind)
        for seq, kind in enumerate(("JOB_CREATED", "STEP_ACKED", "SOMETHING_NEW", "JOB_SUCCEEDED"), start=1)
    )
    played_api.on(
        "GET",
        "/v1/jobs/job_1/events",
        _stream(played_api, first, tail='id: 2\ndata: {"seq": 2, "ty'),  # broken off in the middle
        played_api.listed(second),
        _stream(played_api, second, third, last, tail="data: farewell\n\n"),
        played_api.listed(),
    )
    open_job, ended = played_api.job("IN_PROGRESS"), played_api.job("SUCCEEDED")
    played_api.on("GET", "/v1/jobs/job_1", played_api.said(200, open_job), played_api.said(200, ended))
    async with lucius_at() as lucius:
        seen = [(event.seq, event.type) async for event in lucius.watch("job_1")]
    assert seen == [(1, "JOB_CREATED"), (2, "STEP_ACKED"), (3, "SOMETHING_NEW"), (4, "JOB_SUCCEEDED")]
    streams = [asked for asked in played_api.asked if asked.headers["accept"] == "text/event-stream"]
    assert [asked.headers["last-event-id"] for asked in streams] == ["0", "2"]


async def test_watch_fills_a_gap_in_the_stream_from_the_trail(
    played_api: "PlayedApi", lucius_at: Callable[..., Lucius]
) -> None:
    events = [played_api.event(seq, kind) for seq, kind in ((1, "A"), (2, "B"), (3, "JOB_FAILED"))]
    played_api.on(
        "GET",
        "/v1/jobs/job_1/events",
        _stream(played_api, events[0], events[2]),
        played_api.listed(*events[1:]),
    )
    played_api.on("GET", "/v1/jobs/job_1", played_api.said(200, played_api.job("FAILED_FINAL")))
    async with lucius_at() as lucius:
        assert [event.seq async for event in lucius.watch("job_1")] == [1, 2, 3]


async def test_watch_polls_where_there_is_no_stream_or_no_room_for_one(
    played_api: "PlayedApi", lucius_at: Callable[..., Lucius], world: "World"
) -> None:
    busy = played_api.problem(503, "SYSTEM_SATURATED", "no more streams")
    played_api.on(
        "GET",
        "/v1/jobs/job_1/events",
        busy,
        played_api.listed(played_api.event(1, "JOB_CREATED"), next_cursor="1"),
        played_api.listed(),
        played_api.listed(),  # a server without streams answers with a page
        played_api.listed(played_api.event(2, "JOB_CANCELLED")),
    )
    played_api.on(
        "GET",
        "/v1/jobs/job_1",
        played_api.said(200, played_api.job("QUEUED")),
        played_api.said(200, played_api.job("CANCELLED")),
    )
    async with lucius_at() as lucius:
        assert [event.seq async for event in lucius.watch("job_1")] == [1, 2]
        played_api.on("GET", "/v1/jobs/job_1/events", played_api.problem(404, "JOB_NOT_FOUND", "none"))
        with pytest.raises(LuciusError, match="JOB_NOT_FOUND"):
            _ = [event async for event in lucius.watch("job_1")]
    assert len(world.slept) == 1
