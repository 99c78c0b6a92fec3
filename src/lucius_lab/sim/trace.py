"""What happened in a simulation: a running hash of every act, and the same in words on request."""

from collections.abc import Sequence
from zlib import crc32

import msgspec

from lucius.ledger.store import Op, Verb
from lucius_lab.sim.faults import Fault
from lucius_lab.sim.loop import Process, SimLoop

LINES_MAX = 50_000
UNHASHED_ACTS_MAX = 512

_encode = msgspec.msgpack.Encoder().encode

_REMOVALS = (Verb.DELETE, Verb.DISCARD)


class _Row(msgspec.Struct):
    """What a line says of a row, whichever kind it is."""

    state: str | None = None
    type: str | None = None
    step_id: str | None = None
    attempt_no: int | None = None
    lease_id: str | None = None


class Acts:
    """All acts of a simulation, reduced to a few bytes on request: of thousands of runs, few need it."""

    __slots__ = ("_count", "_hash", "_latest")

    def __init__(self) -> None:
        self._count = 0
        self._hash = 0
        self._latest: list[tuple[object, ...]] = []

    def add(self, act: tuple[object, ...]) -> None:
        latest = self._latest
        latest.append(act)
        if len(latest) >= UNHASHED_ACTS_MAX:
            self._hash = crc32(_encode(latest), self._hash)
            self._count += len(latest)
            latest.clear()

    @property
    def hash(self) -> str:
        return f"{self._count + len(self._latest):016x}{crc32(_encode(self._latest), self._hash):08x}"


class Trace:
    def __init__(self, loop: SimLoop, *, record: bool, hashed: bool) -> None:
        """Without a hash no act is kept: kept acts take memory from the processes."""
        self.lines: list[str] = []
        self.record = record
        self.acts = Acts() if hashed else None
        self._loop = loop
        self._states: dict[tuple[str, str, str], str] = {}

    def commit(self, process: Process, ops: Sequence[Op]) -> None:
        if self.acts is not None:
            self.acts.add((self._loop.now, process.index, ops))
        if self.record:
            self.line(process.name, f"commit {self._told(ops)}")

    def act(self, process: Process, verb: str, what: str) -> None:
        """Anything else that others can see."""
        if self.acts is not None:
            self.acts.add((self._loop.now, process.index, verb, what))
        if self.record:
            self.line(process.name, f"{verb} {what}")

    def fault(self, fault: Fault) -> None:
        if self.acts is not None:
            self.acts.add((self._loop.now, fault.number))
        if self.record:
            self.line(fault.process, f"✗ fault {fault.number}: {fault.kind} {fault.what}".rstrip())

    def line(self, who: str, text: str) -> None:
        if len(self.lines) < LINES_MAX:
            self.lines.append(f"t={self._loop.time():.3f}s {who} {text}")

    def _told(self, ops: Sequence[Op]) -> str:
        parts: list[str] = []
        for op in ops:
            place = (op.table, op.partition, op.key)
            if op.verb in _REMOVALS:
                parts.append(f"-{op.table}/{op.partition}/{op.key}")
                continue
            row = msgspec.json.decode(op.body, type=_Row)
            if row.type is not None:
                parts.append(f"“{row.type}”")
            elif row.state is None:
                parts.append(f"+{op.table}/{op.partition}/{op.key}")
            else:
                before = self._states.get(place)
                self._states[place] = row.state
                moved = row.state if before in (None, row.state) else f"{before}→{row.state}"
                attempt = (
                    "" if row.attempt_no is None else f" #{row.attempt_no} {row.lease_id or ''}".rstrip()
                )
                parts.append(f"{op.partition} {op.key}{attempt} {moved}")
        return ", ".join(parts)
