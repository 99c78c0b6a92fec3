"""Priority: which of a tenant's directives leave first.

A level is worth a span of waiting. A directive stands in its tenant's order as if it had begun to wait so
much earlier for each level above the usual one, and so much later for each below. That is its rank: it never
changes, so nothing is written again as directives grow older, and none starves: those that come more than
nine spans later stand behind it whatever their priority is.
"""

from typing import Final

from lucius.core.model import PRIORITY_USUAL, Job, Outbox

PRIORITY_LEAST: Final = 0
PRIORITY_MOST: Final = 9
LEVEL_MS: Final = 300_000


def rank_ms(job: Job, outbox: Outbox) -> int:
    """What a directive is ordered by among those of its tenant, as a time. One that the bus refused stands
    behind all that are ready, so that no directive waits for its backoff."""
    level = PRIORITY_LEAST if outbox.failures else job.priority
    return max(0, outbox.due_at_ms + (PRIORITY_USUAL - level) * LEVEL_MS)
