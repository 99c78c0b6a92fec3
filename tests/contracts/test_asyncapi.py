"""The AsyncAPI document is current, names every lane, and shows what the bus and the parsers take."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from lucius.bus import port
from lucius.bus.port import DirectiveOut, ReplyOut, check_out, directive_id
from lucius.contracts import asyncapi
from lucius.contracts.components import COMPONENTS
from lucius.contracts.messages import parse_reply
from lucius.core.attempt import AttemptRef
from lucius.core.refusal import Refused
from lucius.core.routing import LANES, lane_of, reply_topic, topic

FILE = Path(__file__).parents[2] / "docs" / "asyncapi.json"
LARGE_BYTES = 1_000_000

DOCUMENT = asyncapi.document()
MESSAGES: dict[str, Any] = DOCUMENT["components"]["messages"]


def example(name: str) -> dict[str, Any]:
    (only,) = MESSAGES[name]["examples"]
    found: dict[str, Any] = only
    return found


def test_the_file_is_current() -> None:
    assert FILE.read_text("utf-8") == asyncapi.text(), "docs/asyncapi.json is old: run `make openapi`"


def test_it_has_every_lane_both_ways() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"
    addresses = {channel["address"]: set(channel["messages"]) for channel in DOCUMENT["channels"].values()}
    wanted = {topic(lane): {"Directive"} for lane in range(LANES)}
    wanted |= {reply_topic(lane): {"Ack", "Progress", "Result"} for lane in range(LANES)}
    assert addresses == wanted


def test_each_channel_has_the_one_operation_of_its_direction() -> None:
    seen: dict[str, str] = {}
    for operation in DOCUMENT["operations"].values():
        channel = operation["channel"]["$ref"].removeprefix("#/channels/")
        seen[channel] = operation["action"]
        for message in operation["messages"]:
            assert message["$ref"].rpartition("/")[2] in DOCUMENT["channels"][channel]["messages"]
    assert len(seen) == len(DOCUMENT["operations"]) == 2 * LANES
    assert all(
        action == ("send" if name.startswith("directives") else "receive") for name, action in seen.items()
    )


def test_its_schemas_are_those_of_the_contracts() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas.keys() >= {"Directive", "Ack", "Progress", "Result", "Ref"}
    assert all(COMPONENTS[name] == schema for name, schema in schemas.items())


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_examples_fit(name: str) -> None:
    message, shown = MESSAGES[name], example(name)
    payload = {**message["payload"], "components": DOCUMENT["components"]}
    jsonschema_rs.validator_for(payload, validate_formats=True, offline=True).validate(shown["payload"])
    jsonschema_rs.validator_for(message["headers"], offline=True).validate(shown["headers"])
    assert message["name"] == shown["payload"]["type"] == name.upper()


def test_the_limits_of_headers_are_those_of_the_bus() -> None:
    for message in MESSAGES.values():
        headers = message["headers"]["properties"]
        assert headers["message_id"]["maxLength"] == port.MESSAGE_ID_LENGTH_MAX
        assert headers["message_key"]["maxLength"] == port.MESSAGE_KEY_LENGTH_MAX


def test_the_directive_shown_is_one_that_the_bus_takes() -> None:
    headers, payload = example("Directive")["headers"], example("Directive")["payload"]
    assert headers["message_id"] == directive_id(
        AttemptRef(
            job_id=payload["jobId"],
            step_id=payload["stepId"],
            attempt_no=payload["attempt_no"],
            lease_id=payload["lease_id"],
        )
    )
    assert headers["message_key"] == payload["routing_key_used"]
    assert payload["lane"] == lane_of(payload["routing_key_used"])
    assert payload["reply_topic"] == reply_topic(payload["lane"])
    out = DirectiveOut(**headers, lane=payload["lane"], body=json.dumps(payload).encode())
    check_out(out, largest_message_bytes=LARGE_BYTES)


@pytest.mark.parametrize("name", ["Ack", "Progress", "Result"])
def test_the_replies_shown_are_ones_that_are_taken(name: str) -> None:
    headers, payload = example(name)["headers"], example(name)["payload"]
    assert not isinstance(parse_reply(payload, expected=name.upper()), Refused)
    out = ReplyOut(**headers, lane=lane_of(headers["message_key"]), body=json.dumps(payload).encode())
    check_out(out, largest_message_bytes=LARGE_BYTES)
