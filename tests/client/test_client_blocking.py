"""The blocking face: the same client, for code that does not await."""

import inspect
import threading
from typing import Any

import pytest
from tests.support.played_api import PlayedApi

from lucius.client import Lucius as AsyncLucius
from lucius.client import LuciusError
from lucius.client.blocking import Lucius


def _public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


def test_both_faces_have_the_same_calls_with_the_same_arguments() -> None:
    awaited, blocking = _public(AsyncLucius), _public(Lucius)
    assert awaited.keys() - {"aclose"} == blocking.keys() - {"close"}
    assert len(blocking) > 20
    for name in awaited.keys() - {"aclose"}:
        ours, theirs = inspect.signature(blocking[name]), inspect.signature(awaited[name])
        assert ours.parameters == theirs.parameters, name
    assert inspect.signature(Lucius).parameters == inspect.signature(AsyncLucius).parameters


def test_calls_lists_and_errors(played_api: "PlayedApi") -> None:
    played_api.on("GET", "/v1/jobs/job_1", played_api.said(200, played_api.job("SUCCEEDED")))
    played_api.on(
        "GET",
        "/v1/jobs/job_1/events",
        played_api.listed(played_api.event(1, "A"), next_cursor="1"),
        played_api.listed(played_api.event(2, "B")),
    )
    played_api.on("POST", "/v1/admin/outbox/retry", played_api.said(200, {"made_due": 3}))
    before = threading.active_count()
    with Lucius(played_api.url, "") as lucius:
        assert lucius.job("job_1").succeeded
        assert [event.seq for event in lucius.events("job_1")] == [1, 2]
        assert lucius.retry_outbox() == 3
        with pytest.raises(LuciusError, match="NOT_FOUND") as caught:
            lucius.cancel("job_9")
        assert caught.value.status == 404
        # A list that is left early is closed, and the client goes on.
        for _ in lucius.events("job_1"):
            break
        assert lucius.job("job_1").state == "SUCCEEDED"
    assert lucius._thread.is_alive() is False
    assert threading.active_count() <= before + 1  # the played server may still be letting go
    lucius.close()
    with pytest.raises(RuntimeError, match="closed"):
        lucius.job("job_1")


def test_it_works_inside_a_running_loop_too(played_api: "PlayedApi") -> None:
    import asyncio

    played_api.on("GET", "/v1/protocols", played_api.listed({"protocol_id": "ocr_v1", "more": 1}))

    async def inside() -> list[str]:
        with Lucius(played_api.url, "") as lucius:
            return [protocol.protocol_id for protocol in lucius.protocols()]

    assert asyncio.run(inside()) == ["ocr_v1"]
