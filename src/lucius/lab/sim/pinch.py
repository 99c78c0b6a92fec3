"""What is scarce in a simulation: the bounds that a deployment or a protocol sets, small enough to bite.

In: a seed's chance and the house. Out: the habits, the policy and the manners of services that go with it. In
most seeds nothing is scarce. Whoever brings protocols of their own asks about those, and is not
pinched.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from lucius.core.model import StepPolicy
from lucius.intake.admission import Limits
from lucius.lab.sim.faults import Kind
from lucius.lab.sim.town import Topology
from lucius.lab.sim.workers import Behaviour

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


class Pinch(StrEnum):
    NONE = "nothing"
    SLA = "time until the SLA"
    SLOTS = "slots for jobs in flight"
    WINDOW = "places for directives without an ACK"
    DURATION = "time for an attempt that goes on"
    PUBLISHES = "tries to publish"


# How many of a hundred seeds each comes in. What goes on for long costs the simulation most, and comes least.
_SHARES: Mapping[Pinch, int] = {Pinch.SLA: 17, Pinch.SLOTS: 17, Pinch.DURATION: 6}
_SHARES_OF_BROKERS: Mapping[Pinch, int] = {
    Pinch.SLA: 10,
    Pinch.SLOTS: 10,
    Pinch.DURATION: 4,
    Pinch.WINDOW: 16,
    Pinch.PUBLISHES: 10,
}


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one simulation."""

    policy: StepPolicy = QUICK
    sla_ms: int = SLA_MS
    limits: Limits = Limits()
    window: int = WINDOW
    rates: Mapping[Kind, float] = {}  # of what goes wrong more often, so that the bound is reached
    behaviour: Behaviour = Behaviour()


_BOUNDS: Mapping[Pinch, Bounds] = {
    Pinch.NONE: Bounds(),
    Pinch.SLA: Bounds(sla_ms=9_000),
    Pinch.SLOTS: Bounds(limits=Limits(tenant_max=2, total_max=5, burst_max=1)),
    Pinch.WINDOW: Bounds(window=1),
    Pinch.DURATION: Bounds(
        policy=msgspec.structs.replace(QUICK, lease_ms=4_500, max_duration_ms=6_000),
        behaviour=Behaviour(work_seconds_max=7.5),
    ),
    Pinch.PUBLISHES: Bounds(
        policy=msgspec.structs.replace(QUICK, publish_attempts_max=2, backoff_publish_ms=(700, 1_900)),
        rates={Kind.BUS_UNAVAILABLE_BEFORE: 0.6},
    ),
}


def chosen_pinch(topology: Topology, chance: int) -> Pinch:
    drawn = chance % 100
    for pinch, share in (_SHARES_OF_BROKERS if topology is Topology.BROKER else _SHARES).items():
        drawn -= share
        if drawn < 0:
            return pinch
    return Pinch.NONE


def bounds_of(pinch: Pinch) -> Bounds:
    return _BOUNDS[pinch]
