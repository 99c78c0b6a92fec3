"""What commits turn into: counts, spreads, and how many jobs are open."""

import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.core.machine import START_MS, focus, hand_out, new_job, new_steps, result, target

from lucius.core.decide import create, decide
from lucius.core.draft import Decision
from lucius.core.explain import WaitsFor
from lucius.core.inputs import Cancel, Input, Pause, Result, ResultStatus, Tick
from lucius.core.model import JobRecord, StepPolicy
from lucius.core.replies import STOPPED
from lucius.core.states import JobState
from lucius.core.why import Wait
from lucius.telemetry import Metrics
from lucius.telemetry.open_jobs import OpenJobs, OpenPlace
from lucius.telemetry.series import OTHER, BoundedLabels, Histogram, LabelledCounter

WATCH_MICROSECONDS_MAX = 60.0  # on a machine that is busy with other things; alone it is below 10
QUICK = StepPolicy(
    max_attempts=2, ack_timeout_ms=1_000, lease_ms=2_000, backoff_ack_ms=(0,), backoff_result_ms=(0,)
)


class Play:
    """A job that things happen to, in front of the metrics."""

    def __init__(
        self, metrics: Metrics, *, steps: int = 1, policy: StepPolicy = QUICK, stop_on_pause: bool = False
    ) -> None:
        self.metrics = metrics
        self.now_ms = START_MS
        rows = new_steps(steps, policy, stop_on_pause=stop_on_pause)
        made = create(new_job(), rows, now_ms=self.now_ms, lease_id="lease_0")
        self.record = made.record
        self.commits: list[tuple[JobRecord | None, Decision]] = [(None, made)]
        metrics.watch(None, made.record, made.events)

    def give(self, given: Input, *, after_ms: int = 0) -> "Play":
        self.now_ms += after_ms
        decision = decide(self.record, given, now_ms=self.now_ms, lease_id=f"lease_{self.now_ms}")
        assert isinstance(decision, Decision)
        before, self.record = self.record, decision.record
        self.commits.append((before, decision))
        self.metrics.watch(before, decision.record, decision.events)
        return self

    def hand_out(self, *, after_ms: int = 0) -> "Play":
        return self.give(hand_out(target(focus(self.record)), picked_up=True), after_ms=after_ms)

    def result(self, status: ResultStatus = ResultStatus.SUCCEEDED, *, after_ms: int = 0) -> "Play":
        of = target(focus(self.record))
        reply = Result(
            step_id=of.step_id,
            attempt_no=of.attempt_no,
            lease_id=of.lease_id,
            content=dict,
            status=status,
            output_ref={"uri": "s3://out/1"},
        )
        return self.give(reply, after_ms=after_ms)


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics(lambda name: name == "OCR")
    made.open.census_over()
    return made


def samples(metrics: Metrics, *, tenants: bool = True) -> dict[str, float]:
    """Every sample by its name and labels, as a scraper reads them."""
    text, _ = metrics.text("", tenants=tenants)
    return {
        sample.name
        + "".join(f",{name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_a_job_that_goes_well(metrics: Metrics) -> None:
    Play(metrics).hand_out(after_ms=40).result(after_ms=2_000)
    told = samples(metrics)
    assert told["lucius_jobs_created_total,request_type=OCR"] == 1
    assert told["lucius_jobs_ended_total,request_type=OCR,state=SUCCEEDED"] == 1
    assert told["lucius_step_seconds_sum,step_type=TYPE_1"] == 2.0
    assert told["lucius_step_seconds_bucket,le=2.5,step_type=TYPE_1"] == 1
    assert told["lucius_step_seconds_bucket,le=1.0,step_type=TYPE_1"] == 0
    assert told["lucius_dispatch_lag_seconds_sum,service=service-1"] == 0.04
    assert told["lucius_job_seconds_sum,state=SUCCEEDED"] == 2.04
    assert sum(value for name, value in told.items() if name.startswith("lucius_jobs_open")) == 0


def test_work_that_a_pause_stopped_is_no_retry_of_its_result(metrics: Metrics) -> None:
    play = Play(metrics, stop_on_pause=True).hand_out().give(Pause())
    play.give(result(target(focus(play.record)), ResultStatus.FAILED_RETRY, code=STOPPED))
    told = samples(metrics)
    assert told["lucius_step_retries_total,reason=PAUSE,step_type=TYPE_1"] == 1
    assert not [name for name in told if "reason=RESULT" in name]


def test_retries_and_timeouts_have_reasons(metrics: Metrics) -> None:
    ack = Play(metrics)
    ack.give(hand_out(target(focus(ack.record)))).give(Tick(), after_ms=1_000)
    ack.hand_out().give(Tick(), after_ms=2_000)
    Play(metrics).hand_out().result(ResultStatus.FAILED_RETRY).hand_out().result(ResultStatus.FAILED_RETRY)
    told = samples(metrics)
    assert told["lucius_timeouts_total,kind=ack"] == 1
    assert told["lucius_timeouts_total,kind=lease"] == 1
    assert told["lucius_step_retries_total,reason=ACK_TIMEOUT,step_type=TYPE_1"] == 1
    assert told["lucius_step_retries_total,reason=RESULT,step_type=TYPE_1"] == 1
    assert told["lucius_step_failures_total,reason=LEASE_EXPIRED,step_type=TYPE_1"] == 1
    assert told["lucius_step_failures_total,reason=RESULT,step_type=TYPE_1"] == 1
    assert told["lucius_jobs_ended_total,request_type=OCR,state=FAILED_FINAL"] == 2


def test_a_timeout_counts_also_where_the_job_is_being_cancelled(metrics: Metrics) -> None:
    Play(metrics).hand_out().give(Cancel()).give(Tick(), after_ms=2_000)
    told = samples(metrics)
    assert told["lucius_timeouts_total,kind=lease"] == 1
    assert told["lucius_jobs_ended_total,request_type=OCR,state=CANCELLED"] == 1


def test_a_reply_that_proves_a_hand_out_counts_its_lag(metrics: Metrics) -> None:
    """The commit also begins the next step, whose row is then the record's."""
    Play(metrics, steps=2).result(after_ms=500)
    told = samples(metrics)
    assert told["lucius_dispatch_lag_seconds_sum,service=service-1"] == 0.5
    assert told["lucius_dispatch_lag_seconds_count,service=service-1"] == 1
    assert "lucius_dispatch_lag_seconds_count,service=service-2" not in told


def test_open_jobs_are_counted_by_state(metrics: Metrics) -> None:
    Play(metrics)
    Play(metrics).hand_out()
    told = samples(metrics)
    assert told["lucius_jobs_open,request_type=OCR,state=DISPATCHING"] == 1
    assert told["lucius_jobs_open,request_type=OCR,state=IN_PROGRESS"] == 1


def test_a_request_type_that_is_not_known_is_called_other() -> None:
    metrics = Metrics(lambda name: False)
    Play(metrics).hand_out().result()
    told = samples(metrics)
    assert told["lucius_jobs_ended_total,request_type=other,state=SUCCEEDED"] == 1
    assert not [name for name in told if "request_type=OCR" in name]


def _place(state: JobState) -> OpenPlace:
    return OpenPlace(state, "OCR", "acme", Wait(WaitsFor.ENGINE, "ocr", 1, False, False))


def _counted(jobs: OpenJobs) -> dict[tuple[str, str], float]:
    return {place: count for place, count in jobs.counts() if count}


def test_a_census_and_commits_count_each_job_once() -> None:
    jobs = OpenJobs()
    dispatching, in_progress = _place(JobState.DISPATCHING), _place(JobState.IN_PROGRESS)
    paused = _place(JobState.PAUSED)
    jobs.moved("a", dispatching, in_progress)  # there before us
    jobs.found("a", dispatching)  # the census read it before that commit
    jobs.found("b", paused)
    jobs.found("b", paused)  # two rows of one job
    jobs.found("c", in_progress)  # read after a commit that is only now heard of
    jobs.moved("c", dispatching, in_progress)
    jobs.moved("d", in_progress, None)  # ends before the census
    jobs.found("d", in_progress)
    assert _counted(jobs) == {("IN_PROGRESS", "OCR"): 2, ("PAUSED", "OCR"): 1}
    jobs.census_over()
    jobs.moved("b", paused, None)
    jobs.moved("a", in_progress, in_progress)
    jobs.moved("e", None, dispatching)
    assert _counted(jobs) == {("IN_PROGRESS", "OCR"): 2, ("DISPATCHING", "OCR"): 1}


def test_names_keep_their_first_label() -> None:
    known = {"a", "b"}
    names = BoundedLabels(3, lambda name: name in known)
    assert [names.label(name) for name in ("a", "b", "x", "c", "a")] == ["a", "b", OTHER, OTHER, "a"]
    known.add("x")
    assert names.label("x") == OTHER, "what was counted up as one must be counted down as the same"


def test_label_sets_are_bounded() -> None:
    tally = LabelledCounter("lucius_things", "Things", ("kind", "colour"), sets_max=10)
    for number in range(1_000):
        tally.add((f"kind {number}", "red"))
    assert len(tally.counts) == 11
    assert tally.counts[(OTHER, OTHER)] == 990


def test_tenants_are_the_hundred_largest_and_the_rest(metrics: Metrics) -> None:
    metrics.depths.tenants = {f"tenant-{number}": number for number in range(1, 301)} | {"other": 1_000}
    told = {name: value for name, value in samples(metrics).items() if name.startswith("lucius_inflight")}
    assert len(told) == 100
    assert told["lucius_inflight_jobs,tenant=tenant-300"] == 300
    assert sum(told.values()) == sum(range(1, 301)) + 1_000
    hidden = samples(metrics, tenants=False)
    assert [name for name in hidden if name.startswith("lucius_inflight")] == [
        "lucius_inflight_jobs,tenant=other"
    ]


def test_a_hostile_name_cannot_break_the_text(metrics: Metrics) -> None:
    name = 'a"} 1\nlucius_jobs_open{state="'
    metrics.depths.tenants = {name: 7}
    assert samples(metrics)[f"lucius_inflight_jobs,tenant={name}"] == 7


def test_buckets_are_cumulative() -> None:
    histogram = Histogram((1, 2, 4))
    for value in (0.5, 1, 1.5, 4, 9):
        histogram.observe(value)
    assert list(histogram.buckets()) == [("1.0", 2), ("2.0", 3), ("4.0", 4), ("+Inf", 5)]
    assert histogram.total == 16


def test_groups_are_shown_by_size(metrics: Metrics) -> None:
    metrics.follow_groups(lambda: {1: 10, 3: 5, 200: 1})
    told = samples(metrics)
    assert told["lucius_group_commit_callers_count"] == 16
    assert told["lucius_group_commit_callers_sum"] == 225
    assert told["lucius_group_commit_callers_bucket,le=4.0"] == 15


def test_two_deployments_in_one_process_do_not_share_figures(metrics: Metrics) -> None:
    Play(metrics)
    other = Metrics(lambda name: True)
    assert "lucius_jobs_created_total,request_type=OCR" not in samples(other)


def _commits(metrics: Metrics) -> Iterator[tuple[JobRecord | None, Decision]]:
    play = Play(metrics, steps=3)
    while not play.record.job.terminal:
        play.hand_out(after_ms=5)
        play.result(after_ms=5)
    yield from play.commits


def test_watching_a_commit_costs_little(metrics: Metrics) -> None:
    commits, rounds = list(_commits(metrics)), 300
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(rounds):
            for before, decision in commits:
                metrics.watch(before, decision.record, decision.events)
        best = min(best, (time.perf_counter() - began) / (rounds * len(commits)))
    assert best * 1e6 < WATCH_MICROSECONDS_MAX
