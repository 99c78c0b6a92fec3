"""The watch of a simulation: it gets every act, and reports at once when an invariant is broken.

In: commits that took effect, directives that the bus took, answers that clients and services were given.
Out: a `Violation`, raised where the act that breaks a promise is seen, or listed once everything rests.
"""

from collections.abc import Sequence
from typing import Protocol

from lucius.bus.port import DirectiveOut
from lucius.ledger.store import Op, Row
from lucius.sdk.directive import Key


class Violation(Exception):
    """A promise was broken: which one, for which job ("" where no job can be named), and how."""

    def __init__(self, name: str, job_id: str, text: str) -> None:
        super().__init__(f"{name}: {job_id or '-'}: {text}")
        self.name = name
        self.job_id = job_id
        self.text = text


class StoreReader(Protocol):
    """The store's rows as they are, without latency and faults."""

    def partitions(self, table: str) -> list[str]:
        """The partitions of a table that have rows, in order."""
        ...

    def rows(self, table: str, partition: str) -> list[Row]:
        """All rows of a partition, in key order."""
        ...


class SimListener(Protocol):
    def committed(self, ops: Sequence[Op], *, now_ms: int, by: str) -> None:
        """A commit took effect. `by`: the simulated process whose commit it was; `now_ms`: the true time,
        which the clocks of the processes may differ from."""
        ...

    def published(self, directive: DirectiveOut, *, now_ms: int) -> None:
        """The bus was given a directive, whatever became of it there."""
        ...

    def answered(self, job_id: str, *, key: str, duplicate: bool) -> None:
        """A client was told 202 for this job, under a key that is the same for the same command. For a
        rerun without a key of its own `key` is empty: it may name another job once that one has ended."""
        ...

    def started(self, name: str, *, opens: bool, relays: bool, offset_ms: int) -> None:
        """A life of this process begins. `opens`: clients may call it; `relays`: it sends directives;
        `offset_ms`: how far the clock is off that it begins with."""
        ...

    def stood_still(self, name: str, *, from_ms: int, until_ms: int) -> None:
        """This process has done nothing since `from_ms`, which may be now, and does nothing until then. The
        last word counts."""
        ...

    def rerun_asked(self, job_id: str, first: int) -> None:
        """A client is about to ask for this job again from that step on, by its index."""
        ...

    def replied(self, attempt: Key, kind: str, outcome: str, *, stop: bool) -> None:
        """The sender of a reply (`kind`: ACK, PROGRESS, RESULT) learned its outcome: a value of
        `core.draft.Outcome`, and whether to stop."""
        ...

    def settled(self, body: bytes, *, now_ms: int) -> None:
        """The orchestrator's side completed a reply on the bus: it never comes again. `body`: the message.
        Not for one that was given back or dead-lettered."""
        ...

    def lost(self, table: str, partition: str, key: str, *, now_ms: int) -> None:
        """An index row vanished: no commit removed it."""
        ...

    def passed(self, *, now_ms: int) -> None:
        """Time went by, in which nothing need have happened."""
        ...

    def at_rest(self, reader: StoreReader) -> list[Violation]:
        """Nothing moves any more: what is not as it should be."""
        ...
