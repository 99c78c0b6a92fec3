"""Bytes of requests and answers that a process holds: bounded in all, and shared fairly among callers.

In: what connections hold, and what handlers are about to hold. Out: leave or a refusal, and connections to
cut. A little is free for each connection, so that small calls cost no accounting and go on when the budget is
taken.

A handler asks before it reads a large body or sends a large answer to a question, and is refused in words.
What was not asked for beforehand is counted once it is there: if the budget is exceeded by it, the holder of
the most loses the connection on which most lies unread. The holder is the caller as soon as that is known,
until then the peer's address.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from lucius.api.problems import answer, problem
from lucius.api.shares import Holder, Holdings, within_share
from lucius.core.model import Json
from lucius.core.refusal import Code, Refused

SCOPE_KEY: Final = "lucius.memory"
BYTES_MAX: Final = 128 * 1024 * 1024
UNCOUNTED_BYTES: Final = 16 * 1024
"""What each connection may hold beside the budget."""
RETRY_AFTER_SECONDS: Final = 1

MEMORY_TAKEN: Final = Refused(
    Code.SYSTEM_SATURATED,
    "requests and answers under way take the memory that is meant for them; nothing was accepted. Send it "
    "again, in smaller pieces or after others are done",
    retry_after_seconds=RETRY_AFTER_SECONDS,
)


class MemoryBudget:
    """Of one server."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._held = Holdings()
        self._counted: set[ConnectionMemory] = set()

    @property
    def bytes_held(self) -> int:
        return self._held.total

    def has_room(self, holder: Holder, count: int) -> bool:
        return within_share(self._held.of(holder), count, self._bytes_max - self._held.total)

    def changed(self, memory: "ConnectionMemory", count: int) -> None:
        self._held.change(memory.holder, count)
        if memory.bytes_held:
            self._counted.add(memory)
        else:
            self._counted.discard(memory)
        while count > 0 and self._held.total > self._bytes_max and self._cut_one():
            pass

    def moved(self, memory: "ConnectionMemory", before: Holder) -> None:
        self._held.change(before, -memory.bytes_held)
        self._held.change(memory.holder, memory.bytes_held)

    def _cut_one(self) -> bool:
        """Of the holder of the most; of any holder, if all of its bytes were granted beforehand."""
        largest = self._held.largest()
        cuttable = [memory for memory in self._counted if memory.wire_bytes]
        if not cuttable:
            return False
        max(cuttable, key=lambda memory: (memory.holder == largest, memory.wire_bytes)).cut()
        return True


class ConnectionMemory:
    """What one connection holds: on the wire (a body that no handler has read yet, an answer that the client
    has not taken yet), and for the request that is handled."""

    __slots__ = ("_budget", "_cut", "_recount", "_request_bytes", "holder", "wire_bytes")

    def __init__(
        self, budget: MemoryBudget, address: str, cut: Callable[[], None], recount: Callable[[], None]
    ) -> None:
        """`recount`: says anew what is on the wire, from which a handler may have taken something."""
        self._budget = budget
        self._cut = cut
        self._recount = recount
        self._request_bytes = 0
        self.wire_bytes = 0
        self.holder: Holder = ("address", address)

    @property
    def bytes_held(self) -> int:
        return self.wire_bytes + self._request_bytes

    def belongs_to(self, caller: str) -> None:
        """From now on, because its request has said who calls."""
        if self.holder[1] == caller and self.holder[0] == "caller":
            return
        before, self.holder = self.holder, ("caller", caller)
        if self.bytes_held:
            self._budget.moved(self, before)

    def has_room(self, count: int) -> bool:
        return self._budget.has_room(self.holder, count)

    def on_wire(self, count: int) -> None:
        """So much is there now, within the budget or not."""
        more, self.wire_bytes = count - self.wire_bytes, count
        if more:
            self._budget.changed(self, more)

    def take(self, count: int) -> bool:
        """Room for a request's own bytes, until they are given back."""
        if self.wire_bytes:
            self._recount()
        if not self.has_room(count):
            return False
        self._request_bytes += count
        self._budget.changed(self, count)
        return True

    def give_back(self, count: int) -> None:
        self._request_bytes -= count
        self._budget.changed(self, -count)

    def cut(self) -> None:
        self._cut()
        self.on_wire(0)


def memory_of(scope: Scope) -> ConnectionMemory | None:
    """None where no server of ours counts: in another one, or without any."""
    found = scope.get(SCOPE_KEY)
    return found if isinstance(found, ConnectionMemory) else None


def memory_refusal(request: Request, count: int) -> Refused | None:
    """Why the caller may not have an answer of this size now; None if it may."""
    memory = memory_of(request.scope)
    return None if count <= UNCOUNTED_BYTES or memory is None or memory.has_room(count) else MEMORY_TAKEN


def answer_within(request: Request, content: Json) -> Response:
    """The answer to a question, or a refusal if the caller has no room for it: it can be asked again."""
    response = answer(content)
    refused = memory_refusal(request, len(response.body))
    return response if refused is None else problem(refused)


class RequestMemory:
    """Memory for what a request needs, its body for instance, kept until its handler has ended."""

    def __init__(self, request: Request) -> None:
        self._memory = memory_of(request.scope)
        self._bytes = 0

    def reach(self, count: int) -> bool:
        """Whether the budget has so many bytes in all."""
        memory = self._memory
        more = count - self._bytes
        if memory is None or more <= 0 or count <= UNCOUNTED_BYTES:
            return True
        if not memory.take(more):
            return False
        task = asyncio.current_task()
        if not self._bytes and task is not None:
            task.add_done_callback(self._give_back)
        self._bytes = count
        return True

    def _give_back(self, task: "asyncio.Task[object]") -> None:
        if self._memory is not None:
            self._memory.give_back(self._bytes)
