"""A small world around the machine: jobs to try it on, and everything that may happen to them.

In: the numbers of a policy, an engine, how many steps. Out: records, inputs, and edges: what was given to
which record, and the answer. Knows `core` and nothing else; what must hold of an edge is in `invariants`.
"""

from collections import deque
from functools import cache
from typing import NamedTuple

import msgspec

from lucius.core.decide import create, decide
from lucius.core.draft import Decision
from lucius.core.due import next_due_ms
from lucius.core.inputs import (
    Ack,
    BeginAttempt,
    Cancel,
    DispatchNow,
    Expire,
    ExpireReason,
    HandOut,
    Input,
    Pause,
    Progress,
    Published,
    PublishFailed,
    Result,
    ResultStatus,
    Resume,
    Tick,
)
from lucius.core.model import Job, JobRecord, Routing, Step, StepPolicy, step_id_at
from lucius.core.refusal import Refused
from lucius.core.replies import STOPPED
from lucius.core.states import Engine, Fact, JobState, Mode, StepState

START_MS = 1_800_000_000_000
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
SLA_MS = 7 * DAY_MS
OUTPUT_URI = "s3://out/document"
ROUTING = Routing(
    lane=15,
    routing_key_used="tenant_a",
    resolved_mode=Mode.DEFAULT,
    decision_source="GLOBAL_CONFIG",
    decision_reason="default",
)
NODES_MAX = 5_000


def new_steps(count: int, policy: StepPolicy, *, stop_on_pause: bool = False) -> tuple[Step, ...]:
    return tuple(
        Step(
            step_id=step_id_at(index),
            step_index=index,
            step_type=f"TYPE_{index + 1}",
            service=f"service-{index + 1}",
            policy=policy,
            routing=ROUTING,
            input_ref={"uri": "s3://in/document"},
            workspace_ref={"uri": "s3://space/lucius/tenant_a/job_1/"},
            output_ref={"uri": OUTPUT_URI},
            payload={"language": "en"},
            created_at_ms=START_MS,
            updated_at_ms=START_MS,
            stop_on_pause=stop_on_pause,
        )
        for index in range(count)
    )


def new_job(*, engine: Engine = Engine.OUTBOX, sla_ms: int = SLA_MS) -> Job:
    return Job(
        job_id="job_1",
        tenant_id="tenant_a",
        tenant_norm="tenant_a",
        request_type="OCR",
        protocol_id="ocr_v1",
        engine=engine,
        mode=Mode.DEFAULT,
        lane=ROUTING.lane,
        created_at_ms=START_MS,
        updated_at_ms=START_MS,
        sla_ms=sla_ms,
        output_uri=OUTPUT_URI,
        idempotency_hash="0" * 64,
        fingerprint="0" * 64,
        correlation_id="correlation",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )


def born(
    count: int = 1,
    policy: StepPolicy | None = None,
    *,
    engine: Engine = Engine.OUTBOX,
    sla_ms: int = SLA_MS,
    stop_on_pause: bool = False,
) -> JobRecord:
    job = new_job(engine=engine, sla_ms=sla_ms)
    steps = new_steps(count, policy or StepPolicy(), stop_on_pause=stop_on_pause)
    return create(job, steps, now_ms=START_MS, lease_id="lease_0").record


def focus(record: JobRecord) -> Step:
    """The step the job is at: the one that was begun last, or the first."""
    return record.steps[record.job.current_step_index or 0]


class Target(NamedTuple):
    """The attempt that a reply or a note speaks of."""

    step_id: str
    attempt_no: int
    lease_id: str


def target(step: Step) -> Target:
    return Target(step.step_id, step.attempt_no, step.lease_id or "no lease yet")


def hand_out(of: Target, *, picked_up: bool = False) -> HandOut:
    return HandOut(**of._asdict(), picked_up=picked_up)


def published(of: Target) -> Published:
    return Published(**of._asdict())


def publish_failed(of: Target, message: str = "the broker is away") -> PublishFailed:
    return PublishFailed(**of._asdict(), error_message=message)


def ack(of: Target) -> Ack:
    return Ack(**of._asdict(), content={"type": "ACK"}.copy)


def progress(of: Target, value: int | None, note: str | None = None) -> Progress:
    return Progress(
        **of._asdict(),
        content={"type": "PROGRESS"}.copy,
        progress=value,
        note=note,
    )


def result(of: Target, status: ResultStatus, *, uri: str | None = None, code: str | None = None) -> Result:
    return Result(
        **of._asdict(),
        content={"type": "RESULT", "status": status.value}.copy,
        status=status,
        output_ref=None if uri is None else {"uri": uri},
        error_code=code,
        error_message=None if code is None else f"the service said {code}",
    )


def replies(of: Target) -> list[Ack | Progress | Result]:
    return [
        ack(of),
        progress(of, 50, "half of it"),
        progress(of, 10),
        *(result(of, status) for status in ResultStatus),
        result(of, ResultStatus.FAILED_RETRY, code=STOPPED),
    ]


def notes(of: Target) -> list[HandOut | Published | PublishFailed]:
    return [published(of), publish_failed(of), hand_out(of), hand_out(of, picked_up=True)]


def begin(record: JobRecord) -> BeginAttempt:
    """The next attempt, as a workflow asks for it. The lease is one that `give` takes for new."""
    step, lease_id = record.current or focus(record), f"lease_{record.job.seq}"
    return BeginAttempt(step_id=step.step_id, attempt_no=step.attempt_no + 1, lease_id=lease_id)


def expiries(of: Target) -> list[Expire]:
    return [Expire(**of._asdict(), reason=reason) for reason in ExpireReason]


def right_inputs(record: JobRecord) -> list[Input]:
    """Everything that may happen, with replies and notes for the attempt that the job is at."""
    of = target(focus(record))
    asks: list[Input] = [begin(record), *expiries(of)]
    return [Cancel(), Pause(), Resume(), Tick(), DispatchNow(), *replies(of), *notes(of), *asks]


def wrong_inputs(record: JobRecord) -> list[Input]:
    """Replies and notes for attempts that the job is not at: other, finished, unknown ones."""
    right, given = target(focus(record)), list[Input]()
    wrong = [
        right._replace(attempt_no=right.attempt_no + 1),
        right._replace(lease_id="lease of another"),
        right._replace(step_id="step_99"),
    ]
    finished = [target(step) for step in record.steps[:1] if step is not focus(record)]
    for of in [*finished, *wrong]:
        given += [ack(of), progress(of, 60), result(of, ResultStatus.SUCCEEDED), *notes(of), *expiries(of)]
    for reply in (ack(right), progress(right, 60), result(right, ResultStatus.SUCCEEDED)):
        given.append(msgspec.structs.replace(reply, tenant_id="tenant_b"))
    ask, step = begin(record), focus(record)
    for off in (-1, 1):
        given.append(msgspec.structs.replace(ask, attempt_no=ask.attempt_no + off))
    given.append(msgspec.structs.replace(ask, step_id="step_99"))
    if step.lease_id is not None:
        given.append(msgspec.structs.replace(ask, lease_id=step.lease_id))
    return given


class Edge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that was given to a record, and the answer."""

    before: JobRecord
    given: Input
    at_ms: int
    lease_id: str
    answer: Decision | Refused

    @property
    def after(self) -> JobRecord:
        return self.answer.record if isinstance(self.answer, Decision) else self.before


def give(record: JobRecord, given: Input, at_ms: int) -> Edge:
    # The trail only grows and an attempt is an event of its own: no two attempts get the same lease.
    lease_id = f"lease_{record.job.seq}"
    answer = decide(record, given, now_ms=at_ms, lease_id=lease_id)
    return Edge(before=record, given=given, at_ms=at_ms, lease_id=lease_id, answer=answer)


class Node(msgspec.Struct, frozen=True, kw_only=True):
    record: JobRecord
    at_ms: int
    as_found: bytes


def _node(record: JobRecord, at_ms: int) -> Node:
    return Node(record=record, at_ms=at_ms, as_found=msgspec.msgpack.encode(record))


# A day's SLA, two attempts, and no two clocks alike: small enough to see every deadline pass.
EXPLORED_SLA_MS = DAY_MS
EXPLORED_POLICY = StepPolicy(
    max_attempts=2,
    max_duration_ms=2 * HOUR_MS,
    dispatch_timeout_ms=3 * HOUR_MS,
    backoff_result_ms=(30_000,),
)


@cache
def explored(count: int, engine: Engine = Engine.OUTBOX) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
    """Every situation that a job of so many steps can get into, breadth first, and all edges between them."""
    first = _node(born(count, EXPLORED_POLICY, engine=engine, sla_ms=EXPLORED_SLA_MS), START_MS)
    nodes, edges = {situation(first.record, START_MS): first}, []
    waiting = deque([first])
    while waiting:
        here = waiting.popleft()
        for at_ms in clocks(here.record, here.at_ms):
            wrong = wrong_inputs(here.record) if at_ms == here.at_ms else []
            for given in [*right_inputs(here.record), *wrong]:
                edge = give(here.record, given, at_ms)
                edges.append(edge)
                key = situation(edge.after, at_ms)
                if key not in nodes:
                    assert len(nodes) < NODES_MAX, "situations should be finitely many"
                    nodes[key] = _node(edge.after, at_ms)
                    waiting.append(nodes[key])
    return tuple(nodes.values()), tuple(edges)


def clocks(record: JobRecord, now_ms: int) -> list[int]:
    """Now, when the next thing is due, and after a whole SLA in which nobody looked."""
    due_at_ms = next_due_ms(record, now_ms)
    if due_at_ms is None:
        return [now_ms]
    return sorted({now_ms, max(now_ms, due_at_ms), now_ms + record.job.sla_ms})


def situation(record: JobRecord, now_ms: int) -> tuple[object, ...]:
    """What tells two records apart once numbers are reduced to what the machine asks of them."""
    job, step, outbox = record.job, focus(record), record.outbox
    states = (job.state, tuple(each.state for each in record.steps), step.acked, step.resulted)
    if job.terminal:
        return states
    open_ms = (job.paused_at_ms or now_ms) - job.created_at_ms - job.paused_total_ms
    first_failed_at_ms = None if outbox is None else outbox.first_failed_at_ms
    return (
        *states,
        job.resume_to,
        job.escalated_at_ms is not None,
        min(2, open_ms // job.sla_ms),
        step.attempt_no,
        step.progress is None,
        _past(step.lease_expires_at_ms, now_ms),
        _past(step.next_attempt_at_ms, now_ms),
        None if outbox is None else outbox.state,
        record.awaits_dispatch(step) and _past(first_failed_at_ms, now_ms - step.policy.dispatch_timeout_ms),
    )


def _past(deadline_at_ms: int | None, now_ms: int) -> bool | None:
    return None if deadline_at_ms is None else deadline_at_ms <= now_ms


class Walk:
    """One job, walked by hand. Each verb answers with what was decided, and the walk goes on from there."""

    def __init__(self, record: JobRecord) -> None:
        self.record = record
        self.at_ms = record.job.created_at_ms
        self.facts: list[Fact] = []

    @property
    def job(self) -> Job:
        return self.record.job

    @property
    def step(self) -> Step:
        return focus(self.record)

    @property
    def states(self) -> tuple[JobState, StepState]:
        return self.job.state, self.step.state

    def wait(self, span_ms: int) -> "Walk":
        self.at_ms += span_ms
        return self

    def refused(self, given: Input) -> Refused:
        answer = give(self.record, given, self.at_ms).answer
        assert isinstance(answer, Refused), f"{given} was granted"
        return answer

    def give(self, given: Input) -> Decision:
        answer = give(self.record, given, self.at_ms).answer
        assert isinstance(answer, Decision), f"{given} was refused: {answer}"
        self.record = answer.record
        self.facts += [event.type for event in answer.events]
        return answer

    def hand_out(self) -> Decision:
        return self.give(hand_out(target(self.step)))

    def published(self) -> Decision:
        return self.give(published(target(self.step)))

    def publish_failed(self, message: str = "the broker is away") -> Decision:
        return self.give(publish_failed(target(self.step), message))

    def ack(self) -> Decision:
        return self.give(ack(target(self.step)))

    def progress(self, value: int | None, note: str | None = None) -> Decision:
        return self.give(progress(target(self.step), value, note))

    def succeed(self, uri: str | None = None) -> Decision:
        return self.give(result(target(self.step), ResultStatus.SUCCEEDED, uri=uri))

    def fail_retry(self, code: str | None = None) -> Decision:
        return self.give(result(target(self.step), ResultStatus.FAILED_RETRY, code=code))

    def fail_final(self, code: str | None = None) -> Decision:
        return self.give(result(target(self.step), ResultStatus.FAILED_FINAL, code=code))

    def tick(self) -> Decision:
        return self.give(Tick())

    def tick_when_due(self) -> Decision:
        due_at_ms = next_due_ms(self.record, self.at_ms)
        assert due_at_ms is not None, "a job that has ended has nothing due"
        self.at_ms = max(self.at_ms, due_at_ms)
        return self.tick()


def initiated(count: int = 1, policy: StepPolicy | None = None) -> Walk:
    """A job whose first directive is out and not acknowledged."""
    walk = Walk(born(count, policy))
    walk.hand_out()
    return walk


def processing(count: int = 1, policy: StepPolicy | None = None) -> Walk:
    """A job whose first step is being worked on."""
    walk = initiated(count, policy)
    walk.ack()
    return walk


def retrying(count: int = 1, policy: StepPolicy | None = None) -> Walk:
    """A job whose first attempt failed and whose second is not due yet."""
    walk = processing(count, policy)
    walk.fail_retry()
    return walk
