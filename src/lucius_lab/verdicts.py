"""Whether timeouts and retries of protocols held; where not, which faults did it and what would have held.

In: a question, what its schedules came to, and a way to run more of them. Out: a verdict for each protocol. A
fault is tried alone, and so is each change of a setting; both with the seeds of the first run.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from lucius.core.inputs import ExpireReason
from lucius.core.model import ProtocolSpec, StepPolicy
from lucius_lab.questions import LabQuestion
from lucius_lab.sim.faults import FaultKind
from lucius_lab.sim.fleet import ScheduleTally
from lucius_lab.sim.workers import FINAL_FAILURE

PROBED_SEEDS_MAX: Final = 200
ATTEMPTS_MAX: Final = 20

# Told by these words. What is in none of them is what clients and operators do, and costs no job an attempt.
FAULTS: Final[Mapping[str, tuple[FaultKind, ...]]] = {
    "lost messages": (FaultKind.BUS_DROP, FaultKind.CALL_LOST, FaultKind.ANSWER_LOST),
    "late, repeated and reordered messages": (
        FaultKind.BUS_DUPLICATE,
        FaultKind.BUS_DELAY,
        FaultKind.BUS_REORDER,
        FaultKind.WORKER_TWICE,
    ),
    "a bus that is away": (FaultKind.BUS_UNAVAILABLE_BEFORE, FaultKind.BUS_UNAVAILABLE_AFTER),
    "a store that fails": (
        FaultKind.STORE_CONFLICT,
        FaultKind.STORE_UNAVAILABLE,
        FaultKind.STORE_TIMEOUT_BEFORE,
        FaultKind.STORE_TIMEOUT_AFTER,
        FaultKind.STORE_READ_ERROR,
    ),
    "processes that crash or stand still": (
        FaultKind.CRASH_BEFORE,
        FaultKind.CRASH_AFTER,
        FaultKind.PROCESS_FREEZE,
    ),
    "clocks that are wrong": (FaultKind.CLOCK_JUMP, FaultKind.CLOCK_SKEW, FaultKind.CLOCK_AHEAD),
    "workers that are silent or slow": (FaultKind.WORKER_SILENT, FaultKind.WORKER_SLOW),
    "work that fails and may be tried again": (FaultKind.WORKER_RETRYABLE,),
}


class FailedStep(msgspec.Struct, frozen=True, kw_only=True):
    """`code`: the job's error code."""

    step: str
    service: str
    code: str
    jobs: int


class BlamedFault(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the same schedules in which only this goes wrong."""

    fault: str
    failed: int
    jobs: int


class HoldingChange(msgspec.Struct, frozen=True, kw_only=True):
    """With this setting alone the protocol would have held."""

    step: str
    setting: str
    now: str
    instead: str


class ProtocolVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`succeeded`: a share of the jobs that ended, without those that were cancelled or that a service failed
    for good, which no setting changes."""

    protocol_id: str
    jobs: int
    failed: int
    succeeded: float
    held: bool
    failures: tuple[FailedStep, ...] = ()
    faults: tuple[BlamedFault, ...] = ()
    would_have_held: tuple[HoldingChange, ...] = ()


Simulate = Callable[[LabQuestion], ScheduleTally]


def verdicts(
    question: LabQuestion,
    rates: Mapping[FaultKind, float],
    tally: ScheduleTally,
    wanted: float,
    simulate: Simulate,
) -> list[ProtocolVerdict]:
    """`wanted`: the share of jobs that shall succeed. `simulate` runs a changed question."""
    found = [_verdict(protocol, tally, wanted) for protocol in question.protocols]
    if all(verdict.held for verdict in found):
        return found
    blamed = _blamed(question, rates, simulate)
    return [
        verdict
        if verdict.held
        else msgspec.structs.replace(
            verdict,
            faults=tuple(_faults_of(verdict.protocol_id, blamed)),
            would_have_held=tuple(_changes(question, verdict, wanted, simulate)),
        )
        for verdict in found
    ]


def _verdict(protocol: ProtocolSpec, tally: ScheduleTally, wanted: float) -> ProtocolVerdict:
    protocol_id = protocol.protocol_id
    failures = _failures(protocol_id, tally)
    jobs, failed = _counted(protocol_id, tally)
    succeeded = 1 - failed / jobs if jobs else 1.0
    return ProtocolVerdict(
        protocol_id=protocol_id,
        jobs=jobs,
        failed=failed,
        succeeded=round(succeeded, 6),
        held=succeeded >= wanted,
        failures=tuple(
            FailedStep(
                step=protocol.steps[index].step_type,
                service=protocol.steps[index].service,
                code=code,
                jobs=count,
            )
            for (index, code), count in failures.most_common()
        ),
    )


def _counted(protocol_id: str, tally: ScheduleTally) -> tuple[int, int]:
    """How many jobs say something about the settings, and how many of them failed."""
    failed = _failures(protocol_id, tally).total()
    return tally.ended_of[protocol_id, "SUCCEEDED"] + failed, failed


def _failures(protocol_id: str, tally: ScheduleTally) -> Counter[tuple[int, str]]:
    return Counter(
        {
            (index, code): count
            for (named, index, code), count in tally.failed_at.items()
            if named == protocol_id and code != FINAL_FAILURE
        }
    )


def _blamed(
    question: LabQuestion, rates: Mapping[FaultKind, float], simulate: Simulate
) -> dict[str, ScheduleTally]:
    found: dict[str, ScheduleTally] = {}
    for words, kinds in FAULTS.items():
        alone = {kind: rates[kind] for kind in kinds if rates.get(kind, 0.0) > 0}
        if alone:
            asked = ",".join(f"{kind.value.replace(' ', '-')}={rate}" for kind, rate in alone.items())
            found[words] = simulate(msgspec.structs.replace(question, faults=asked))
    return found


def _faults_of(protocol_id: str, blamed: Mapping[str, ScheduleTally]) -> list[BlamedFault]:
    found = []
    for words, tally in blamed.items():
        jobs, failed = _counted(protocol_id, tally)
        found.append(BlamedFault(fault=words, failed=failed, jobs=jobs))
    return sorted(found, key=lambda each: -each.failed)


def _changes(
    question: LabQuestion, verdict: ProtocolVerdict, wanted: float, simulate: Simulate
) -> Iterator[HoldingChange]:
    """The least change of each setting of the step at which most jobs failed that makes the protocol hold."""
    (protocol,) = (each for each in question.protocols if each.protocol_id == verdict.protocol_id)
    worst = verdict.failures[0]
    for setting, policies in _candidates(_policy(protocol, worst), worst.code):
        for policy in policies:
            changed = _with_policy(protocol, worst, policy)
            asked = msgspec.structs.replace(question, protocols=(changed,))
            jobs, failed = _counted(protocol.protocol_id, simulate(asked))
            if jobs and 1 - failed / jobs >= wanted:
                now = _shown(setting, _policy(protocol, worst))
                yield HoldingChange(
                    step=worst.step, setting=setting, now=now, instead=_shown(setting, policy)
                )
                break


def _candidates(policy: StepPolicy, code: str) -> list[tuple[str, Sequence[StepPolicy]]]:
    attempts = [
        msgspec.structs.replace(policy, max_attempts=count)
        for count in (policy.max_attempts + 1, *range(policy.max_attempts + 2, ATTEMPTS_MAX + 1, 3))
    ]
    found: list[tuple[str, Sequence[StepPolicy]]] = [("max_attempts", attempts)]
    if code == ExpireReason.ACK_TIMEOUT:
        found.append(("ack_timeout", _longer(policy, "ack_timeout_ms")))
    if code == ExpireReason.LEASE_EXPIRED:
        found += [
            ("lease", _longer(policy, "lease_ms")),
            ("max_duration", _longer(policy, "max_duration_ms")),
        ]
    return found


def _longer(policy: StepPolicy, name: str) -> list[StepPolicy]:
    found = []
    for factor in (2, 4, 8):
        span = factor * getattr(policy, name)
        longest = max(policy.max_duration_ms, span)  # which is not shorter than the lease
        found.append(msgspec.structs.replace(policy, **{"max_duration_ms": longest, name: span}))
    return found


def _policy(protocol: ProtocolSpec, failed: FailedStep) -> StepPolicy:
    return next(step.policy for step in protocol.steps if step.step_type == failed.step)


def _with_policy(protocol: ProtocolSpec, failed: FailedStep, policy: StepPolicy) -> ProtocolSpec:
    steps = tuple(
        msgspec.structs.replace(step, policy=policy) if step.step_type == failed.step else step
        for step in protocol.steps
    )
    return msgspec.structs.replace(protocol, steps=steps)


def _shown(setting: str, policy: StepPolicy) -> str:
    """As it is written in a protocol document."""
    if setting == "max_attempts":
        return str(policy.max_attempts)
    ms: int = getattr(policy, f"{setting}_ms")
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


def verdict_lines(found: Sequence[ProtocolVerdict], wanted: float) -> Iterator[str]:
    for verdict in found:
        name, share = verdict.protocol_id, f"{_share(verdict.succeeded)} of {verdict.jobs:,} jobs succeeded"
        if verdict.held:
            yield f"{name} held: {share}."
            continue
        yield f"{name} did NOT hold: {share}, {_share(wanted)} wanted."
        for each in verdict.failures:
            where = f"{each.step} ({each.service})"
            yield f"  at {where}: {each.jobs:,} failed with {each.code}, all attempts used"
        blamed = [each for each in verdict.faults if each.failed]
        for fault in blamed:
            yield f"  under {fault.fault} alone: {fault.failed:,} of {fault.jobs:,} failed"
        if verdict.faults and not blamed:
            yield "  no fault alone made a job fail: it takes several together"
        for change in verdict.would_have_held:
            setting = f"{change.setting}: {change.instead}"
            yield f"  would have held: {setting} for {change.step} (now {change.now})"
        if not verdict.would_have_held:
            yield "  no single setting that was tried would have held: change several, or the service"


def _share(share: float) -> str:
    return "all" if share == 1 else f"{100 * share:.4g} %"
