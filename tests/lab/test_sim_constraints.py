"""Bounds that bite: seeds choose what is scarce, it is, and whoever ignores a bound is caught."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lucius.core import decide, replies
from lucius.core.attempt import AttemptRef
from lucius.core.draft import Decision, Draft
from lucius.core.inputs import Progress, PublishFailed, Reply
from lucius.core.model import Event, Job, Step
from lucius.engines.outbox import publisher as publisher
from lucius.jobs import reruns as rerun
from lucius.jobs.admission import Admission
from lucius.jobs.new_job import NewIds
from lucius.jobs.submit import JobSubmitter, Submitted
from lucius.sdk.bus_transport import BusTransport
from lucius.sdk.dedupe import MemoryDedupe
from lucius.sdk.directive import Key, parse_directive
from lucius.sdk.ports import DirectiveSeen
from lucius_lab.questions import LabQuestion, shape_of
from lucius_lab.sim import workload
from lucius_lab.sim.cluster import ClusterTopology
from lucius_lab.sim.constraints import Constraint, bounds_of
from lucius_lab.sim.run import SimShape, default_protocol, simulate

SEEDS_MAX = 80

replace = msgspec.structs.replace


def test_seeds_choose_every_scarcity_and_nothing_in_most_of_them() -> None:
    shape = SimShape(jobs=0)
    outcomes = [simulate(seed, shape) for seed in range(600)]
    found = Counter(outcome.constraint for outcome in outcomes)
    assert set(found) == set(Constraint)
    assert 0.5 < found[Constraint.NONE] / 600 < 0.7
    for outcome in outcomes:
        of_brokers = outcome.constraint in (Constraint.WINDOW, Constraint.PUBLISHES)
        assert not of_brokers or outcome.topology is ClusterTopology.BROKER


def test_who_asks_about_protocols_or_faults_of_their_own_is_not_pinched() -> None:
    shape = shape_of(LabQuestion(faults="loss=20%"))
    assert isinstance(shape, SimShape) and shape.constraint is Constraint.NONE
    shape = shape_of(LabQuestion(faults="default"))
    assert isinstance(shape, SimShape) and shape.constraint is None
    protocols = (default_protocol(2),)
    for shape in (SimShape(jobs=0, faults="none"), SimShape(jobs=0, protocols=protocols)):
        assert {simulate(seed, shape).constraint for seed in range(20)} == {Constraint.NONE}


def test_backoffs_differ_so_that_one_taken_for_another_is_seen() -> None:
    for constraint in Constraint:
        policy = bounds_of(constraint).policy
        backoffs = {policy.backoff_publish_ms, policy.backoff_ack_ms, policy.backoff_result_ms}
        assert len(backoffs) == 3


# What each scarcity brings about, told by the timeline.
BITES = [
    (Constraint.SLA, "“SLA_ESCALATED”"),
    (Constraint.SLA, "“JOB_FAILED”"),
    (Constraint.DURATION, "“STEP_RETRYING”"),
    (Constraint.PUBLISHES, "“JOB_FAILED”"),
]


@pytest.mark.parametrize(("constraint", "sign"), BITES)
def test_a_scarcity_bites(constraint: Constraint, sign: str) -> None:
    topology = ClusterTopology.BROKER if constraint is Constraint.PUBLISHES else ClusterTopology.EMBEDDED
    constrained, free = (
        _signs(sign, SimShape(topology=topology, constraint=each)) for each in (constraint, Constraint.NONE)
    )
    assert constrained > 2 * free


def _signs(sign: str, shape: SimShape) -> int:
    seeds = range(40)
    stories = [simulate(seed, msgspec.structs.replace(shape, record=True)) for seed in seeds]
    assert all(story.passed for story in stories)
    return sum(line.count(sign) for story in stories for line in story.timeline)


def test_slots_are_scarce_and_every_command_is_taken_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0
    real = Admission.refusal

    def counted(self: Admission, *asked: Any) -> Any:
        nonlocal refused
        found = real(self, *asked)
        refused += found is not None
        return found

    monkeypatch.setattr(Admission, "refusal", counted)
    outcome = simulate(1, SimShape(topology=ClusterTopology.WORKERS, constraint=Constraint.SLOTS))
    assert outcome.passed and len(outcome.jobs) >= 8
    assert refused > 5


# Mistakes in the real code, and the promise that names each.


def _window_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher._PublisherLane, "room", lambda self, window: 99)


def _no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "refusal", lambda self, *asked: None)


def _slot_given_back_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "doubt", Admission.release)


def _repeats_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the transport nor the memory behind it knows a directive that came before."""

    async def begin(self: MemoryDedupe, key: Key) -> DirectiveSeen:
        return DirectiveSeen.NEW

    async def unwrap(self: BusTransport, taken: Any) -> dict[str, Any]:
        message: dict[str, Any] = msgspec.json.decode(taken[1].body)
        directive = parse_directive(message)
        assert directive is not None
        self._held.setdefault(directive.key, []).append(taken)
        return message

    monkeypatch.setattr(MemoryDedupe, "begin", begin)
    monkeypatch.setattr(BusTransport, "_unwrap", unwrap)


def _sla_half_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    real = decide._check_sla

    def hasty(draft: Draft) -> None:
        job, step = draft.record.job, draft.record.current
        if step is not None and draft.now_ms - job.created_at_ms >= 1.5 * job.sla_ms:
            draft.fail(step, reason="SLA", code="SLA_EXCEEDED", message="too late")
        else:
            real(draft)

    monkeypatch.setattr(decide, "_check_sla", hasty)


def _progress_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    real = replies._progress

    def renewed(draft: Draft, step: Step, reply: Progress) -> None:
        real(draft, replace(step, policy=replace(step.policy, max_duration_ms=1 << 40)), reply)

    monkeypatch.setattr(replies, "_progress", renewed)


def _publishes_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    real = decide._publish_failed

    def patient(draft: Draft, given: PublishFailed) -> Decision:
        steps = tuple(
            replace(step, policy=replace(step.policy, publish_attempts_max=0)) for step in draft.record.steps
        )
        policies = [step.policy for step in draft.record.steps]
        draft.record = replace(draft.record, steps=steps)
        decision = real(draft, given)
        kept = zip(decision.record.steps, policies, strict=True)
        steps = tuple(replace(step, policy=policy) for step, policy in kept)
        return replace(decision, record=replace(decision.record, steps=steps))

    monkeypatch.setattr(decide, "_publish_failed", patient)


def _one_backoff_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    real = replies.retry_or_fail

    def mixed(draft: Draft, step: Step, reason: str, backoffs_ms: tuple[int, ...], *error: str) -> None:
        real(draft, step, reason, step.policy.backoff_result_ms, *error)

    monkeypatch.setattr(decide, "retry_or_fail", mixed)


def _nobody_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttemptRef, "is_current", lambda attempt, record: True)


def _progress_is_told_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    real = replies.decide_reply

    def stopping(draft: Draft, reply: Reply) -> Decision:
        decision = real(draft, reply)
        return replace(decision, stop=True) if isinstance(reply, Progress) else decision

    monkeypatch.setattr(decide, "decide_reply", stopping)


def _any_late_result_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(event: Event) -> bool:
        return (event.data.get("reply") or {}).get("type") == "RESULT"

    for module in (rerun, workload):
        monkeypatch.setattr(module, "is_late_success", late)


def _everybody_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    real = replies.decide_reply

    def stopping(draft: Draft, reply: Reply) -> Decision:
        return replace(real(draft, reply), stop=True)

    monkeypatch.setattr(decide, "decide_reply", stopping)


def _rerun_one_step_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rerun.rerun_of

    def late(old: Any, first: int, *more: Any) -> Any:
        return real(old, min(first + 1, len(old.steps)), *more)

    monkeypatch.setattr(rerun, "rerun_of", late)


def _adopts_another_result(monkeypatch: pytest.MonkeyPatch) -> None:
    real = JobSubmitter.admit

    async def confused(
        self: JobSubmitter, *, build: Callable[..., Any], adopted: Any = None, **more: Any
    ) -> Any:
        def built(ids: NewIds, now_ms: int) -> tuple[Job, tuple[Step, ...]]:
            job, steps = build(ids, now_ms)
            if adopted is None:
                return job, steps
            other = {"uri": "s3://results/of another"}
            return job, tuple(
                replace(step, result_ref=other) if step.step_id == adopted["stepId"] else step
                for step in steps
            )

        return await real(self, build=built, adopted=adopted, **more)

    monkeypatch.setattr(JobSubmitter, "admit", confused)


MISTAKES = [
    (_window_of_any_size, "I14", Constraint.WINDOW, ClusterTopology.BROKER),
    (_no_limit, "I14", Constraint.SLOTS, ClusterTopology.WORKERS),
    (_slot_given_back_in_doubt, "I14", Constraint.SLOTS, ClusterTopology.WORKERS),
    (_repeats_are_run, "I14", Constraint.NONE, ClusterTopology.BROKER),
    (_sla_half_as_long, "I13", Constraint.SLA, ClusterTopology.EMBEDDED),
    (_progress_for_ever, "I10 I13", Constraint.DURATION, ClusterTopology.EMBEDDED),
    (_publishes_without_end, "I13", Constraint.PUBLISHES, ClusterTopology.BROKER),
    (_one_backoff_for_another, "I13", Constraint.NONE, ClusterTopology.BROKER),
    (_nobody_stops, "I11", Constraint.NONE, ClusterTopology.EMBEDDED),
    (_progress_is_told_to_stop, "I11", Constraint.NONE, ClusterTopology.EMBEDDED),
    (_any_late_result_is_adopted, "I13", Constraint.NONE, ClusterTopology.EMBEDDED),
    (_everybody_stops, "I11", Constraint.NONE, ClusterTopology.EMBEDDED),
    (_rerun_one_step_too_late, "I13", Constraint.NONE, ClusterTopology.EMBEDDED),
    (_adopts_another_result, "I13", Constraint.NONE, ClusterTopology.EMBEDDED),
]


@pytest.mark.parametrize(
    ("plant", "names", "constraint", "topology"), MISTAKES, ids=[plant.__name__ for plant, *_ in MISTAKES]
)
def test_a_mistake_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    names: str,
    constraint: Constraint,
    topology: ClusterTopology,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    shape = SimShape(constraint=constraint, topology=topology)
    assert _caught(shape) in names.split()


def _caught(shape: SimShape) -> str | None:
    """The promise that was broken first, of the first seed that broke one."""
    for seed in range(SEEDS_MAX):
        ran = simulate(seed, shape)
        if not ran.passed:
            return ran.violations[0].name
    return None


def test_reruns_begin_where_somebody_asks_and_late_successes_are_adopted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted: Counter[str] = Counter()

    def counting(name: str, real: Callable[..., Any], asked: Callable[[dict[str, Any]], bool]) -> None:
        async def called(self: rerun.Reruns, job_id: str, **more: Any) -> Any:
            answer = await real(self, job_id, **more)
            accepted[name] += isinstance(answer, Submitted) and asked(more)
            return answer

        monkeypatch.setattr(rerun.Reruns, name, called)

    counting("adopt", rerun.Reruns.adopt, lambda more: True)
    counting("rerun", rerun.Reruns.rerun, lambda more: more["from_step"] is not None)
    for seed in range(180):  # answers wait out a standstill (decision 049), so few successes are late
        assert simulate(seed, SimShape(topology=ClusterTopology.EMBEDDED)).passed
    assert accepted["adopt"] > 2 and accepted["rerun"] > 2, accepted
