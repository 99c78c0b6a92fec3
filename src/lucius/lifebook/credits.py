"""The credits of workspaces: a port, and a balance that grants everything.

FD-2, the owner's document on credits, is not at hand. Assumed is: a workspace has a balance; a run holds its
estimate before it is enqueued and is refused if the balance is too small; steps spend out of what is held,
never more; the rest goes back when the run has ended. Both calls are idempotent under the name of the hold,
so that they may be repeated after any crash.
"""

from decimal import Decimal
from typing import Protocol

import msgspec

from lucius.lifebook.job import ZERO


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    available: Decimal = ZERO
    held: Decimal = ZERO
    spent: Decimal = ZERO


class Balances(Protocol):
    async def hold(self, workspace_id: str, hold_id: str, amount: Decimal) -> bool:
        """Sets the amount aside, once however often it is asked. False: the balance is too small, or the hold
        was settled before it came to be."""

    async def settle(
        self, workspace_id: str, hold_id: str, unspent: Decimal, *, ttl_at: int | None = None
    ) -> None:
        """Gives back what was not spent and books the rest; once. A hold that never was can never be made
        after this. What is kept of the hold may be forgotten at `ttl_at`, when its job is."""

    async def balance(self, workspace_id: str) -> Balance: ...

    async def grant(self, workspace_id: str, amount: Decimal) -> None:
        """Adds to what is available."""


class Unlimited:
    """Grants every estimate and keeps no accounts."""

    async def hold(self, workspace_id: str, hold_id: str, amount: Decimal) -> bool:
        return True

    async def settle(
        self, workspace_id: str, hold_id: str, unspent: Decimal, *, ttl_at: int | None = None
    ) -> None:
        return None

    async def balance(self, workspace_id: str) -> Balance:
        return Balance()

    async def grant(self, workspace_id: str, amount: Decimal) -> None:
        return None


class MemoryBalances:
    def __init__(self) -> None:
        self._accounts: dict[str, Balance] = {}
        self._holds: dict[str, Decimal | None] = {}
        """What is held, by the name of the hold; None once it is settled."""

    async def hold(self, workspace_id: str, hold_id: str, amount: Decimal) -> bool:
        if hold_id in self._holds:
            return self._holds[hold_id] is not None
        account = self._accounts.get(workspace_id, Balance())
        if account.available < amount:
            return False
        self._holds[hold_id] = amount
        self._accounts[workspace_id] = msgspec.structs.replace(
            account, available=account.available - amount, held=account.held + amount
        )
        return True

    async def settle(
        self, workspace_id: str, hold_id: str, unspent: Decimal, *, ttl_at: int | None = None
    ) -> None:
        amount = self._holds.get(hold_id)
        self._holds[hold_id] = None
        if amount is None:
            return
        account = self._accounts[workspace_id]
        self._accounts[workspace_id] = Balance(
            available=account.available + unspent,
            held=account.held - amount,
            spent=account.spent + amount - unspent,
        )

    async def balance(self, workspace_id: str) -> Balance:
        return self._accounts.get(workspace_id, Balance())

    async def grant(self, workspace_id: str, amount: Decimal) -> None:
        account = self._accounts.get(workspace_id, Balance())
        self._accounts[workspace_id] = msgspec.structs.replace(account, available=account.available + amount)
