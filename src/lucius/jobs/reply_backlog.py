"""Whether the answer to an attempt may have come, though it was not read yet: then its deadline waits.

Over a bus (`ReplyBacklog`): how far the replies were read, so that none is given up whose answer lies there
unread.

In: from the readers of the lanes, when one is behind and when it has caught up, and whether the ledger can
take what was read. Out: whether a deadline waits.
A process that was away finds deadlines that passed meanwhile, and answers that came in time: the answers go
first. They have `ANSWER_GRACE_MS` for it; a bus that stays away for longer does not stop the clock. While the
ledger is away no answer gets through, however long it has been there: their time begins when it is back.

Over HTTP alone (`StartupGrace`): answers that came to a closed door come again once it is open.

A process that stood still (it was stopped, or the machine slept) was away as well, and does not know it: the
first to notice is the part that looks when this process was to run again (`StandstillClock`). Answers came
meanwhile to its sockets and to the broker, and go first.
"""

from collections.abc import Callable
from typing import Protocol

import structlog

from lucius.core.due import deadline_of
from lucius.core.inputs import ExpireReason
from lucius.core.model import JobRecord
from lucius.core.routing import LANES

ANSWER_GRACE_MS = 10_000
AGAIN_IN_MS = 250
# Services of the sdk send a RESULT again every five seconds, unless they were told to wait for longer.
OPENING_MS = 6_000
SHUT_MS_MAX = 600_000  # for so long they try
BACKLOG_MS = 2_000  # what came to the sockets of a process that stood still is read in less
STOOD_STILL_MS = 1_000  # longer than any callback takes: a process that is so late did not run
STOOD_STILL_EVERY_MS = 30_000
FROZEN_MS = 4_000  # nothing but a standstill makes a process so late


log = structlog.get_logger("lucius.replies")


class DeadlineGrace(Protocol):
    @property
    def beat(self) -> "StandstillClock":
        """Is told when this process runs, and what took it too long."""
        ...

    def puts_off(self, record: JobRecord, now_ms: int) -> bool:
        """Whether the time of the present attempt is over, and yet its answer may have come."""
        ...


class StandstillClock:
    """Notices that this process stood still: it said when it would run again, and that is long past.

    One that is a little late again and again is too slow rather than frozen: it is given time for answers
    once in `STOOD_STILL_EVERY_MS`, so that deadlines count at last.
    """

    def __init__(self, stood_still: Callable[[], None], *, now_ms: Callable[[], int]) -> None:
        self._stood_still = stood_still
        self._now_ms = now_ms
        self._began_ms = now_ms()
        self._runs_again_ms: int | None = None
        self._last_ms: int | None = None

    def ran(self, *, again_in_ms: float = 0) -> None:
        """It runs now, and will again within that time. The first time shows how long its start took: it
        heard no answer meanwhile."""
        if self._runs_again_ms is None:
            self._runs_again_ms = self._began_ms
        self.look()
        self._runs_again_ms = self._now_ms() + round(again_in_ms)

    def look(self) -> None:
        """To be called before a deadline counts."""
        if self._runs_again_ms is None:
            return
        now_ms = self._now_ms()
        late_ms = now_ms - self._runs_again_ms
        if late_ms <= STOOD_STILL_MS:
            return
        self._runs_again_ms = now_ms
        if late_ms >= FROZEN_MS or self._is_new(now_ms):
            log.warning("process_stood_still", seconds=round(late_ms / 1000, 1))
            self._give_time(now_ms)

    def committed(self, decided_ms: int) -> None:
        """What was decided then is committed only now: the times that it gave have run meanwhile, and the
        directive that it sends leaves only now. A store may be that slow all the time: so however late this
        is, it counts once in `STOOD_STILL_EVERY_MS`."""
        now_ms = self._now_ms()
        late_ms = now_ms - decided_ms
        if late_ms > STOOD_STILL_MS and self._is_new(now_ms):
            log.warning("commit_was_late", seconds=round(late_ms / 1000, 1))
            self._give_time(now_ms)

    def _is_new(self, now_ms: int) -> bool:
        return self._last_ms is None or now_ms - self._last_ms >= STOOD_STILL_EVERY_MS

    def _give_time(self, now_ms: int) -> None:
        self._last_ms = now_ms
        self._stood_still()


class StartupGrace:
    """Of a process that answers are sent to over HTTP: those whose time ran out while it was not there can be
    sent again for a moment. A deadline that passes before its eyes is put off only for the moment
    in which it reads what came while it stood still."""

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._opened_at_ms = self._missed_until_ms = now_ms()
        self._shut_at_ms: int | None = None
        self.beat = StandstillClock(self._stood_still, now_ms=now_ms)

    def shut(self) -> None:
        """Answers come to other processes, and none of those is there."""
        if self._shut_at_ms is None:
            self._shut_at_ms = self._now_ms()
            log.warning("no_door_is_open")

    def opened(self) -> None:
        """One of those processes is there, as usual or again."""
        if self._shut_at_ms is not None:
            self._shut_at_ms = None
            self._stood_still()

    def _stood_still(self) -> None:
        self._opened_at_ms = self._now_ms()
        self._missed_until_ms = self._opened_at_ms + BACKLOG_MS

    def puts_off(self, record: JobRecord, now_ms: int) -> bool:
        self.beat.look()
        passed_ms = self._missed_until_ms
        if self._shut_at_ms is not None and now_ms < self._shut_at_ms + SHUT_MS_MAX:
            passed_ms = now_ms
        elif now_ms >= self._opened_at_ms + OPENING_MS:
            return False
        deadline = deadline_of(record)
        return (
            deadline is not None
            and deadline.at_ms <= min(now_ms, passed_ms)
            and deadline.reason is not ExpireReason.PUBLISH_FAILED
        )


class ReplyBacklog:
    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        # Since when, and until when at least.
        self._behind: dict[int, tuple[int, int]] = dict.fromkeys(range(LANES), (now_ms(), 0))
        self.beat = StandstillClock(self._stood_still, now_ms=now_ms)
        self._ledger_away = False
        self._read_at_ms = dict.fromkeys(range(LANES), now_ms())  # the deadlines of each lane

    def _stood_still(self) -> None:
        """Nothing was read meanwhile, and what could not be sent to us comes again: every lane is behind,
        also one whose wait for messages ran out meanwhile."""
        now_ms = self._now_ms()
        self._behind = dict.fromkeys(range(LANES), (now_ms, now_ms + OPENING_MS))
        self._read_at_ms = dict.fromkeys(range(LANES), now_ms)

    @property
    def complete(self) -> bool:
        """No lane is behind."""
        self.beat.look()
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
        if (
            lane in self._behind
            and now_ms >= max(since_ms + ANSWER_GRACE_MS, until_ms)
            and not self._ledger_away
        ):
            del self._behind[lane]

    def ledger_away(self) -> None:
        """Nothing that was read can be written down. The caller that says so says also when it is back."""
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
        self.beat.look()
        if record.job.lane not in self._behind:
            return False
        since_ms, _ = self._behind[record.job.lane]
        if now_ms - since_ms >= ANSWER_GRACE_MS and not self._ledger_away:
            return False
        deadline = deadline_of(record)
        return (
            deadline is not None
            and deadline.at_ms <= now_ms
            and deadline.reason is not ExpireReason.PUBLISH_FAILED
        )
