"""What starts a run beside a person: a schedule, a signed webhook, a file that was dropped.

In: events in AWS's forms, a webhook's headers and body. Out: requests for runs with keys that follow from
what happened, so that an event that is delivered twice starts one run.
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final
from urllib.parse import unquote_plus

import msgspec
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from lucius.lifebook.refusals import RunCode, RunRefused
from lucius.lifebook.runs import RunRequest
from lucius.lifebook.states import Trigger

KEY_CHARACTERS_MAX: Final = 200


class FileDrop(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which run a file starts, by where it was dropped."""

    bucket: str
    prefix: str = ""
    workspace_id: str
    user_id: str
    workflow_id: str


class _Scheduled(msgspec.Struct, frozen=True, kw_only=True):
    workspace_id: str
    user_id: str
    workflow_id: str
    scheduled_time: str
    schedule: str = ""
    input: Any = None


class _Hook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    workspace_id: str
    user_id: str
    input: Any = None


def of_schedule(event: Mapping[str, Any]) -> RunRequest | RunRefused:
    """The input of an EventBridge schedule: `scheduled_time` is its `<aws.scheduler.scheduled-time>`."""
    try:
        asked = msgspec.convert(event, _Scheduled)
    except msgspec.ValidationError as fault:
        return RunRefused(RunCode.INVALID_REQUEST, f"The schedule's input is not one of a run: {fault}")
    return RunRequest(
        workspace_id=asked.workspace_id,
        user_id=asked.user_id,
        workflow_id=asked.workflow_id,
        trigger_type=Trigger.SCHEDULE,
        input=asked.input,
        idempotency_key=_key("schedule", asked.workflow_id, asked.schedule, asked.scheduled_time),
    )


def of_file_drop(event: Mapping[str, Any], drops: tuple[FileDrop, ...]) -> list[RunRequest | RunRefused]:
    """One request for every file of an S3 event. Keys in such events are percent-encoded."""
    found: list[RunRequest | RunRefused] = []
    for record in event.get("Records", ()):
        try:
            bucket, thing = record["s3"]["bucket"]["name"], record["s3"]["object"]
            name = unquote_plus(thing["key"])
        except (KeyError, TypeError):
            found.append(RunRefused(RunCode.INVALID_REQUEST, "A record of the event names no file of S3."))
            continue
        fitting = [each for each in drops if each.bucket == bucket and name.startswith(each.prefix)]
        if not fitting:
            found.append(
                RunRefused(RunCode.UNKNOWN_WORKFLOW, f"No workflow is started by files in {bucket}.")
            )
            continue
        drop = max(fitting, key=lambda each: len(each.prefix))
        version = thing.get("sequencer") or thing.get("versionId") or thing.get("eTag") or ""
        found.append(
            RunRequest(
                workspace_id=drop.workspace_id,
                user_id=drop.user_id,
                workflow_id=drop.workflow_id,
                trigger_type=Trigger.FILE_DROP,
                input={"uri": f"s3://{bucket}/{name}", "bytes": thing.get("size")},
                idempotency_key=_key("file_drop", drop.workflow_id, bucket, name, str(version)),
            )
        )
    return found


def of_webhook(
    workflow_id: str, body: bytes, headers: Mapping[str, str], *, secret: str
) -> RunRequest | RunRefused:
    """A webhook signed as Standard Webhooks say; its id is the key."""
    try:
        Webhook(secret).verify(body.decode(), dict(headers))
    except (WebhookVerificationError, UnicodeDecodeError, ValueError):
        return RunRefused(
            RunCode.UNAUTHENTICATED, "The signature of the webhook is missing, wrong or too old."
        )
    try:
        asked = msgspec.json.decode(body, type=_Hook)
    except msgspec.MsgspecError as fault:
        return RunRefused(RunCode.INVALID_REQUEST, f"The body asks for no run: {fault}")
    return RunRequest(
        workspace_id=asked.workspace_id,
        user_id=asked.user_id,
        workflow_id=workflow_id,
        trigger_type=Trigger.WEBHOOK,
        input=asked.input,
        idempotency_key=_key("webhook", workflow_id, headers["webhook-id"]),
    )


def signed_headers(body: bytes, *, message_id: str, now_ms: int, secret: str) -> dict[str, str]:
    """The headers of a webhook, for clients in Python and for tests."""
    at = datetime.fromtimestamp(now_ms / 1000, UTC)
    signature = Webhook(secret).sign(message_id, at, body.decode())
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": signature,
    }


def is_secret(text: str) -> bool:
    """Whether this can sign webhooks: base64, perhaps after `whsec_`."""
    try:
        return len(base64.b64decode(text.removeprefix("whsec_"), validate=True)) >= 16
    except ValueError:
        return False


def read_drops(text: str) -> tuple[FileDrop, ...] | str:
    """The list of a setting, or what is wrong with it."""
    if not text:
        return ()
    try:
        return msgspec.json.decode(text, type=tuple[FileDrop, ...])
    except msgspec.MsgspecError as fault:
        return str(fault)


def _key(kind: str, *parts: str) -> str:
    key = ":".join((kind, *parts))
    if len(key) <= KEY_CHARACTERS_MAX and key.isprintable():
        return key
    return f"{kind}:{sha256(key.encode()).hexdigest()}"
