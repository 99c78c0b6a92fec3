"""Following one job until it ends, and showing the way there.

In: a job id and a display. Out: the job's last document; along the way every change goes to the
display. The loop asks for the job with `?wait=`, which the server holds until the job ends, so the end
is seen at once and a quiet job costs little. A connection that breaks is tried again for a while: a
restart of the server is no failure of the job.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, Self, TextIO

from lucius.cli.context import CommandContext, Output, colour_wanted
from lucius.cli.http import ApiAnswer, ApiFault, job_path
from lucius.cli.render import STEP_HEADINGS, Doc, docs_in, event_line, plain, step_row, table_of
from lucius.core.states import JOB_TERMINAL

if TYPE_CHECKING:
    from rich.console import Group

WAIT_SECONDS_LONGEST: Final = 5
QUIET_POLLS_PER_SECOND_MORE: Final = 10
GAP_SECONDS: Final = 0.2
LOST_SECONDS_MAX: Final = 60.0
LOST_PAUSE_SECONDS_MAX: Final = 5.0
EVENT_PAGES_MAX: Final = 1_000
EVENTS_SHOWN_LIVE: Final = 5


class Display(Protocol):
    """Something that shows a job changing."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def job(self, answer: ApiAnswer) -> None: ...
    def events(self, events: Sequence[Doc]) -> None: ...
    def lost(self, fault: ApiFault) -> None: ...


class JsonLines:
    """One job document a line, for every change."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def job(self, answer: ApiAnswer) -> None:
        self._out.json(answer.body)

    def events(self, events: Sequence[Doc]) -> None:
        return None

    def lost(self, fault: ApiFault) -> None:
        self._out.say(f"{plain(fault.message)} Trying again.")


class Lines:
    """One event a line."""

    def __init__(self, out: Output, *, to_stdout: bool) -> None:
        self._out = out
        self._write = out.data if to_stdout else out.say

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def job(self, answer: ApiAnswer) -> None:
        return None

    def events(self, events: Sequence[Doc]) -> None:
        for event in events:
            self._write(event_line(event))

    def lost(self, fault: ApiFault) -> None:
        self._out.say(f"{plain(fault.message)} Trying again.")


class Live:
    """The steps as a table that redraws itself on a terminal, with the latest events below."""

    def __init__(self, context: CommandContext, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._now_ms = context.now_ms
        self._job: Doc = {}
        self._tail: list[str] = []
        self._trouble = ""
        console = Console(file=stream, no_color=not colour_wanted(stream), highlight=False, markup=False)
        self._live = RichLive(console=console, refresh_per_second=4, get_renderable=self._picture)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def job(self, answer: ApiAnswer) -> None:
        self._job, self._trouble = answer.doc, ""
        self._live.refresh()

    def events(self, events: Sequence[Doc]) -> None:
        self._tail = [*self._tail, *(event_line(event) for event in events)][-EVENTS_SHOWN_LIVE:]
        self._live.refresh()

    def lost(self, fault: ApiFault) -> None:
        self._trouble = f"{plain(fault.message)} Trying again."
        self._live.refresh()

    def _picture(self) -> "Group":
        from rich.console import Group
        from rich.text import Text

        now_ms = self._now_ms()
        head = f"{plain(self._job.get('jobId'))}  {plain(self._job.get('state'))}"
        rows = [step_row(step, now_ms) for step in docs_in(self._job.get("steps"))]
        # A line that is wider than the terminal is cut: folded, its addresses would be broken, and all of it
        # is in `lucius jobs events`.
        notes = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in self._tail]
        if self._trouble:
            notes.append(Text(self._trouble, style="yellow"))
        return Group(Text(head, style="bold"), table_of(STEP_HEADINGS, rows), *notes)


def display_on(context: CommandContext, *, to_stdout: bool) -> Display:
    """A live table on a terminal, plain lines anywhere else."""
    stream = sys.stdout if to_stdout else sys.stderr
    return Live(context, stream) if stream.isatty() else Lines(context.out, to_stdout=to_stdout)


def follow(
    context: CommandContext, job_id: str, display: Display, *, with_events: bool = True
) -> ApiAnswer | ApiFault:
    """The job's last document, once it is terminal; a fault when it cannot be had."""
    answer = context.api.get(job_path(job_id))
    if isinstance(answer, ApiFault):
        return answer
    seen_seq, quiet_polls = 0, 0
    shown: bytes | None = None
    while True:
        if answer.body != shown:
            display.job(answer)
            shown, quiet_polls = answer.body, 0
            if with_events:
                seen_seq = _new_events(context, job_id, seen_seq, display)
        else:
            quiet_polls += 1
        if answer.doc.get("state") in JOB_TERMINAL:
            return answer
        # A server that does not hold the answer must not be asked without a breath in between.
        context.pause(GAP_SECONDS)
        wait_seconds = min(1 + quiet_polls // QUIET_POLLS_PER_SECOND_MORE, WAIT_SECONDS_LONGEST)
        held = _hold(context, job_id, wait_seconds, display)
        if isinstance(held, ApiFault):
            return held
        answer = held


def _hold(context: CommandContext, job_id: str, wait_seconds: int, display: Display) -> ApiAnswer | ApiFault:
    """One long poll, tried again while the trouble looks passing."""
    pause_seconds, lost_seconds = 0.5, 0.0
    while True:
        answer = context.api.get(job_path(job_id), wait_seconds=wait_seconds)
        if isinstance(answer, ApiAnswer) or not answer.passing or lost_seconds >= LOST_SECONDS_MAX:
            return answer
        if lost_seconds == 0.0:
            display.lost(answer)
        context.pause(pause_seconds)
        lost_seconds += pause_seconds
        pause_seconds = min(pause_seconds * 2, LOST_PAUSE_SECONDS_MAX)


def _new_events(context: CommandContext, job_id: str, after_seq: int, display: Display) -> int:
    """Shows what came after `after_seq`. Trouble here is left to the next poll of the job itself."""
    for _ in range(EVENT_PAGES_MAX):
        answer = context.api.get(job_path(job_id, "/events"), {"after": str(after_seq)})
        if isinstance(answer, ApiFault):
            return after_seq
        events = docs_in(answer.doc.get("items"))
        display.events(events)
        after_seq = last_seq(events, after_seq)
        if not events or answer.doc.get("next_cursor") is None:
            return after_seq
    return after_seq


def last_seq(events: Sequence[Doc], after_seq: int) -> int:
    """The highest `seq` among the events, and never less than what was known."""
    seqs = [seq for event in events if isinstance(seq := event.get("seq"), int)]
    return max([after_seq, *seqs])
