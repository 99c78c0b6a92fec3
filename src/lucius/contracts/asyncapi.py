"""The bus as an AsyncAPI 3.0 document: which messages go over which lanes, under which keys.

In: nothing. Out: the document, as plain values, and its text. Says what holds on every bus; how a topic or a
key is called on a particular broker is the business of its adapter.
"""

import json
from typing import Any, Final

from lucius import __version__
from lucius.contracts.components import COMPONENTS, needed_by
from lucius.contracts.examples import EXAMPLES
from lucius.contracts.schemas import named
from lucius.core.model import Json
from lucius.core.routing import LANES, reply_topic, topic

Doc = dict[str, Any]

MESSAGE_ID_LENGTH_MAX: Final = 128
MESSAGE_KEY_LENGTH_MAX: Final = 512

_SAID: Final = {
    "Directive": ("An attempt, leased to a service", "From the orchestrator to the service that it names."),
    "Ack": ("The directive was taken up", "Starts the lease. Once an attempt."),
    "Progress": ("The attempt goes on", "Renews the lease. As often as there is something to say."),
    "Result": ("The attempt has ended", "Well or badly. Implies the ACK. Once an attempt."),
}
_REPLIES: Final = ("Ack", "Progress", "Result")

_KEY: Final = (
    "The step's `routing_key_used`, pinned when the job was created: the session or partition key on brokers "
    "that know one. The lane is the CRC32 of it modulo 16."
)
_ID: Final = (
    "`{jobId}.{stepId}.{attempt_no}.{lease_id}`: the same each time one attempt is published, so that a "
    "broker may drop repeats. A service treats the same four members as its idempotency key."
)
_REPLY_ID: Final = "Chosen by the service; the same when it repeats a reply."

_INFO: Final[Doc] = {
    "title": "Lucius on the bus",
    "version": __version__,
    "description": "Directives go from the orchestrator to platform services, replies come back. Both are "
    f"spread over {LANES} lanes, each a topic of its own. Delivery is at least once, in no promised order. "
    "A reply counts only for the step's current attempt and lease. Members that a receiver does not know are "
    "to be ignored. Messages that lack a required member are dead-lettered with the reason.",
    "contact": {"name": "The operators of this deployment"},
    "license": {"name": "Apache-2.0"},
    "tags": [
        {"name": "directives", "description": "From the orchestrator to services."},
        {"name": "replies", "description": "From services to the orchestrator."},
    ],
}


_SERVERS: Final[Doc] = {
    "embedded": {
        "host": "localhost",
        "protocol": "inproc",
        "description": "The bus inside the process of `lucius dev`; services outside of it lease directives "
        "and reply over HTTP, with the same messages.",
    }
}


def document() -> Doc:
    channels: Doc = {}
    operations: Doc = {}
    for lane in range(LANES):
        channels[f"directives{lane}"] = _channel(topic(lane), lane, "directives", ("Directive",))
        channels[f"replies{lane}"] = _channel(reply_topic(lane), lane, "replies", _REPLIES)
        operations[f"sendDirective{lane}"] = _operation("send", f"directives{lane}", ("Directive",))
        operations[f"receiveReply{lane}"] = _operation("receive", f"replies{lane}", _REPLIES)
    messages = {name: _message(name) for name in _SAID}
    wanted = needed_by([message["payload"] for message in messages.values()], COMPONENTS)
    return {
        "asyncapi": "3.0.0",
        "id": "urn:lucius:bus",
        "info": _INFO,
        "defaultContentType": "application/json",
        "servers": _SERVERS,
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": {name: COMPONENTS[name] for name in wanted}},
    }


def text() -> str:
    """The document as it stands in a file."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def _channel(address: str, lane: int, tag: str, messages: tuple[str, ...]) -> Doc:
    what = "Directives to every service" if tag == "directives" else "Replies of every service"
    return {
        "address": address,
        "title": f"Lane {lane}: {tag}",
        "description": f"{what} for the jobs of lane {lane}.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "tags": [{"name": tag}],
    }


def _operation(action: str, channel: str, messages: tuple[str, ...]) -> Doc:
    """As the orchestrator sees it; for a service it is the other way round."""
    sends = action == "send"
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "title": "Rent an attempt to a service" if sends else "Take a service's reply",
        "description": "Published once the attempt is in the ledger."
        if sends
        else "Settled once the ledger has it.",
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages],
        "tags": [{"name": "directives" if sends else "replies"}],
    }


def _message(name: str) -> Doc:
    title, description = _SAID[name]
    directive = name == "Directive"
    example = EXAMPLES[name]
    return {
        "name": example["type"],
        "title": title,
        "summary": title,
        "description": description,
        "contentType": "application/json",
        "correlationId": {
            "description": "One for a job and all that it causes.",
            "location": "$message.payload#/correlation_id" if directive else "$message.payload#/jobId",
        },
        "headers": _headers(_ID if directive else _REPLY_ID, with_service=directive),
        "payload": named(name),
        "examples": [{"name": name, "headers": _example_headers(example), "payload": example}],
    }


def _headers(message_id: str, *, with_service: bool) -> Doc:
    properties: Doc = {
        "message_id": {
            "type": "string",
            "minLength": 1,
            "maxLength": MESSAGE_ID_LENGTH_MAX,
            "description": message_id,
        },
        "message_key": {"type": "string", "maxLength": MESSAGE_KEY_LENGTH_MAX, "description": _KEY},
    }
    if with_service:
        properties["service"] = {
            "type": "string",
            "description": "Who is to take it: what consumers filter by.",
        }
    return {"type": "object", "properties": properties, "required": list(properties)}


def _example_headers(message: Json) -> Doc:
    attempt = ".".join(str(message[name]) for name in ("jobId", "stepId", "attempt_no", "lease_id"))
    if message["type"] == "DIRECTIVE":
        return {
            "message_id": attempt,
            "message_key": message["routing_key_used"],
            "service": message["service"],
        }
    return {
        "message_id": f"{attempt}.{message['type']}",
        "message_key": EXAMPLES["Directive"]["routing_key_used"],
    }
