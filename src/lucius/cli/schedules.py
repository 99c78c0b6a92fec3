"""`lucius schedules …`: commands that are given by the clock."""

from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
import typer

from lucius.cli.context import CommandContext, JsonFlag, context
from lucius.cli.http import ApiAnswer
from lucius.cli.ids import SCHEDULES, Ask, by_id
from lucius.cli.options import id_given
from lucius.cli.render import Doc, TableForm, ago, docs_in, plain
from lucius.cli.submit import read_source

PATH = "/v1/schedules"
SCHEDULE_TABLE: Final = TableForm(
    headings=("SCHEDULE", "WHEN", "NEXT", "LAST", "JOB"),
    whole=("SCHEDULE", "NEXT", "LAST", "JOB"),
    cut=("WHEN",),
    first_out=("LAST", "WHEN", "JOB"),
)

app = typer.Typer(help="Commands that are given by the clock.", no_args_is_help=True, rich_markup_mode=None)

ScheduleArgument = Annotated[
    str, typer.Argument(metavar="SCHEDULE_ID", callback=id_given, help="As `schedules list` shows it.")
]


def _found(at: CommandContext, schedule_id: str, ask: Ask) -> ApiAnswer:
    return at.need(by_id(at, SCHEDULES, schedule_id, ask))


def _at(schedule_id: str, verb: str = "") -> str:
    return f"{PATH}/{quote(schedule_id, safe='')}{verb}"


@app.command("list")
def list_schedules(as_json: JsonFlag = False) -> None:
    """List schedules, with their next and their last tick."""
    with context(as_json=as_json) as at:
        items: list[Doc] = []
        cursor: str | None = ""
        while cursor is not None:
            answer = at.need(at.api.get(PATH, {"limit": "200", **({"cursor": cursor} if cursor else {})}))
            items += docs_in(answer.doc.get("items"))
            cursor = answer.doc.get("next_cursor")
        if as_json:
            at.out.json(msgspec.json.encode({"items": items}))
            return
        if items:
            at.out.table(SCHEDULE_TABLE, _rows(at, items))
        else:
            at.out.say("No schedules. `lucius schedules write FILE` makes one.")


def _rows(at: CommandContext, items: list[Doc]) -> list[tuple[object, ...]]:
    """On a terminal a time is said as how far away it is."""
    now_ms = None if at.out.layout().columns is None else at.now_ms()

    def told(value: object) -> object:
        return value if now_ms is None or value is None else ago(value, now_ms)

    return [
        (
            each.get("schedule_id"),
            _when(each),
            "paused" if each.get("paused") else told(next(iter(each.get("next") or ()), "never")),
            told(each.get("last_tick")),
            each.get("last_job_id"),
        )
        for each in items
    ]


def _when(schedule: Doc) -> str:
    if schedule.get("cron"):
        return f"{plain(schedule.get('cron'))} {plain(schedule.get('timezone'))}"
    if schedule.get("every"):
        return f"every {plain(schedule.get('every'))}"
    return f"at {plain(schedule.get('at'))}"


@app.command()
def show(schedule_id: ScheduleArgument, as_json: JsonFlag = False) -> None:
    """Show a schedule, its next ticks, and how the last one went."""
    with context(as_json=as_json) as at:
        _print(at, _found(at, schedule_id, lambda each: at.api.get(_at(each))).doc, as_json)


@app.command()
def write(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A schedule as YAML or JSON; `-` for stdin.")],
    as_json: JsonFlag = False,
) -> None:
    """Make a schedule, or give the one of the same id another definition."""
    from lucius.registry.documents import load_document  # takes a moment

    document, fault = load_document(read_source(file).encode(), is_json=file.lower().endswith(".json"))
    if fault is not None:
        raise typer.BadParameter(f"{file}: {fault}")
    with context(as_json=as_json) as at:
        _print(at, at.need(at.api.post(PATH, msgspec.json.encode(document), repeatable=True)).doc, as_json)


@app.command()
def pause(schedule_id: ScheduleArgument, as_json: JsonFlag = False) -> None:
    """No ticks until it is resumed."""
    _change(schedule_id, ":pause", as_json)


@app.command()
def resume(schedule_id: ScheduleArgument, as_json: JsonFlag = False) -> None:
    """Go on with the next tick."""
    _change(schedule_id, ":resume", as_json)


@app.command()
def delete(schedule_id: ScheduleArgument, as_json: JsonFlag = False) -> None:
    """Delete a schedule. Its jobs stay."""
    _change(schedule_id, ":delete", as_json)


@app.command()
def run(schedule_id: ScheduleArgument, as_json: JsonFlag = False) -> None:
    """Give its command now, beside its ticks."""
    with context(as_json=as_json) as at:
        answer = _found(at, schedule_id, lambda each: at.api.post(_at(each, ":run")))
        if as_json:
            at.out.json(answer.body)
        else:
            at.out.data(plain(answer.doc.get("jobId")))


@app.command()
def backfill(
    schedule_id: ScheduleArgument,
    since: Annotated[str, typer.Option("--from", metavar="TIME", help="Such as 2026-12-01T00:00:00Z.")],
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="The end, at the latest now.")],
    as_json: JsonFlag = False,
) -> None:
    """Run the ticks of a range of time that brought no job yet."""
    with context(as_json=as_json) as at:
        job_ids: list[Any] = []
        duplicates, start, problem = 0, since, None
        while True:
            wish = msgspec.json.encode({"from": start, "to": until})
            done = _found(
                at,
                schedule_id,
                lambda each: at.api.post(_at(each, ":backfill"), wish, repeatable=True),  # noqa: B023
            ).doc
            job_ids += done.get("job_ids") or []
            duplicates += int(done.get("duplicates") or 0)
            problem = done.get("problem")
            if problem or not done.get("more_from"):
                break
            start = str(done.get("more_from"))
        if as_json:
            found = {"job_ids": job_ids, "duplicates": duplicates, "problem": problem}
            at.out.json(msgspec.json.encode(found))
            return
        for job_id in job_ids:
            at.out.data(plain(job_id))
        at.out.say(f"{len(job_ids)} new jobs; {duplicates} ticks had brought theirs before.")
        if problem:
            at.out.say(f"It stopped: {plain(problem)}")


def _change(schedule_id: str, verb: str, as_json: bool) -> None:
    with context(as_json=as_json) as at:
        changed = _found(at, schedule_id, lambda each: at.api.post(_at(each, verb), repeatable=True))
        _print(at, changed.doc, as_json)


def _print(at: CommandContext, schedule: Doc, as_json: bool) -> None:
    if as_json:
        at.out.json(msgspec.json.encode(schedule))
        return
    command = schedule.get("command") or {}
    at.out.facts(
        ("schedule", schedule.get("schedule_id")),
        ("tenant", command.get("tenant_id")),
        ("request type", command.get("request_type")),
        ("when", _when(schedule)),
        ("overlap", schedule.get("overlap")),
        ("paused", "yes" if schedule.get("paused") else "no"),
        ("next", ", ".join(plain(each) for each in schedule.get("next") or ()) or "never"),
        ("last tick", schedule.get("last_tick")),
        ("last job", schedule.get("last_job_id")),
        ("problem", schedule.get("problem")),
        ("runs", schedule.get("runs")),
        ("skipped", schedule.get("skipped")),
        ("missed", schedule.get("missed")),
    )
