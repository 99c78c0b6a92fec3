"""Whether directives of one service and lane leave fairly between the tenants that wait there.

In: each job before and after a commit of the one process that hands out, and each life of it that begins.
Out: nothing, or a `Violation`. Of two tenants that both have directives waiting all the time, neither gets
more than `APART_MAX` ahead of the other: a turn is one directive here, as no worker asks for more than four
at once; the rest is for what several workers are handed at the same time. A hand-out that fails has had its
turn: where the store fails, nothing is promised. Nor is it where commits may not span partitions, for there a
crash leaves jobs behind whose rows are put right later.
"""

from typing import Final

from lucius.core.decide import is_dispatchable
from lucius.core.model import JobRecord
from lucius_lab.sim.watch import Violation

APART_MAX: Final = 6

_Lane = tuple[str, int]


class TurnInvariants:
    def __init__(self) -> None:
        self._places: dict[
            str, tuple[_Lane, str, str]
        ] = {}  # by job that waits: where, its tenant, its lease
        self._waiting: dict[_Lane, dict[str, int]] = {}  # how many of each tenant
        # How far the first is ahead of the second, and the least and the most that this was.
        self._apart: dict[tuple[_Lane, str, str], tuple[int, int, int]] = {}

    def started(self) -> None:
        """Whose turn it was is forgotten."""
        self._apart.clear()

    def changed(self, after: JobRecord) -> None:
        job, outbox, step = after.job, after.outbox, after.current
        known = self._places.pop(job.job_id, None)
        if known is not None:
            lane, tenant, lease_id = known
            self._count(lane, tenant, -1)
            if step is not None and step.lease_id == lease_id and after.is_under_way(step):
                self._left(lane, tenant, job.job_id)
        if outbox is not None and is_dispatchable(after):
            place = (outbox.service, outbox.lane), job.tenant_norm, outbox.lease_id
            self._places[job.job_id] = place
            self._count(place[0], job.tenant_norm, 1)
        if known is not None and not self._waiting[known[0]].get(known[1]):
            self._forget(known[0], known[1])

    def _count(self, lane: _Lane, tenant: str, by: int) -> None:
        waiting = self._waiting.setdefault(lane, {})
        waiting[tenant] = waiting.get(tenant, 0) + by

    def _forget(self, lane: _Lane, tenant: str) -> None:
        """A tenant for which nothing waits has no share to make up for."""
        for key in [key for key in self._apart if key[0] == lane and tenant in key[1:]]:
            del self._apart[key]

    def _left(self, lane: _Lane, tenant: str, job_id: str) -> None:
        waiting = self._waiting[lane]
        if not waiting[tenant]:
            return
        for other, count in waiting.items():
            if other == tenant or not count:
                continue
            first, second = sorted((tenant, other))
            now, least, most = self._apart.get((lane, first, second), (0, 0, 0))
            now += 1 if tenant == first else -1
            least, most = min(least, now), max(most, now)
            self._apart[lane, first, second] = now, least, most
            if most - least > APART_MAX:
                text = f"{first} and {second} went {most - least} directives apart at {lane[0]}, both waiting"
                raise Violation("I20", job_id, text)
