"""Looks at places and puts them right: look, make and change, look again.

In: places with what each shall hold. Out: what was done, and what is still missing or different, with the
reason. Only what a second look shows counts as done.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from lucius.provision.plan import Drift, Resource, ResourceKind, compare


class AccessFailed(Exception):
    """A place cannot be reached, or does not let us look. The text holds no secret."""


class ActionFailed(msgspec.Struct, frozen=True, kw_only=True):
    """`closed`: the place was out of reach or did not allow it."""

    reason: str
    closed: bool = False


class ProvisionAction(msgspec.Struct, frozen=True, kw_only=True):
    kind: ResourceKind
    name: str
    deed: str  # "created", or which settings were changed


class ProvisionTask(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to put right. `settings`: those to change; empty: it is to be made."""

    thing: Resource
    settings: tuple[str, ...] = ()


class ProvisionTarget(Protocol):
    async def look(self, wanted: Sequence[Resource]) -> list[Resource]:
        """Those of them that are there, as they are. Raises `AccessFailed`."""
        ...

    async def work(self, jobs: Sequence[ProvisionTask]) -> Mapping[str, ActionFailed]:
        """Does them, topics first. What could not be done, by the thing's name."""
        ...


class ProvisionReport(msgspec.Struct, frozen=True, kw_only=True):
    done: tuple[ProvisionAction, ...] = ()
    findings: tuple[Drift, ...] = ()
    notes: tuple[str, ...] = ()
    """What the operator has to look after though nothing differs."""
    closed: bool = False
    """Whether some of it is left because the place did not allow it, or was out of reach."""


async def check(place: ProvisionTarget, wanted: Sequence[Resource]) -> ProvisionReport:
    return ProvisionReport(findings=tuple(compare(wanted, await place.look(wanted))))


async def apply(place: ProvisionTarget, wanted: Sequence[Resource]) -> ProvisionReport:
    before = compare(wanted, await place.look(wanted))
    jobs = jobs_of(wanted, before)
    if not jobs:
        return ProvisionReport(findings=tuple(before))
    not_done = await place.work(jobs)
    after = compare(wanted, await place.look(wanted))
    left = {(finding.kind, finding.name, finding.setting) for finding in after}
    gone = [each for each in before if (each.kind, each.name, each.setting) not in left]
    return ProvisionReport(
        done=tuple(_deeds(gone)),
        findings=tuple(_with_reason(finding, not_done.get(finding.name)) for finding in after),
        notes=tuple(
            f"{name}: {each.reason}"
            for name, each in not_done.items()
            # What was done though its answer was lost needs no operator.
            if not each.closed and not any(finding.name == name for finding in after)
        ),
        closed=any(each.closed for each in not_done.values()),
    )


def jobs_of(wanted: Sequence[Resource], findings: Sequence[Drift]) -> list[ProvisionTask]:
    """What may be done about it, in the order of what is wanted."""
    missing = {(each.kind, each.name) for each in findings if each.setting is None}
    jobs: list[ProvisionTask] = []
    for thing in wanted:
        if (thing.kind, thing.name) in missing:
            jobs.append(ProvisionTask(thing=thing))
            continue
        settings = tuple(
            each.setting
            for each in findings
            if (each.kind, each.name) == (thing.kind, thing.name) and each.setting and each.changeable
        )
        if settings:
            jobs.append(ProvisionTask(thing=thing, settings=settings))
    return jobs


def _deeds(gone: Sequence[Drift]) -> list[ProvisionAction]:
    settings: dict[tuple[ResourceKind, str], list[str]] = {}
    for finding in gone:
        settings.setdefault((finding.kind, finding.name), []).append(finding.setting or "")
    return [
        ProvisionAction(
            kind=kind, name=name, deed="created" if names == [""] else f"changed {', '.join(names)}"
        )
        for (kind, name), names in settings.items()
    ]


def _with_reason(finding: Drift, not_done: ActionFailed | None) -> Drift:
    if not_done is None or not finding.changeable:
        return finding
    return msgspec.structs.replace(finding, why_not=not_done.reason)
