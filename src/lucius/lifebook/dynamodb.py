"""The table of jobs in DynamoDB."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import structlog

from lucius.contracts.times import parse_rfc3339
from lucius.lifebook import codec
from lucius.lifebook.aws import Aws, ConditionFailed
from lucius.lifebook.codec import EVENT_PREFIX, KEY, Item
from lucius.lifebook.job import AnalyticsEvent, Guard, JobSummary, LifebookJob, is_expired
from lucius.lifebook.schema import SWEEP_INDEX, WORKSPACE_INDEX
from lucius.lifebook.states import TERMINAL
from lucius.lifebook.table import BadCursor, SummaryPage

log = structlog.get_logger("lucius.lifebook")

BATCH_KEYS_MAX: Final = 100
BATCH_TRIES_MAX: Final = 10


class DynamoTable:
    def __init__(self, aws: Aws, name: str) -> None:
        self._aws = aws
        self._name = name
        self._client = aws.client("dynamodb")

    async def create(self, job: LifebookJob, guard: Guard, *, now_ms: int) -> Guard | None:
        free = {
            "ConditionExpression": f"attribute_not_exists({KEY}) OR ttl_at <= :now",
            "ExpressionAttributeValues": {":now": {"N": str(now_ms // 1000)}},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
        new = {"ConditionExpression": f"attribute_not_exists({KEY})"}
        try:
            await self._transact(
                {"Put": {"TableName": self._name, "Item": codec.item_of_guard(guard), **free}},
                {"Put": {"TableName": self._name, "Item": codec.item_of(job), **new}},
            )
        except ConditionFailed as fault:
            # DynamoDB may leave the item out of its answer; then it is read.
            item = fault.items.get(0) or await self._get(guard.guard_id)
            found = codec.guard_of(item) if item else None
            if found is None:
                raise
            return None if found == guard else found
        return None

    async def get(self, job_id: str, *, now_ms: int) -> LifebookJob | None:
        item = await self._get(job_id)
        if not item or "workspace_id" not in item:
            return None
        job = codec.job_of(item)
        return None if is_expired(job.ttl_at, now_ms) else job

    async def replace(
        self, before: LifebookJob, after: LifebookJob, *, event: AnalyticsEvent | None = None
    ) -> bool:
        update = self._update(before, after)
        others = []
        if before.ttl_at != after.ttl_at:
            guard = Guard(
                guard_id=codec.guard_id_of(after.workspace_id, after.idempotency_key),
                job_id=after.job_id,
                fingerprint=after.fingerprint,
                ttl_at=after.ttl_at,
            )
            others.append({"Put": {"TableName": self._name, "Item": codec.item_of_guard(guard)}})
        if event is not None:
            others.append(
                {
                    "Put": {
                        "TableName": self._name,
                        "Item": codec.item_of_event(event),
                        "ConditionExpression": f"attribute_not_exists({KEY})",
                    }
                }
            )
        try:
            if others:
                await self._transact({"Update": update}, *others)
            else:
                await self._aws.call(self._client.update_item, **update)
        except ConditionFailed as fault:
            # An answer that was lost makes a write come twice: the second finds its own work.
            return _is(fault.items.get(0) or await self._get(after.job_id), after)
        return True

    async def discard(self, job: LifebookJob) -> bool:
        guard_id = codec.guard_id_of(job.workspace_id, job.idempotency_key)
        try:
            await self._transact(
                {
                    "Delete": {
                        "TableName": self._name,
                        "Key": {KEY: {"S": job.job_id}},
                        "ConditionExpression": "#version = :version",
                        "ExpressionAttributeNames": {"#version": "version"},
                        "ExpressionAttributeValues": {":version": {"N": str(job.version)}},
                    }
                },
                {"Delete": {"TableName": self._name, "Key": {KEY: {"S": guard_id}}}},
            )
        except ConditionFailed:
            return False
        return True

    async def page(
        self, workspace_id: str, *, now_ms: int, rows_max: int, cursor: str | None = None
    ) -> SummaryPage:
        start = {} if cursor is None else {"ExclusiveStartKey": _opened(cursor, workspace_id)}
        answer = await self._aws.call(
            self._client.query,
            TableName=self._name,
            IndexName=WORKSPACE_INDEX,
            KeyConditionExpression="workspace_id = :workspace",
            ExpressionAttributeValues={":workspace": {"S": workspace_id}},
            ScanIndexForward=False,
            Limit=rows_max,
            **start,
        )
        rows = [row for item in answer["Items"] if (row := _summary(item)) is not None]
        gone = await self._expired(rows, now_ms)
        last = answer.get("LastEvaluatedKey")
        return SummaryPage(
            tuple(row for row in rows if row.job_id not in gone), None if last is None else _sealed(last)
        )

    async def due(self, shard: str, *, now_ms: int, rows_max: int) -> list[str]:
        answer = await self._aws.call(
            self._client.query,
            TableName=self._name,
            IndexName=SWEEP_INDEX,
            KeyConditionExpression="sweep_shard = :shard AND sweep_at <= :now",
            ExpressionAttributeValues={":shard": {"S": shard}, ":now": {"N": str(now_ms)}},
            Limit=rows_max,
        )
        return [item[KEY]["S"] for item in answer["Items"]]

    async def event(self, event_id: str) -> AnalyticsEvent | None:
        item = await self._get(EVENT_PREFIX + event_id)
        return codec.event_of(item) if item else None

    async def note_sent(self, event: AnalyticsEvent, *, now_ms: int, ttl_at: int) -> None:
        sent = msgspec.structs.replace(event, sent_at=now_ms, ttl_at=ttl_at, sweep_at=None)
        await self._aws.call(self._client.put_item, TableName=self._name, Item=codec.item_of_event(sent))

    async def _get(self, item_id: str) -> Item | None:
        answer = await self._aws.call(
            self._client.get_item, TableName=self._name, Key={KEY: {"S": item_id}}, ConsistentRead=True
        )
        item: Item | None = answer.get("Item")
        return item

    async def _transact(self, *writes: Mapping[str, Any]) -> None:
        await self._aws.call(self._client.transact_write_items, TransactItems=list(writes))

    def _update(self, before: LifebookJob, after: LifebookJob) -> dict[str, Any]:
        """Writes only what differs: attributes of newer writers stay. Names are all given by reference, since
        some, such as `status`, are reserved words."""
        written, removed = codec.changes_between(before, after)
        names = {f"#{number}": name for number, name in enumerate([*written, *removed])}
        places = {name: place for place, name in names.items()}
        values = {f":{places[name][1:]}": value for name, value in written.items()}
        expression = "SET " + ", ".join(f"{places[name]} = :{places[name][1:]}" for name in written)
        if removed:
            expression += " REMOVE " + ", ".join(places[name] for name in removed)
        if before.version == 0:
            condition = "attribute_not_exists(#version) AND "
        else:
            condition = "#version = :version AND "
            values[":version"] = {"N": str(before.version)}
        if before.lease_owner is None:
            condition += "attribute_not_exists(lease_owner)"
        else:
            condition += "lease_owner = :owner"
            values[":owner"] = {"S": before.lease_owner}
        return {
            "TableName": self._name,
            "Key": {KEY: {"S": before.job_id}},
            "UpdateExpression": expression,
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {**names, "#version": "version"},
            "ExpressionAttributeValues": values,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    async def _expired(self, rows: list[JobSummary], now_ms: int) -> set[str]:
        """The index does not hold `ttl_at`: for jobs that have ended it is read from the table."""
        ended = [row.job_id for row in rows if row.status in TERMINAL]
        gone = set(ended)
        for start in range(0, len(ended), BATCH_KEYS_MAX):
            for item in await self._ttls(ended[start : start + BATCH_KEYS_MAX]):
                ttl_at = int(item["ttl_at"]["N"]) if "ttl_at" in item else None
                if not is_expired(ttl_at, now_ms):
                    gone.discard(item[KEY]["S"])
        return gone

    async def _ttls(self, job_ids: list[str]) -> list[Item]:
        found: list[Item] = []
        wanted: Any = {
            self._name: {
                "Keys": [{KEY: {"S": job_id}} for job_id in job_ids],
                "ProjectionExpression": f"{KEY}, ttl_at",
            }
        }
        for _ in range(BATCH_TRIES_MAX):
            answer = await self._aws.call(self._client.batch_get_item, RequestItems=wanted)
            found += answer["Responses"].get(self._name, [])
            wanted = answer.get("UnprocessedKeys")
            if not wanted:
                break
        return found


def _summary(item: Item) -> JobSummary | None:
    """One item that cannot be read must not hide the others of its workspace."""
    try:
        return codec.summary_from(item)
    except codec.BadItem as fault:
        log.warning("item_unreadable", why=str(fault))
        return None


def _is(item: Mapping[str, Any] | None, job: LifebookJob) -> bool:
    return bool(item) and item is not None and codec.job_of(item) == job


def _sealed(key: Mapping[str, Any]) -> str:
    place = [key["workspace_id"]["S"], key["created_at"]["S"], key[KEY]["S"]]
    return urlsafe_b64encode(msgspec.json.encode(place)).decode()


def _opened(cursor: str, workspace_id: str) -> Item:
    try:
        place = msgspec.json.decode(urlsafe_b64decode(cursor), type=tuple[str, str, str])
    except (BadBase64, ValueError, msgspec.DecodeError):
        raise BadCursor("The cursor was not given out here.") from None
    if place[0] != workspace_id:
        raise BadCursor("The cursor belongs to another workspace.")
    if parse_rfc3339(place[1]) is None or not codec.may_be_id(place[2]):
        raise BadCursor("The cursor was not given out here.")
    return {"workspace_id": {"S": place[0]}, "created_at": {"S": place[1]}, KEY: {"S": place[2]}}
