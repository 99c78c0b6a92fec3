"""What Lucius promises, checked after every commit of a simulation and once more when it rests.

In: every commit that took effect, every directive that left, every answer that was given (see `watch`).
Out: the first breach, as a `Violation` that names its rule:

I1   a job or step that has ended never changes; what comes later is evidence
I2   at most one step of a job is active
I3   no job that a client was told of is lost, and none is made twice under one key
I4   once nothing goes wrong any more, every job ends
I5   an open job holds its in-flight slot, an ended one gives it back
I6   an open job stands in the due index, one that waits for dispatch in the dispatch index, each job in its
     lists, a finally failed one in the DLQ; nothing else stands there; what is SENT has left
I7   attempts are counted one by one up to their limit, each under a lease of its own
I8   routing never changes
I10  events are numbered without a gap, and the rows are their fold
I11  an answer that did not count is found in the trail; a reply is settled after its commit; a service is
     told to stop if its attempt no longer counts, its job is being cancelled, or a pause asks it to, and
     only then
I12  nothing begins, and nothing ages, while a job is paused; nothing begins while it is being cancelled
I13  what an event says (deadlines, backoffs, errors, results) follows from the policy and what was before
I14  no more is under way than the deployment allows, and no process of a service runs an attempt twice
I15  no attempt is given up before its time because a clock was set, in either direction
I16  no attempt is given up as soon as a process runs again that stood still: answers came meanwhile
I17  an index row of an open job that vanishes is put back within `LOST_MS_MAX`
I18  no service has more attempts out at once than it may have, in total and of each tenant
I19  no more directives leave for a service in any second than its rate and one burst
I20  of two tenants that wait in one lane all the time, neither gets more than six directives ahead

(I9, that both engines leave the same ledger behind, compares two runs: see `normal_form`.)

Only rows that a commit touches are looked at, so the cost of a commit does not grow with the world. Where
commits may span partitions, the rows around a job agree with it in the same commit. Where they may not, rows
that another process relies on are there before the fact, and the rest is right at rest.
"""

from collections.abc import Callable, Sequence

import msgspec

from lucius.bus.port import DirectiveOut
from lucius.core.model import JobRecord
from lucius.core.states import JOB_TERMINAL
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.names import Tables, split_dispatch_key
from lucius.ledger.rows import IdempotencyRow, decode_event, is_tombstone
from lucius.ledger.store import Op
from lucius_lab.sim.invariants_events import wrong_reuse
from lucius_lab.sim.invariants_job import JobInvariants
from lucius_lab.sim.invariants_limits import LimitInvariants
from lucius_lab.sim.invariants_replies import ReplyInvariants
from lucius_lab.sim.invariants_rest import check_rest
from lucius_lab.sim.invariants_rows import JobRows
from lucius_lab.sim.invariants_times import ClockInvariants
from lucius_lab.sim.watch import StoreReader, Violation

LOST_MS_MAX = 40_000
_JOB_AT = 15  # a time key is 14 digits, a mark, and the job id

_key_row = msgspec.json.Decoder(IdempotencyRow)


class Invariants(ReplyInvariants):
    def __init__(
        self,
        layout: LayoutName,
        tables: Tables,
        spans: bool,
        *,
        broker: bool = False,
        limit_invariants: LimitInvariants | None = None,
    ) -> None:
        """`broker`: directives leave over a bus, and `published` gets each before its commit says so.
        `limit_invariants`: counts what is under way, where there are bounds that bite."""
        super().__init__()
        self.limit_invariants = limit_invariants
        self.times = ClockInvariants()
        self.layout = layout
        self.tables = tables
        self.spans = spans
        self.broker = broker
        self.now_ms = 0
        self.around: dict[str, JobRows] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self._left: set[str] = set()
        self._written: dict[str, JobInvariants] = {}
        self._touched: dict[str, JobRows] = {}
        self._firsts: dict[str, set[int]] = {}
        self._readers = self._row_readers()
        # Rows that vanished, and when. Until they are put back they count as there: nothing that Lucius did.
        self._vanished: dict[tuple[str, str, str], int] = {}

    # What is reported

    def committed(self, ops: Sequence[Op], *, now_ms: int, by: str) -> None:
        self.now_ms = now_ms
        readers = self._readers
        if self._vanished:
            self._put_back(ops, now_ms)
        for op in ops:
            reader = readers.get(op.table)
            if reader is not None:
                reader(op)
        if self._written:
            for job_id, truth in self._written.items():
                before = truth.record
                if truth.apply():
                    self._check_key(truth)
                    self._check_reuse(truth)
                if truth.record is not before and before is not None and truth.record is not None:
                    self.times.changed(before, truth.record, by, now_ms)
                if truth.started:
                    self._check_left(truth)
                if self.limit_invariants is not None and truth.record is not None:
                    self.limit_invariants.changed(before, truth.record, by)
                self._around(job_id)
            self._written.clear()
        if self._touched:
            for job_id, around in self._touched.items():
                self._check_around(job_id, around)
            self._touched.clear()

    def _put_back(self, ops: Sequence[Op], now_ms: int) -> None:
        for op in ops:
            self._vanished.pop((op.table, op.partition, op.key), None)
        self.passed(now_ms=now_ms)

    def published(self, directive: DirectiveOut, *, now_ms: int) -> None:
        job_id, step_id, attempt_no, lease_id = directive.message_id.split(".", 3)
        if self._leases.get(lease_id) != (job_id, step_id, int(attempt_no)):
            raise Violation("I7", job_id, f"{directive.message_id} left, an attempt that was never begun")
        self._left.add(lease_id)
        record = self.jobs[job_id].record
        step = None if record is None else record.step(step_id)
        if step is None:
            raise Violation("I3", job_id, f"{directive.message_id} left for a job that is not there")
        place = (directive.lane, directive.message_key)
        asked = (*step.tried, step.service)  # one that was overtaken may leave once more
        if place != (step.routing.lane, step.routing.routing_key_used) or directive.service not in asked:
            raise Violation("I8", job_id, f"{directive.message_id} left by {place}")

    def started(self, name: str, *, opens: bool, relays: bool, offset_ms: int) -> None:
        self.times.started(name, offset_ms)
        if self.limit_invariants is not None:
            self.limit_invariants.started(name, opens=opens, relays=relays)

    def stood_still(self, name: str, *, from_ms: int, until_ms: int) -> None:
        self.times.stood_still(name, from_ms, until_ms)

    def rerun_asked(self, job_id: str, first: int) -> None:
        self._firsts.setdefault(job_id, set()).add(first)

    def lost(self, table: str, partition: str, key: str, *, now_ms: int) -> None:
        self._vanished.setdefault((table, partition, key), now_ms)

    def passed(self, *, now_ms: int) -> None:
        for place, at_ms in list(self._vanished.items()):
            if now_ms - at_ms < LOST_MS_MAX:
                continue
            del self._vanished[place]
            job_id = place[2].rpartition("#")[2]
            truth = self.jobs.get(job_id)
            record = None if truth is None or truth.job_deletion else truth.record
            if record is not None and self._needs(place, record):
                raise Violation("I17", job_id, f"{'/'.join(place)} vanished and was not put back")

    def _needs(self, place: tuple[str, str, str], record: JobRecord) -> bool:
        table, job = place[0], record.job
        if job.terminal or table in (self.tables.inflight, self.tables.job_index):
            return not job.terminal
        around = self.around[job.job_id]
        if table == self.tables.due:
            return job.due_at_ms is not None and around.due_place_of(job, job.due_at_ms) == place[1:]
        return around.dispatch_place_of(record) == place[1:]

    def at_rest(self, reader: StoreReader) -> list[Violation]:
        return check_rest(self, reader)

    # Reading rows: of all ops, only removals have no body.

    def _row_readers(self) -> dict[str, Callable[[Op], None]]:
        t = self.tables
        readers: dict[str, Callable[[Op], None]] = {
            t.idempotency: self._read_key,
            t.due: self._read_due,
            t.dispatch: self._read_dispatch,
            t.inflight: self._read_slot,
            t.job_index: self._read_list,
            t.dlq: self._read_dlq,
            t.retention: self._read_retention,
        }
        if self.layout is LayoutName.LEDGER:
            readers[t.ledger] = self._read_partition
        elif not self.spans:
            readers[t.steps] = self._read_partition
        else:
            readers[t.jobs] = self._read_job
            readers[t.steps] = self._read_step
            readers[t.outbox] = self._read_outbox
            readers[t.events] = self._read_event
        return readers

    def _truth(self, job_id: str) -> JobInvariants:
        truth = self._written.get(job_id)
        if truth is None:
            truth = self.jobs.get(job_id)
            if truth is None:
                truth = self.jobs[job_id] = JobInvariants(job_id, self._leases)
            self._written[job_id] = truth
        return truth

    def _around(self, job_id: str) -> JobRows:
        around = self._touched.get(job_id)
        if around is None:
            around = self.around.get(job_id)
            if around is None:
                around = self.around[job_id] = JobRows()
            self._touched[job_id] = around
        return around

    def _read_partition(self, op: Op) -> None:
        job_id, key, body = op.partition, op.key, op.body
        if not body:
            self._removed(job_id, op)
            return
        if key == "JOB":
            self._take_job(op, job_id)
            return
        truth = self._written.get(job_id) or self._truth(job_id)
        kind = key[0]
        if kind == "E":
            truth.events.append(body)
        elif kind == "S":
            truth.steps.append((int(key.split("#", 2)[1]), body))
        else:
            truth.outbox_body = body

    def _read_job(self, op: Op) -> None:
        self._take_job(op, op.key)

    def _read_step(self, op: Op) -> None:
        if not op.body:
            self._removed(op.partition, op)
        else:
            self._truth(op.partition).steps.append((int(op.key.split("#", 1)[0]), op.body))

    def _read_outbox(self, op: Op) -> None:
        job_id = op.key.split(".", 1)[0]
        if not op.body:
            self._removed(job_id, op)
        else:
            self._truth(job_id).outbox_body = op.body

    def _read_event(self, op: Op) -> None:
        if not op.body:
            self._removed(op.partition, op)
        else:
            self._truth(op.partition).events.append(op.body)

    def _take_job(self, op: Op, job_id: str) -> None:
        if not op.body:
            self._removed(job_id, op)
        elif is_tombstone(op.body):
            truth = self.jobs.get(job_id)
            if truth is not None and truth.record is not None and not truth.job_deletion:
                raise Violation("I3", job_id, "a tombstone was put over a job")
        else:
            self._truth(job_id).job_body = op.body

    def _removed(self, job_id: str, op: Op) -> None:
        """A job's own rows go when it is forgotten, which only ended ones are."""
        truth = self.jobs.get(job_id)
        if truth is None or truth.record is None:
            return
        if not truth.record.job.terminal:
            raise Violation("I3", job_id, f"{op.table}/{op.key} of an open job was removed")
        truth.job_deletion = True

    def _read_key(self, op: Op) -> None:
        place = (op.partition, op.key)
        held = self.keys.pop(place, None)
        if op.body:
            self.keys[place] = _key_row.decode(op.body).job_id
        if held not in (None, self.keys.get(place)) and not self._has_ended(held):
            raise Violation("I3", held, "its idempotency key was taken away while it was open")

    def _has_ended(self, job_id: str) -> bool:
        truth = self.jobs.get(job_id)
        return truth is not None and truth.record is not None and truth.record.job.terminal

    def _read_due(self, op: Op) -> None:
        around = self._around(op.key[_JOB_AT:])
        if not op.body:
            around.due.pop((op.partition, op.key), None)
        else:
            around.due[op.partition, op.key] = op.body

    def _read_dispatch(self, op: Op) -> None:
        around = self._around(split_dispatch_key(op.key)[2])
        if not op.body:
            around.dispatch.pop((op.partition, op.key), None)
        else:
            around.dispatch[op.partition, op.key] = op.body

    def _read_slot(self, op: Op) -> None:
        around = self._around(op.key)
        if not op.body:
            around.slots.discard(op.partition)
        else:
            around.slots.add(op.partition)

    def _read_list(self, op: Op) -> None:
        if op.partition.startswith("job#"):
            return
        if op.partition.startswith(("ended#", "search#")):
            found = self._around(op.key.rpartition("#")[2]).found_by
            if op.body:
                found.add((op.partition, op.key))
            else:
                found.discard((op.partition, op.key))
            return
        around = self._around(op.key[_JOB_AT:])
        around.listed = False
        if not op.body:
            around.lists.pop((op.partition, op.key), None)
        else:
            around.lists[op.partition, op.key] = op.body

    def _read_dlq(self, op: Op) -> None:
        if op.partition.startswith("left#"):
            self._around(op.key).left = op.body != b""
            return
        around = self._around(op.key[_JOB_AT:])
        around.dlq = None if not op.body else (op.partition, op.key)

    def _read_retention(self, op: Op) -> None:
        around = self._around(op.key[_JOB_AT:])
        around.retention = None if not op.body else (op.partition, op.key)

    # Judging

    def _check_key(self, truth: JobInvariants) -> None:
        record = truth.record
        assert record is not None
        job = record.job
        if self.keys.get((job.tenant_norm, job.idempotency_hash)) != job.job_id:
            raise Violation("I3", job.job_id, "the job was created before its idempotency key was claimed")

    def _check_reuse(self, truth: JobInvariants) -> None:
        record = truth.record
        assert record is not None
        old_id = record.job.rerun_of or ""
        old, firsts = self.jobs.get(old_id), self._firsts.get(old_id, frozenset[int]())
        adopted = decode_event.of_bytes(truth.trail[0]).data.get("adopted")
        late = (
            None if adopted is None or old is None else decode_event.of_bytes(old.trail[adopted["seq"] - 1])
        )
        wrong = wrong_reuse(record, None if old is None else old.record, firsts=firsts, late=late)
        if wrong is not None:
            raise Violation("I13", truth.job_id, wrong)

    def _check_left(self, truth: JobInvariants) -> None:
        for lease_id in truth.started:
            if self.broker and lease_id not in self._left:
                raise Violation("I6", truth.job_id, f"{lease_id} was said to be SENT before it had left")
        truth.started.clear()

    def _check_around(self, job_id: str, around: JobRows) -> None:
        truth = self.jobs.get(job_id)
        record = None if truth is None else truth.record
        if truth is None or record is None:
            if self.spans and around.stands:
                raise Violation("I6", job_id, f"rows stand around a job that does not exist: {around}")
        elif truth.job_deletion:
            return
        elif record.job.state in JOB_TERMINAL:
            if self.spans:
                around.check_ended(record.job, at_rest=False)
        else:
            around.check_open(record, spans=self.spans)
