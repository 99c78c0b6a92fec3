"""Jobs, guards and events as DynamoDB items, and back.

In: values of `job`. Out: items in DynamoDB's own form (`{"S": …}`, `{"N": …}`). Attributes that are not
declared are ignored on reading, so that newer writers and older readers may work on one table; an item that
has the contract's fields alone, written by another program, is a job like any other. The guard and the event
share the table of the jobs; the prefix of their key, which is no UUID, keeps them apart, and without a
`workspace_id` they are in no index of workspaces.
"""

from collections.abc import Mapping
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final
from zlib import crc32

import msgspec

from lucius.contracts.times import parse_rfc3339, rfc3339
from lucius.core.canonical import canonical_json
from lucius.lifebook.job import (
    BY_NAME,
    FIELDS,
    SWEEP_SHARD,
    AnalyticsEvent,
    Field,
    FieldKind,
    Guard,
    JobSummary,
    LifebookJob,
)
from lucius.lifebook.states import Status, Trigger

Item = dict[str, dict[str, Any]]

KEY: Final = "job_id"
GUARD_PREFIX: Final = "key#"
EVENT_PREFIX: Final = "event#"
SHARDS: Final = 4
ID_CHARACTERS_MAX: Final = 256
"""Of a job's id: a UUID has 36. DynamoDB refuses keys of more than 2,048 bytes."""


class BadItem(Exception):
    """An item in the table is not what Lifebook writes. The text names the attribute."""


def guard_id_of(workspace_id: str, idempotency_key: str) -> str:
    words = {"idempotency_key": idempotency_key, "workspace_id": workspace_id}
    return GUARD_PREFIX + sha256(canonical_json(words)).hexdigest()


def may_be_id(text: str) -> bool:
    """Whether a job may have this id: what is no key of DynamoDB is not asked for."""
    return 0 < len(text) <= ID_CHARACTERS_MAX and text.isprintable()


def shard_of(item_id: str) -> str:
    return str(crc32(item_id.encode()) % SHARDS)


def item_of(job: LifebookJob) -> Item:
    item: Item = {}
    for field in FIELDS:
        if field.name == SWEEP_SHARD:
            continue
        value = getattr(job, field.name)
        if value is not None:
            item[field.name] = _stored(field, value)
    return _swept(item, job.job_id, job.sweep_at)


def job_of(item: Mapping[str, Any]) -> LifebookJob:
    job_id = _id_of(item)
    # Of an item by the contract alone; version 0 stands for none.
    values: dict[str, Any] = {"version": 0, "trace_id": job_id.replace("-", ""), "fingerprint": ""}
    for field in FIELDS:
        if field.name == SWEEP_SHARD:
            continue
        stored = item.get(field.name)
        if stored is not None and not _is_empty(field, stored):
            values[field.name] = _loaded(field, stored)
        elif not field.optional and field.of_contract:
            raise BadItem(f"The item of job {job_id} has no {field.name}.")
    return LifebookJob(**values)


def changes_between(before: LifebookJob, after: LifebookJob) -> tuple[Item, list[str]]:
    """What to set and what to remove so that the item of the one becomes that of the other."""
    old, new = item_of(before), item_of(after)
    written = {name: value for name, value in new.items() if old.get(name) != value}
    return written, [name for name in old if name not in new]


def item_of_guard(guard: Guard) -> Item:
    item: Item = {
        KEY: {"S": guard.guard_id},
        "target_job_id": {"S": guard.job_id},
        "fingerprint": {"S": guard.fingerprint},
    }
    if guard.ttl_at is not None:
        item["ttl_at"] = {"N": str(guard.ttl_at)}
    return item


def guard_of(item: Mapping[str, Any]) -> Guard:
    return Guard(
        guard_id=item[KEY]["S"],
        job_id=item["target_job_id"]["S"],
        fingerprint=item["fingerprint"]["S"],
        ttl_at=int(item["ttl_at"]["N"]) if "ttl_at" in item else None,
    )


def item_of_event(event: AnalyticsEvent) -> Item:
    item: Item = {
        KEY: {"S": EVENT_PREFIX + event.event_id},
        "target_job_id": {"S": event.job_id},
        "body": {"S": event.body},
        "created_at": {"S": rfc3339(event.created_at)},
    }
    if event.sent_at is not None:
        item["sent_at"] = {"S": rfc3339(event.sent_at)}
    if event.ttl_at is not None:
        item["ttl_at"] = {"N": str(event.ttl_at)}
    return _swept(item, EVENT_PREFIX + event.event_id, event.sweep_at)


def event_of(item: Mapping[str, Any]) -> AnalyticsEvent:
    return AnalyticsEvent(
        event_id=item[KEY]["S"].removeprefix(EVENT_PREFIX),
        job_id=item["target_job_id"]["S"],
        body=item["body"]["S"],
        created_at=_time(item["created_at"]["S"], "created_at"),
        sent_at=_time(item["sent_at"]["S"], "sent_at") if "sent_at" in item else None,
        ttl_at=int(item["ttl_at"]["N"]) if "ttl_at" in item else None,
        sweep_at=int(item["sweep_at"]["N"]) if "sweep_at" in item else None,
    )


def summary_from(item: Mapping[str, Any]) -> JobSummary:
    """A line of the index."""
    values = {}
    for name in JobSummary.__struct_fields__:
        if name not in item:
            raise BadItem(f"The item of job {_id_of(item)} has no {name}.")
        values[name] = _loaded(BY_NAME[name], item[name])
    return JobSummary(**values)


def plain(job: LifebookJob) -> dict[str, Any]:
    """The job as JSON shows it: the fields of the contract and Lifebook's own, absent ones as null. Credits
    are texts, since a JSON number loses digits in many readers."""
    shown: dict[str, Any] = {}
    for field in FIELDS:
        if field.name == SWEEP_SHARD:
            continue
        value = getattr(job, field.name)
        match field.kind:
            case FieldKind.TIME:
                shown[field.name] = None if value is None else rfc3339(value)
            case FieldKind.DECIMAL:
                shown[field.name] = decimal_text(value)
            case FieldKind.TEXTS:
                shown[field.name] = [msgspec.json.decode(text) for text in value]
            case _:
                shown[field.name] = value
    shown["input"] = msgspec.json.decode(job.input)
    shown["checkpoint"] = None if job.checkpoint is None else msgspec.json.decode(job.checkpoint)
    return shown


def decimal_text(value: Decimal) -> str:
    """Without an exponent and without trailing zeros: `1.5`, `100`, `0`."""
    text = f"{value:f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"


def _stored(field: Field, value: Any) -> dict[str, Any]:
    match field.kind:
        case FieldKind.TEXT:
            return {"S": str(value)}
        case FieldKind.INTEGER:
            return {"N": str(value)}
        case FieldKind.DECIMAL:
            return {"N": decimal_text(value)}
        case FieldKind.TIME:
            return {"S": rfc3339(value)}
        case FieldKind.TEXTS:
            return {"L": [{"S": text} for text in value]}


def _loaded(field: Field, stored: Mapping[str, Any]) -> Any:
    try:
        match field.kind:
            case FieldKind.TEXT:
                return _enum(field.name, stored["S"])
            case FieldKind.INTEGER:
                return int(stored["N"])
            case FieldKind.DECIMAL:
                return Decimal(stored["N"])
            case FieldKind.TIME:
                return _time(stored["S"], field.name)
            case FieldKind.TEXTS:
                return tuple(each["S"] for each in stored["L"])
    except (KeyError, ValueError, ArithmeticError):
        raise BadItem(f"The attribute {field.name} is not a {field.kind}.") from None


def _is_empty(field: Field, stored: Mapping[str, Any]) -> bool:
    """How other writers may say that there is nothing."""
    return "NULL" in stored or (field.optional and stored.get("S") == "")


def _enum(name: str, text: str) -> str:
    if name == "status":
        return Status(text)
    return Trigger(text) if name == "trigger_type" else text


def _time(text: str, name: str) -> int:
    at_ms = parse_rfc3339(text)
    if at_ms is None:
        raise BadItem(f"The attribute {name} is not a time.")
    return at_ms


def _swept(item: Item, item_id: str, sweep_at: int | None) -> Item:
    if sweep_at is not None:
        item["sweep_at"] = {"N": str(sweep_at)}
        item[SWEEP_SHARD] = {"S": shard_of(item_id)}
    return item


def _id_of(item: Mapping[str, Any]) -> str:
    return str(item.get(KEY, {}).get("S", "?"))
