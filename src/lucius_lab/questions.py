"""What users ask the lab: their protocols, what shall go wrong, how long work takes; as a shape to simulate.

In: texts from a command line, protocols from a registry. Out: a `SimShape`, or what is wrong with the
question.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lucius.core.durations import parse_duration_ms
from lucius.core.model import ProtocolSpec, StepPolicy
from lucius.core.refusal import Code, Refused
from lucius_lab.sim.cluster import ClusterTopology
from lucius_lab.sim.constraints import Constraint
from lucius_lab.sim.faults import PRESETS, FaultKind
from lucius_lab.sim.run import SimShape, default_protocol
from lucius_lab.sim.workers import Behaviour

RATE_MAX: Final = 0.9
QUIET_SECONDS_MAX: Final = 6 * 3_600.0
QUIET_SECONDS_SPARE: Final = 60.0
# Beyond it a schedule is mostly looks at clocks, and takes minutes.
WORK_SECONDS_MAX: Final = 86_400.0
WORK: Final = Behaviour()

ALIASES: Final[Mapping[str, tuple[FaultKind, ...]]] = {
    "loss": (FaultKind.BUS_DROP, FaultKind.CALL_LOST, FaultKind.ANSWER_LOST),
    "drop": (FaultKind.BUS_DROP,),
    "duplicate": (FaultKind.BUS_DUPLICATE,),
    "delay": (FaultKind.BUS_DELAY,),
    "reorder": (FaultKind.BUS_REORDER,),
    "crash": (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER),
    "failures": (FaultKind.WORKER_RETRYABLE,),
}


class LabQuestion(msgspec.Struct, frozen=True, kw_only=True):
    jobs: int = 8
    faults: str = "default"
    work: str | None = None
    topology: ClusterTopology | None = None
    protocols: tuple[ProtocolSpec, ...] = ()


def shape_of(question: LabQuestion) -> SimShape | Refused:
    rates = parse_rates(question.faults)
    if isinstance(rates, Refused):
        return rates
    work = parse_work(question.work)
    if isinstance(work, Refused):
        return work
    # Who names faults asks what those alone do.
    constraint = None if question.faults.strip().lower() in PRESETS else Constraint.NONE
    shape = SimShape(jobs=question.jobs, rates=rates, topology=question.topology, constraint=constraint)
    if question.protocols:
        protocols = tuple(_without_schemas(protocol) for protocol in question.protocols)
    elif question.work is None:
        return shape
    else:
        protocols = (_own_protocol(shape.steps, work),)
    quiet_at = min(QUIET_SECONDS_MAX, max(_longest_seconds(protocol, work) for protocol in protocols))
    # Should all of them queue up for one service, each with every attempt it has.
    rest = 2 * (question.jobs + 1) * max(_rest_seconds(protocol, work) for protocol in protocols)
    return msgspec.structs.replace(
        shape,
        protocols=protocols,
        behaviours={step.service: work for protocol in protocols for step in protocol.steps},
        quiet_at_seconds=shape.submit_seconds + quiet_at + QUIET_SECONDS_SPARE,
        rest_seconds_max=max(2 * QUIET_SECONDS_MAX, rest),
        steps_max=20_000_000,
    )


def parse_rates(text: str) -> dict[FaultKind, float] | Refused:
    """A preset's name, or `name=20%` pairs with commas: then nothing else goes wrong."""
    preset = PRESETS.get(text.strip().lower())
    if preset is not None:
        return dict(preset)
    rates: dict[FaultKind, float] = {}
    for pair in text.split(","):
        name, equals, value = pair.strip().partition("=")
        kinds = _kinds(name.strip().lower())
        rate = _rate(value.strip())
        if not equals or not kinds:
            known = ", ".join((*ALIASES, *(kind.value.replace(" ", "-") for kind in FaultKind)))
            presets = ", ".join(PRESETS)
            return _refused(f"{pair.strip()!r} is neither a preset ({presets}) nor NAME=RATE; names: {known}")
        if rate is None:
            return _refused(f"{pair.strip()!r}: a rate is a share such as 20% or 0.2, at most {RATE_MAX:.0%}")
        rates |= dict.fromkeys(kinds, rate)
    return rates


def parse_share(text: str) -> float | None:
    """`99.9%` or `0.999`; None for what is no share above nothing."""
    percent = text.strip().endswith("%")
    try:
        share = float(text.strip().removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        return None
    return share if 0 < share <= 1 else None


def parse_work(text: str | None) -> Behaviour | Refused:
    """`2s` or `2s-30s`: how long a simulated service takes for a step."""
    if text is None:
        return WORK
    least, dash, most = text.partition("-")
    least_ms, most_ms = parse_duration_ms(least), parse_duration_ms(most if dash else least)
    if least_ms is None or most_ms is None or least_ms > most_ms or most_ms > 1_000 * WORK_SECONDS_MAX:
        wanted = "a span such as 2s, or from one to another: 500ms-30s; 1d at most"
        return _refused(f"{text!r}: work takes {wanted}")
    return Behaviour(work_seconds_min=least_ms / 1000, work_seconds_max=most_ms / 1000)


def find_protocols(
    known: Sequence[ProtocolSpec], wanted: Sequence[str]
) -> tuple[ProtocolSpec, ...] | Refused:
    """The protocols that these request types pick; all of them, each once, if none is named."""
    if not wanted:
        return tuple(known)
    found: dict[str, ProtocolSpec] = {}
    for name in wanted:
        protocol = next((each for each in known if name in each.request_types), None)
        if protocol is None:
            names = ", ".join(sorted(name for each in known for name in each.request_types))
            return _refused(f"no protocol has the request type {name!r}; known: {names}")
        # The simulation asks for a protocol by the first of its names.
        found[protocol.protocol_id] = protocol
    return tuple(found.values())


def _kinds(name: str) -> tuple[FaultKind, ...]:
    return ALIASES.get(name) or tuple(kind for kind in FaultKind if kind.value.replace(" ", "-") == name)


def _rate(text: str) -> float | None:
    percent = text.endswith("%")
    try:
        rate = float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        return None
    return rate if 0 <= rate <= RATE_MAX else None


def _without_schemas(protocol: ProtocolSpec) -> ProtocolSpec:
    """Simulated services open no payload, so the commands need not have one that a schema accepts."""
    steps = tuple(msgspec.structs.replace(step, payload_schema={}) for step in protocol.steps)
    return msgspec.structs.replace(protocol, steps=steps)


def _own_protocol(steps: int, work: Behaviour) -> ProtocolSpec:
    """The lab's own, whose attempts are given the time that this work takes."""
    work_ms = round(1_000 * work.work_seconds_max)
    protocol = default_protocol(steps)
    fitting = tuple(
        msgspec.structs.replace(
            step,
            policy=msgspec.structs.replace(
                step.policy,
                lease_ms=max(step.policy.lease_ms, work_ms // 10),
                max_duration_ms=max(step.policy.max_duration_ms, 4 * work_ms),
            ),
        )
        for step in protocol.steps
    )
    return msgspec.structs.replace(protocol, steps=fitting)


def _longest_seconds(protocol: ProtocolSpec, work: Behaviour) -> float:
    """How long a job may take if every attempt but the last is lost: until then, things go on going wrong."""
    return sum(_step_seconds(step.policy, work) for step in protocol.steps)


def _step_seconds(policy: StepPolicy, work: Behaviour) -> float:
    lost = policy.max_attempts - 1
    return lost * _between_ms(policy) / 1000 + work.work_seconds_max


def _rest_seconds(protocol: ProtocolSpec, work: Behaviour) -> float:
    """How long a job may take from its beginning, if each attempt runs until its time is over."""
    return sum(_attempts_seconds(step.policy, work) for step in protocol.steps)


def _attempts_seconds(policy: StepPolicy, work: Behaviour) -> float:
    under_way_ms = max(policy.lease_ms, min(policy.max_duration_ms, round(1_000 * work.work_seconds_max)))
    return policy.max_attempts * (_between_ms(policy) + under_way_ms) / 1_000


def _between_ms(policy: StepPolicy) -> int:
    """From the beginning of an attempt that is lost to the next one, at the longest."""
    waits_ms = max(policy.backoff_ack_ms + policy.backoff_result_ms, default=0)
    return policy.ack_timeout_ms + policy.lease_ms + waits_ms


def _refused(text: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, text)
