"""What shall be there, what is there, and how the two differ: as data.

A thing has a kind, a name and settings. Azure does not distinguish capitals from small letters in names, so
neither does the comparison. What cannot be changed in place has to be made anew by an operator who knows that
it is empty.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from lucius.bus.service_bus.names import SERVICE_PROPERTY, subscription_name
from lucius.core.routing import LANES, reply_topic, topic
from lucius.ledger.azure_tables.names import table_to_azure
from lucius.ledger.names import Tables

# The names of settings, as they are shown.
STATUS: Final = "status"
DUPLICATE_DETECTION: Final = "duplicate_detection"
DUPLICATE_WINDOW: Final = "duplicate_window_seconds"
LOCK: Final = "lock_seconds"
DELIVERIES: Final = "deliveries_max"
DEAD_LETTER_EXPIRED: Final = "dead_letter_expired"
SESSIONS: Final = "sessions"
IDLE_DELETE: Final = "deleted_when_idle"
FORWARDS_TO: Final = "forwards_to"
TAKES: Final = "takes"

ACTIVE: Final = "Active"
# What may be chosen about topics and subscriptions. The outer limits are those of Service Bus.
LOCK_SECONDS: Final = 30
LOCK_SECONDS_MIN: Final = 5
LOCK_SECONDS_MAX: Final = 300
DUPLICATE_WINDOW_SECONDS: Final = 600
DUPLICATE_WINDOW_SECONDS_MIN: Final = 20
DUPLICATE_WINDOW_SECONDS_MAX: Final = 604_800
DELIVERIES_MAX: Final = 10

NEVER: Final = "never"
NOWHERE: Final = "nowhere"
EVERYTHING: Final = "everything"
# Service Bus decides these when a thing is made.
FIXED: Final = frozenset({DUPLICATE_DETECTION, SESSIONS})

Setting = bool | int | str


class ResourceKind(StrEnum):
    TABLE = "table"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """`name` of a subscription: its topic, a slash, its own. `fixed`: settings that cannot be changed here,
    beside those that never can."""

    kind: ResourceKind
    name: str
    settings: dict[str, Setting] = {}
    fixed: frozenset[str] = frozenset()


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """`setting` None: the thing is not there at all. `why_not`: what kept it from being put right."""

    kind: ResourceKind
    name: str
    setting: str | None = None
    has: Setting | None = None
    wants: Setting | None = None
    changeable: bool = True
    why_not: str | None = None


class BusPlan(msgspec.Struct, frozen=True, kw_only=True):
    services: tuple[str, ...]
    reply_subscription: str
    lock_seconds: int = LOCK_SECONDS
    deliveries_max: int = DELIVERIES_MAX
    duplicate_window_seconds: int = DUPLICATE_WINDOW_SECONDS
    sessions: bool = False


def wanted_tables(prefix: str, tables: Tables) -> list[Resource]:
    """Those of both layouts: which one is used is said elsewhere, and an empty table costs nothing."""
    return [
        Resource(kind=ResourceKind.TABLE, name=table_to_azure(prefix, name))
        for name in msgspec.structs.astuple(tables)
    ]


def wanted_bus(plan: BusPlan) -> list[Resource]:
    """Topics before their subscriptions."""
    topics = [_topic(name, plan) for name in (*map(topic, range(LANES)), *map(reply_topic, range(LANES)))]
    services = dict.fromkeys(subscription_name(service) for service in plan.services)
    to_services = [
        _subscription(topic(lane), name, service_filter(name), plan)
        for lane in range(LANES)
        for name in services
    ]
    to_replies = [
        _subscription(reply_topic(lane), plan.reply_subscription, EVERYTHING, plan) for lane in range(LANES)
    ]
    return [*topics, *to_services, *to_replies]


def service_filter(name: str) -> str:
    """How a filter for one addressee is written here."""
    return f"{SERVICE_PROPERTY} = {name}"


def addressee(takes: str) -> str | None:
    """Whom a filter written like that is for; None: for everything."""
    return None if takes == EVERYTHING else takes.removeprefix(f"{SERVICE_PROPERTY} = ")


def compare(wanted: Sequence[Resource], found: Iterable[Resource]) -> list[Drift]:
    there = {_key(thing): thing for thing in found}
    findings: list[Drift] = []
    for thing in wanted:
        other = there.get(_key(thing))
        if other is None:
            findings.append(Drift(kind=thing.kind, name=thing.name))
        else:
            findings += _differences(thing, other)
    return findings


def _differences(wanted: Resource, found: Resource) -> list[Drift]:
    differing = [name for name, value in wanted.settings.items() if found.settings.get(name) != value]
    if DUPLICATE_DETECTION in differing and DUPLICATE_WINDOW in differing:
        differing.remove(DUPLICATE_WINDOW)  # where duplicates are not looked for there is no window
    return [
        Drift(
            kind=wanted.kind,
            name=wanted.name,
            setting=name,
            has=found.settings.get(name),
            wants=wanted.settings[name],
            changeable=name not in FIXED and name not in found.fixed,
        )
        for name in differing
    ]


def _key(thing: Resource) -> tuple[ResourceKind, str]:
    return thing.kind, thing.name.lower()


def _topic(name: str, plan: BusPlan) -> Resource:
    return Resource(
        kind=ResourceKind.TOPIC,
        name=name,
        settings={
            STATUS: ACTIVE,
            DUPLICATE_DETECTION: True,
            DUPLICATE_WINDOW: plan.duplicate_window_seconds,
            IDLE_DELETE: NEVER,
        },
    )


def _subscription(topic_name: str, name: str, takes: str, plan: BusPlan) -> Resource:
    return Resource(
        kind=ResourceKind.SUBSCRIPTION,
        name=f"{topic_name}/{name}",
        settings={
            STATUS: ACTIVE,
            LOCK: plan.lock_seconds,
            DELIVERIES: plan.deliveries_max,
            DEAD_LETTER_EXPIRED: True,
            SESSIONS: plan.sessions,
            IDLE_DELETE: NEVER,
            FORWARDS_TO: NOWHERE,
            TAKES: takes,
        },
    )
