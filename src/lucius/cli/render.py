"""Documents as text for people: tables, job sheets, event lines, relative times.

In: documents as the API sent them, and the time now. Out: text. Nothing here prints, asks or reads a
clock. Values come from a server, so control characters are shown escaped and markup in them means
nothing.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from rich.table import Table

Doc = Mapping[str, Any]

STATE_STYLES: Final[Mapping[str, str]] = {
    "SUCCEEDED": "green",
    "FAILED_FINAL": "red",
    "CANCELLED": "yellow",
    "CANCELLING": "yellow",
    "FAILED_RETRY": "yellow",
    "PAUSED": "magenta",
    "PAUSING": "magenta",
    "PROCESSING": "cyan",
    "IN_PROGRESS": "cyan",
}
EVENT_VALUE_CHARS_MAX: Final = 200
DASH: Final = "-"
USUAL_PRIORITY: Final = 5
# What a column keeps on a narrow terminal, and what a page has at least.
COLUMN_WIDTH_MIN: Final = 6
WIDTH_MIN: Final = 60


class TextLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What text is set for: how wide it may be (None: as it likes) and whether it may have colours."""

    columns: int | None = None
    colour: bool = False


def plain(value: object) -> str:
    """One line, safe for a terminal: control characters are shown, never sent."""
    if value is None:
        return DASH
    text = value if isinstance(value, str) else str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def compact(body: bytes) -> bytes:
    """The same JSON without white space between its tokens; numbers and strings stay as they were written."""
    return msgspec.json.format(body, indent=-1)


class TableForm(msgspec.Struct, frozen=True, kw_only=True):
    """The headings of a table, and what may give way on a narrow terminal.

    `whole`: columns that are never broken, such as ids, which are to be copied; `cut`: those that end in `…`;
    `first_out`: those that are left out, in this order. All others are folded.
    """

    headings: Sequence[str]
    whole: Sequence[str] = ()
    cut: Sequence[str] = ()
    first_out: Sequence[str] = ()


Headings = Sequence[str] | TableForm


def table_of(headings: Headings, rows: Sequence[Sequence[object]], columns: int | None = None) -> "Table":
    from rich.table import Table
    from rich.text import Text

    form = _form(headings)
    names = form.headings
    cells = [[plain(cell) for cell in row] for row in rows]
    places = list(range(len(names)))
    widths: list[int | None] = [None] * len(names)
    if columns is not None:
        places, fitted = _fitted(form, cells, columns)
        widths = [*fitted]
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 2, 0, 0))
    for place in places:
        cut = names[place] in form.cut
        table.add_column(
            names[place],
            overflow="ellipsis" if cut else "fold",
            no_wrap=cut or names[place] in form.whole,
            width=widths[place],
        )
    for row in cells:
        table.add_row(*(Text(row[place], style=STATE_STYLES.get(row[place], "")) for place in places))
    return table


def _fitted(form: TableForm, cells: Sequence[Sequence[str]], columns: int) -> tuple[list[int], list[int]]:
    """Which columns are shown and how wide each is. What must stay whole keeps its width on any terminal."""
    from rich.cells import cell_len

    names = list(form.headings)
    natural = [
        max(map(cell_len, (heading, *(row[place] for row in cells)))) for place, heading in enumerate(names)
    ]
    least = [
        width if names[place] in form.whole else min(width, max(COLUMN_WIDTH_MIN, len(names[place])))
        for place, width in enumerate(natural)
    ]
    places = list(range(len(names)))
    for heading in form.first_out:
        if _together(least, places) > columns:
            places.remove(names.index(heading))
    widths = natural.copy()
    while _together(widths, places) > columns:
        widest = max(places, key=lambda place: widths[place] - least[place])
        if widths[widest] == least[widest]:
            break
        widths[widest] -= 1
    return places, widths


def _together(widths: Sequence[int], places: Sequence[int]) -> int:
    return sum(widths[place] for place in places) + 2 * (len(places) - 1)


def _form(headings: Headings) -> TableForm:
    return headings if isinstance(headings, TableForm) else TableForm(headings=headings)


def set_table(headings: Headings, rows: Sequence[Sequence[object]], layout: TextLayout) -> str:
    if layout.columns is None:
        return _padded([list(_form(headings).headings), *([plain(cell) for cell in row] for row in rows)])
    from rich.console import Console

    page = StringIO()
    table = table_of(headings, rows, layout.columns)
    # What must stay whole and is wider than the terminal is left to the terminal: an id is still one word.
    needed = sum(column.width or 0 for column in table.columns) + 2 * len(table.columns)
    console = Console(
        file=page,
        width=max(layout.columns, WIDTH_MIN, needed),
        force_terminal=layout.colour,
        color_system="standard" if layout.colour else None,
        no_color=not layout.colour,
        legacy_windows=False,
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def _padded(lines: Sequence[Sequence[str]]) -> str:
    """Columns for a pipe or a file: nothing is ever folded or cut, and a long list costs little."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def instant_ms(value: object) -> int | None:
    """An RFC 3339 time as milliseconds; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def span(milliseconds: int) -> str:
    """A length of time in its largest fitting unit."""
    if milliseconds < 1_000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f}s"
    for unit, unit_ms, units_max in (("m", 60_000, 60), ("h", 3_600_000, 48)):
        if milliseconds < unit_ms * units_max:
            return f"{milliseconds // unit_ms}{unit}"
    return f"{milliseconds // 86_400_000}d"


def ago(value: object, now_ms: int) -> str:
    """A time as seen from now: `12s ago`, `in 5m`."""
    at_ms = instant_ms(value)
    if at_ms is None:
        return DASH if value is None else plain(value)
    away_ms = abs(now_ms - at_ms)
    if away_ms < 1_000:
        return "just now"
    rough = f"{away_ms // 1000}s" if away_ms < 60_000 else span(away_ms)
    return f"{rough} ago" if at_ms <= now_ms else f"in {rough}"


def local_clock(value: object) -> str:
    at_ms = instant_ms(value)
    if at_ms is None:
        return plain(value)
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]


def uri_of(ref: object) -> object:
    return ref.get("uri") if isinstance(ref, Mapping) else ref


def trouble_of(doc: Doc, code: str, message: str) -> str:
    said = [plain(doc.get(name)) for name in (code, message) if doc.get(name)]
    return ": ".join(said)


def docs_in(value: object) -> list[Doc]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


JOB_TABLE: Final = TableForm(
    headings=("JOB", "STATE", "TENANT", "TYPE", "STEP", "CREATED", "ERROR"),
    whole=("JOB", "STATE", "CREATED"),
    cut=("TENANT", "TYPE", "ERROR"),
    first_out=("STEP", "TENANT", "TYPE"),
)


def job_row(job: Doc, now_ms: int, *, absolute: bool = False) -> tuple[object, ...]:
    steps = docs_in(job.get("steps"))
    place = job.get("current_step_index")
    created = job.get("created_at")
    return (
        job.get("jobId"),
        job.get("state"),
        job.get("tenant_id"),
        job.get("request_type"),
        f"{place + 1}/{len(steps)}" if isinstance(place, int) and steps else job.get("current_step_id"),
        created if absolute else ago(created, now_ms),
        job.get("error_code"),
    )


STEP_HEADINGS: Final = TableForm(
    headings=("STEP", "TYPE", "STATE", "ATTEMPT", "DONE", "ENDED", "NOTE"),
    whole=("STEP", "STATE", "ATTEMPT", "DONE"),
)


def step_row(step: Doc, now_ms: int) -> tuple[object, ...]:
    # The last report may be below 100; a step that succeeded is done.
    progress = 100 if step.get("state") == "SUCCEEDED" else step.get("progress")
    return (
        step.get("stepId"),
        step.get("step_type"),
        step.get("state"),
        step.get("attempt_no") or DASH,
        DASH if progress is None else f"{progress}%",
        ago(step.get("completed_at"), now_ms),
        _step_note(step, now_ms),
    )


def _step_note(step: Doc, now_ms: int) -> str:
    notes = []
    if step.get("state") in ("FAILED_RETRY", "DISPATCHING") and step.get("next_attempt_at"):
        notes.append(f"next try {ago(step['next_attempt_at'], now_ms)}")
    elif step.get("state") == "DISPATCHING":
        notes.append(f"no worker of {plain(step.get('service'))} has taken it yet")
    if trouble := trouble_of(step, "last_error_code", "last_error_message"):
        notes.append(trouble)
    return "; ".join(notes)


def job_sheet(job: Doc, now_ms: int, layout: TextLayout) -> str:
    """Everything about one job that fits a screen."""
    facts: list[tuple[str, object]] = [
        ("job", job.get("jobId")),
        ("state", job.get("state")),
        ("tenant", job.get("tenant_id")),
        ("type", f"{plain(job.get('request_type'))} ({plain(job.get('protocol_id'))})"),
        ("document", job.get("doc_id")),
        ("mode", job.get("mode")),
        ("priority", None if job.get("priority") == USUAL_PRIORITY else job.get("priority")),
        ("engine", job.get("engine")),
        ("attempts", job.get("attempts_total")),
        ("created", _when(job.get("created_at"), now_ms)),
        ("ended", _when(job.get("completed_at"), now_ms)),
        ("output", job.get("final_output")),
        ("error", trouble_of(job, "error_code", "error_message") or None),
        ("rerun of", job.get("rerun_of")),
        ("correlation", job.get("correlation_id")),
    ]
    steps = [step_row(step, now_ms) for step in docs_in(job.get("steps"))]
    parts = [fact_lines(facts)]
    if steps:
        parts.append(set_table(STEP_HEADINGS, steps, layout))
    return "\n\n".join(parts)


def fact_lines(facts: Sequence[tuple[str, object]]) -> str:
    """Names and values under each other; what is absent is left out."""
    known = [(name, value) for name, value in facts if value is not None]
    width = max((len(name) for name, _ in known), default=0)
    return "\n".join(f"{name:<{width}}  {plain(value)}" for name, value in known)


def _when(value: object, now_ms: int) -> str | None:
    return None if value is None else f"{ago(value, now_ms)} ({plain(value)})"


def event_line(event: Doc, *, absolute: bool = False) -> str:
    """One event on one line, types unknown to this client included."""
    at = plain(event.get("at")) if absolute else local_clock(event.get("at"))
    words = [f"{plain(event.get('seq')):>4}", at, plain(event.get("type"))]
    if event.get("stepId"):
        words.append(plain(event["stepId"]))
    if event.get("attempt_no"):
        words.append(f"attempt {plain(event['attempt_no'])}")
    data = event.get("data")
    if isinstance(data, Mapping):
        words += [
            f"{plain(name)}={plain(value)[:EVENT_VALUE_CHARS_MAX]}"
            for name, value in data.items()
            if isinstance(value, str | int | float)
        ]
        words += _reply_words(data.get("reply"))
    return "  ".join(words)


def _reply_words(reply: object) -> list[str]:
    """What a reply kept as evidence said: its kind, its outcome, and where its result lies."""
    if not isinstance(reply, Mapping):
        return []
    said = (reply.get("type"), reply.get("status"), uri_of(reply.get("output_ref")))
    return [plain(word)[:EVENT_VALUE_CHARS_MAX] for word in said if isinstance(word, str)]
