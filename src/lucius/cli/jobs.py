"""`lucius jobs …`: look at jobs, follow them, and steer them."""

from typing import Annotated, Final

import msgspec
import typer

from lucius.cli.context import CommandContext, JsonFlag, KeyOption, checked_key, context
from lucius.cli.http import WAIT_SECONDS_MAX, job_path
from lucius.cli.options import id_given
from lucius.cli.render import JOB_HEADINGS, docs_in, event_line, job_row, job_sheet, plain
from lucius.cli.watch import EVENT_PAGES_MAX, JsonLines, display_on, follow, last_seq
from lucius.contracts.times import parse_rfc3339
from lucius.core.states import JobState

app = typer.Typer(help="Look at jobs, follow them, steer them.", no_args_is_help=True, rich_markup_mode=None)

PAGES_MAX: Final = 500
PAGE_ROWS_MAX: Final = 200

JobArgument = Annotated[str, typer.Argument(metavar="JOB_ID", callback=id_given, help="The job's id.")]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, max=PAGE_ROWS_MAX, help="Rows a page, at most 200.")
]
CursorOption = Annotated[str | None, typer.Option("--cursor", help="Go on where an earlier page ended.")]
AllFlag = Annotated[bool, typer.Option("--all", help="Follow the cursor to the end.")]


class RawPage(msgspec.Struct, frozen=True):
    """A list as the API sends it, its rows left unread."""

    items: list[msgspec.Raw]
    next_cursor: str | int | None = None


def show_pages(at: CommandContext, path: str, params: dict[str, str], *, every_page: bool) -> None:
    """One page as it came; or all of them as one list, in the same shape."""
    if every_page:
        params.setdefault("limit", str(PAGE_ROWS_MAX))
    rows: list[msgspec.Raw] = []
    cursor = None
    for _ in range(PAGES_MAX if every_page else 1):
        page = _page(at, path, params)
        rows += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
        if every_page:
            at.out.passing(f"{len(rows)} jobs so far…")
        params["cursor"] = str(cursor)
    at.out.passing("")
    if at.out.as_json:
        at.out.json(msgspec.json.encode(RawPage(rows, cursor)))
        return
    now_ms = at.now_ms()
    docs = docs_in([msgspec.json.decode(row) for row in rows])
    if docs:
        at.out.table(JOB_HEADINGS, [job_row(job, now_ms) for job in docs])
    else:
        at.out.say("No jobs.")
    if cursor is not None:
        at.out.say(f"There are more: --cursor {plain(cursor)}, or --all.")


def _page(at: CommandContext, path: str, params: dict[str, str]) -> RawPage:
    answer = at.need(at.api.get(path, params))
    try:
        return msgspec.json.decode(answer.body, type=RawPage)
    except msgspec.DecodeError:
        at.out.say("error: The answer is not a list.")
        raise typer.Exit(1) from None


def page_params(limit: int | None, cursor: str | None, **filters: str | None) -> dict[str, str]:
    wanted = {"limit": None if limit is None else str(limit), "cursor": cursor, **filters}
    return {name: value for name, value in wanted.items() if value is not None}


def _states(incomplete: str) -> list[str]:
    return [state.value for state in JobState if state.value.startswith(incomplete)]


def _state(given: str | None) -> str | None:
    state = None if given is None else given.strip().upper()
    if state is not None and state not in JobState.__members__:
        states = ", ".join(JobState.__members__)
        raise typer.BadParameter(f"{given} is no state of a job; those are {states}.")
    return state


def given_time(given: str | None) -> str | None:
    if given is not None and parse_rfc3339(given) is None:
        raise typer.BadParameter(f"{given} is no RFC 3339 time such as 2026-01-31T12:00:00Z.")
    return given


@app.command("list")
def list_jobs(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's jobs.")] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", help="Only jobs in this state.", autocompletion=_states, callback=_state),
    ] = None,
    request_type: Annotated[str | None, typer.Option("--type", help="Only this request type.")] = None,
    created_after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="TIME", help="Only jobs created after this RFC 3339 time.", callback=given_time
        ),
    ] = None,
    created_before: Annotated[
        str | None,
        typer.Option(
            "--before", metavar="TIME", help="Only jobs created before this time.", callback=given_time
        ),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            "--search",
            metavar="TEXT",
            help="Only jobs with this in their id, or named so: document, correlation.",
        ),
    ] = None,
    limit: LimitOption = None,
    cursor: CursorOption = None,
    every_page: AllFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """List jobs, newest first."""
    params = page_params(
        limit,
        cursor,
        tenant_id=tenant,
        state=state,
        request_type=request_type,
        created_after=created_after,
        created_before=created_before,
        q=search,
    )
    with context(as_json=as_json) as at:
        show_pages(at, "/v1/jobs", params, every_page=every_page)


@app.command()
def show(
    job_id: JobArgument,
    wait_seconds: Annotated[
        int, typer.Option("--wait", min=0, max=WAIT_SECONDS_MAX, help="Wait this many seconds for the end.")
    ] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Show a job and its steps."""
    with context(as_json=as_json) as at:
        answer = at.need(at.api.get(job_path(job_id), wait_seconds=wait_seconds))
        if as_json:
            at.out.json(answer.body)
        else:
            at.out.data(job_sheet(answer.doc, at.now_ms(), at.out.layout()))


@app.command()
def watch(job_id: JobArgument, as_json: JsonFlag = False) -> None:
    """Follow a job until it ends; the exit code says how it ended."""
    with context(as_json=as_json) as at:
        with JsonLines(at.out) if as_json else display_on(at, to_stdout=True) as display:
            outcome = follow(at, job_id, display, with_events=not as_json)
        ended = at.need(outcome).doc
        at.ended(ended)
        output = ended.get("final_output")
        at.out.say(f"{plain(ended.get('jobId'))} SUCCEEDED" + (f": {plain(output)}" if output else ""))


@app.command()
def cancel(job_id: JobArgument, as_json: JsonFlag = False) -> None:
    """Cancel a job; a step under way is asked to stop."""
    _control(job_id, "cancel", as_json=as_json)


@app.command()
def pause(job_id: JobArgument, as_json: JsonFlag = False) -> None:
    """Hold a job after the step that is under way."""
    _control(job_id, "pause", as_json=as_json)


@app.command()
def resume(job_id: JobArgument, as_json: JsonFlag = False) -> None:
    """Let a held job go on."""
    _control(job_id, "resume", as_json=as_json)


def _control(job_id: str, verb: str, *, as_json: bool) -> None:
    with context(as_json=as_json) as at:
        answer = at.need(at.api.post(job_path(job_id, f":{verb}"), repeatable=True))
        if as_json:
            at.out.json(answer.body)
        else:
            at.out.data(f"{plain(answer.doc.get('jobId'))}  {plain(answer.doc.get('state'))}")


@app.command()
def rerun(
    job_id: JobArgument,
    from_step: Annotated[
        str | None, typer.Option("--from-step", metavar="STEP_ID", help="Begin here, such as step_02.")
    ] = None,
    key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Start a new job from one that ended.

    Results of earlier steps are kept. Prints the new id.
    """
    body = None if from_step is None else msgspec.json.encode({"from_step": from_step})
    start_again(job_path(job_id, ":rerun"), body, key=checked_key(key), as_json=as_json)


def start_again(path: str, body: bytes | None, *, key: str | None, as_json: bool) -> None:
    with context(as_json=as_json) as at:
        answer = at.need(at.api.post(path, body, key=key))
        if as_json:
            at.out.json(answer.body)
        else:
            at.out.data(plain(answer.doc.get("jobId")))


@app.command()
def events(
    job_id: JobArgument,
    after_seq: Annotated[int, typer.Option("--after", min=0, help="Only events after this number.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Print a job's audit trail, oldest first."""
    with context(as_json=as_json) as at:
        for _ in range(EVENT_PAGES_MAX):
            page = _page(at, job_path(job_id, "/events"), {"after": str(after_seq)})
            items = [msgspec.json.decode(item) for item in page.items]
            for raw, event in zip(page.items, items, strict=True):
                if as_json:
                    at.out.json(bytes(raw))
                else:
                    at.out.data(event_line(event))
            after_seq = last_seq(docs_in(items), after_seq)
            if page.next_cursor is None or not items:
                return
