"""Balances of workspaces in a DynamoDB table: an account item a workspace, an item a hold, changed
together."""

from decimal import Decimal
from typing import Any, Final

from lucius.lifebook.aws import Aws, ConditionFailed
from lucius.lifebook.codec import decimal_text
from lucius.lifebook.credits import Balance
from lucius.lifebook.job import ZERO

ACCOUNT_PREFIX: Final = "account#"
HOLD_PREFIX: Final = "hold#"
TRIES_MAX: Final = 10


class BalanceContended(Exception):
    """A hold changed under every try to settle it."""


class DynamoBalances:
    def __init__(self, aws: Aws, name: str) -> None:
        self._aws = aws
        self._name = name
        self._client = aws.client("dynamodb")

    async def hold(self, workspace_id: str, hold_id: str, amount: Decimal) -> bool:
        put = {
            **self._new(),
            "Item": {"id": {"S": HOLD_PREFIX + hold_id}, "amount": _number(amount), "state": {"S": "held"}},
        }
        take = self._account(
            workspace_id, "SET available = available - :amount, held = held + :amount", {":amount": amount}
        )
        take["ConditionExpression"] = "available >= :amount"
        try:
            await self._aws.call(
                self._client.transact_write_items, TransactItems=[{"Put": put}, {"Update": take}]
            )
        except ConditionFailed:
            found = await self._get(HOLD_PREFIX + hold_id)
            return found is not None and found["state"]["S"] == "held"
        return True

    async def settle(
        self, workspace_id: str, hold_id: str, unspent: Decimal, *, ttl_at: int | None = None
    ) -> None:
        for _ in range(TRIES_MAX):
            found = await self._get(HOLD_PREFIX + hold_id)
            if found is not None and found["state"]["S"] == "settled":
                return
            try:
                await self._settle(workspace_id, hold_id, found, unspent, ttl_at)
            except ConditionFailed:
                continue
            return
        raise BalanceContended(f"The hold {hold_id} changed {TRIES_MAX} times while it was settled.")

    async def _settle(
        self,
        workspace_id: str,
        hold_id: str,
        found: dict[str, Any] | None,
        unspent: Decimal,
        ttl_at: int | None,
    ) -> None:
        expiry = {} if ttl_at is None else {"ttl_at": {"N": str(ttl_at)}}
        key = {"id": {"S": HOLD_PREFIX + hold_id}}
        if found is None:
            closed = {**key, **expiry, "amount": _number(ZERO), "state": {"S": "settled"}}
            await self._aws.call(self._client.put_item, **self._new(), Item=closed)
            return
        amount = Decimal(found["amount"]["N"])
        close = {
            "TableName": self._name,
            "Key": key,
            "UpdateExpression": "SET #state = :settled" + (", ttl_at = :ttl_at" if expiry else ""),
            "ConditionExpression": "#state = :held",
            "ExpressionAttributeNames": {"#state": "state"},
            "ExpressionAttributeValues": {
                ":settled": {"S": "settled"},
                ":held": {"S": "held"},
                **{f":{name}": value for name, value in expiry.items()},
            },
        }
        give = self._account(
            workspace_id,
            "SET available = available + :unspent, held = held - :amount, spent = spent + :used",
            {":unspent": unspent, ":amount": amount, ":used": amount - unspent},
        )
        await self._aws.call(
            self._client.transact_write_items, TransactItems=[{"Update": close}, {"Update": give}]
        )

    async def balance(self, workspace_id: str) -> Balance:
        found = await self._get(ACCOUNT_PREFIX + workspace_id)
        if found is None:
            return Balance()
        return Balance(
            available=Decimal(found["available"]["N"]),
            held=Decimal(found["held"]["N"]),
            spent=Decimal(found["spent"]["N"]),
        )

    async def grant(self, workspace_id: str, amount: Decimal) -> None:
        add = self._account(
            workspace_id,
            "SET available = if_not_exists(available, :none) + :amount, "
            "held = if_not_exists(held, :none), spent = if_not_exists(spent, :none)",
            {":amount": amount, ":none": ZERO},
        )
        await self._aws.call(self._client.update_item, **add)

    async def _get(self, item_id: str) -> dict[str, Any] | None:
        answer = await self._aws.call(
            self._client.get_item, TableName=self._name, Key={"id": {"S": item_id}}, ConsistentRead=True
        )
        item: dict[str, Any] | None = answer.get("Item")
        return item

    def _new(self) -> dict[str, Any]:
        return {"TableName": self._name, "ConditionExpression": "attribute_not_exists(id)"}

    def _account(self, workspace_id: str, change: str, values: dict[str, Decimal]) -> dict[str, Any]:
        return {
            "TableName": self._name,
            "Key": {"id": {"S": ACCOUNT_PREFIX + workspace_id}},
            "UpdateExpression": change,
            "ExpressionAttributeValues": {name: _number(value) for name, value in values.items()},
        }


def _number(value: Decimal) -> dict[str, str]:
    return {"N": decimal_text(value)}
