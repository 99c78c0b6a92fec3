"""What is scarce in a simulation: the bounds that a deployment or a protocol sets, small enough to bite.

In: a seed's random source and the deployment. Out: the client habits, the policy and the service behaviour
that go with it. In most seeds nothing is scarce. A run with protocols of its own asks about those, and gets
no constraint.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from lucius.core.flow import BreakerRule, Rate, ServiceLimits
from lucius.core.model import StepPolicy
from lucius.jobs.admission import InFlightLimits
from lucius_lab.sim.cluster import ClusterTopology
from lucius_lab.sim.faults import FaultKind
from lucius_lab.sim.workers import Behaviour

SLA_MS: Final = 604_800_000
WINDOW: Final = 4

# Backoffs that all differ, so that one taken for another is seen.
QUICK: Final = StepPolicy(
    max_attempts=4,
    ack_timeout_ms=3_000,
    lease_ms=8_000,
    max_duration_ms=120_000,
    backoff_publish_ms=(300, 2_500),
    backoff_ack_ms=(600, 1_800),
    backoff_result_ms=(500, 2_000),
    dispatch_timeout_ms=120_000,
)


class Constraint(StrEnum):
    NONE = "nothing"
    SLA = "time until the SLA"
    SLOTS = "slots for jobs in flight"
    WINDOW = "places for directives without an ACK"
    DURATION = "time for an attempt that goes on"
    PUBLISHES = "tries to publish"
    PLACES = "places at a service"
    TURNS = "turns in a lane"


# How many of a hundred seeds each comes in. What goes on for long costs the simulation most, and comes least.
_SHARES: Mapping[Constraint, int] = {
    Constraint.SLA: 16,
    Constraint.SLOTS: 15,
    Constraint.DURATION: 6,
    Constraint.PLACES: 9,
    Constraint.TURNS: 3,
}
_SHARES_OF_BROKERS: Mapping[Constraint, int] = {
    Constraint.SLA: 10,
    Constraint.SLOTS: 10,
    Constraint.DURATION: 4,
    Constraint.WINDOW: 16,
    Constraint.PUBLISHES: 10,
    Constraint.PLACES: 9,
}


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one simulation."""

    policy: StepPolicy = QUICK
    sla_ms: int = SLA_MS
    limits: InFlightLimits = InFlightLimits()
    window: int = WINDOW
    rates: Mapping[FaultKind, float] = {}  # of what goes wrong more often, so that the bound is reached
    behaviour: Behaviour = Behaviour()
    services: Mapping[str, ServiceLimits] = {}
    one_lane: bool = False  # all tenants share one, and many jobs come at once


_BOUNDS: Mapping[Constraint, Bounds] = {
    Constraint.NONE: Bounds(),
    Constraint.SLA: Bounds(sla_ms=9_000),
    Constraint.SLOTS: Bounds(limits=InFlightLimits(tenant_max=2, total_max=5, burst_max=1)),
    Constraint.WINDOW: Bounds(window=1),
    Constraint.DURATION: Bounds(
        policy=msgspec.structs.replace(QUICK, lease_ms=4_500, max_duration_ms=6_000),
        behaviour=Behaviour(work_seconds_max=7.5),
    ),
    Constraint.PUBLISHES: Bounds(
        policy=msgspec.structs.replace(QUICK, publish_attempts_max=2, backoff_publish_ms=(700, 1_900)),
        rates={FaultKind.BUS_UNAVAILABLE_BEFORE: 0.6},
    ),
    Constraint.TURNS: Bounds(
        one_lane=True,
        # A hand-out that fails has had its turn; what a process does not know of, or cannot read, has none.
        rates=dict.fromkeys(
            (
                FaultKind.STORE_CONFLICT,
                FaultKind.STORE_UNAVAILABLE,
                FaultKind.STORE_TIMEOUT_BEFORE,
                FaultKind.STORE_TIMEOUT_AFTER,
                FaultKind.STORE_READ_ERROR,
                FaultKind.ROW_UNREADABLE,
            ),
            0.0,
        ),
    ),
    Constraint.PLACES: Bounds(
        behaviour=Behaviour(retryable_rate=0.4),
        services={
            "svc1": ServiceLimits(concurrency=2, tenant_concurrency=1),
            "*": ServiceLimits(
                concurrency=4,
                rate=Rate(tokens=2, per_ms=1_000, burst=1),
                breaker=BreakerRule(failures_max=1, probe_every_ms=700),
            ),
        },
    ),
}


def chosen_constraint(topology: ClusterTopology, chance: int) -> Constraint:
    drawn = chance % 100
    for constraint, lane_leases in (
        _SHARES_OF_BROKERS if topology is ClusterTopology.BROKER else _SHARES
    ).items():
        drawn -= lane_leases
        if drawn < 0:
            return constraint
    return Constraint.NONE


def bounds_of(constraint: Constraint) -> Bounds:
    return _BOUNDS[constraint]
