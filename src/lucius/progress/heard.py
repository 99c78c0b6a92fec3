"""Whether the answer to an attempt may have come, though nobody has read it: then its deadline waits.

Over a bus (`Heard`): how far the replies were read, so that none is given up whose answer lies there unread.

In: from whoever reads the lanes, when one is behind and when it has caught up, and whether the ledger can
take what was read. Out: whether a deadline waits.
A process that was away finds deadlines that passed meanwhile, and answers that came in time: the answers go
first. They have `PATIENCE_MS` for it; a bus that stays away for longer does not stop the clock. While the
ledger is away no answer gets through, however long it has been there: their time begins when it is back.

Over HTTP alone (`JustOpened`): answers that came to a closed door come again once it is open.
"""

from collections.abc import Callable
from typing import Protocol

from lucius.core.due import deadline_of
from lucius.core.inputs import ExpireReason
from lucius.core.model import JobRecord
from lucius.core.routing import LANES

PATIENCE_MS = 10_000
AGAIN_IN_MS = 250
# Services of the sdk send a RESULT again every five seconds, unless they were told to wait for longer.
OPENING_MS = 6_000


class Patience(Protocol):
    def puts_off(self, record: JobRecord, now_ms: int) -> bool:
        """Whether the time of the present attempt is over, and yet its answer may have come."""
        ...


class JustOpened:
    """Of a process that answers are sent to over HTTP: those whose time ran out while it was not there can be
    sent again for a moment. A deadline that passes before its eyes is nobody's to put off."""

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        self._opened_at_ms = now_ms()

    def puts_off(self, record: JobRecord, now_ms: int) -> bool:
        if now_ms >= self._opened_at_ms + OPENING_MS:
            return False
        deadline = deadline_of(record)
        return (
            deadline is not None
            and deadline.at_ms <= min(now_ms, self._opened_at_ms)
            and deadline.reason is not ExpireReason.PUBLISH_FAILED
        )


class Heard:
    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        # Since when, and until when at least.
        self._behind: dict[int, tuple[int, int]] = dict.fromkeys(range(LANES), (now_ms(), 0))
        self._ledger_away = False
        self._read_at_ms = dict.fromkeys(range(LANES), now_ms())  # the deadlines of each lane

    @property
    def complete(self) -> bool:
        """No lane is behind."""
        return not self._behind

    def is_behind(self, lane: int) -> bool:
        return lane in self._behind

    def behind(self, lane: int, *, for_ms: int = 0) -> None:
        """There may be replies that were not read; `for_ms`: some come again only after that time."""
        now_ms = self._now_ms()
        since_ms, until_ms = self._behind.get(lane, (now_ms, 0))
        self._behind[lane] = (since_ms, max(until_ms, now_ms + for_ms))

    def caught_up(self, lane: int) -> None:
        """The lane was looked at, and nothing was there."""
        if lane in self._behind and self._now_ms() >= self._behind[lane][1]:
            del self._behind[lane]

    def still_read(self, lane: int) -> None:
        """The lane was looked at, and something was there. One that never falls silent has caught up once its
        time is over: what fails later has a time of its own."""
        since_ms, until_ms = self._behind.get(lane, (0, 0))
        now_ms = self._now_ms()
        if lane in self._behind and now_ms >= max(since_ms + PATIENCE_MS, until_ms) and not self._ledger_away:
            del self._behind[lane]

    def ledger_away(self) -> None:
        """Nothing that was read can be written down. Whoever says so says also when it is back."""
        self._ledger_away = True

    def ledger_back(self) -> None:
        if self._ledger_away:
            self._ledger_away = False
            for lane, (_, until_ms) in self._behind.items():
                self._behind[lane] = (self._now_ms(), until_ms)

    def ledger_read(self, lane: int) -> None:
        """The deadlines of this lane could be read."""
        self._read_at_ms[lane] = self._now_ms()

    def ledger_failed(self, lane: int) -> None:
        """Since they were last read no deadline of this lane could be met, nor did its answers' time run."""
        now_ms = self._now_ms()
        stood_ms, self._read_at_ms[lane] = now_ms - self._read_at_ms[lane], now_ms
        if lane in self._behind:
            since_ms, until_ms = self._behind[lane]
            self._behind[lane] = (min(now_ms, since_ms + stood_ms), until_ms)

    def puts_off(self, record: JobRecord, now_ms: int) -> bool:
        if record.job.lane not in self._behind:
            return False
        since_ms, _ = self._behind[record.job.lane]
        if now_ms - since_ms >= PATIENCE_MS and not self._ledger_away:
            return False
        deadline = deadline_of(record)
        return (
            deadline is not None
            and deadline.at_ms <= now_ms
            and deadline.reason is not ExpireReason.PUBLISH_FAILED
        )
