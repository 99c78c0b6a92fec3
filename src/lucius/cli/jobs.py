"""`lucius jobs …`: look at jobs, follow them, and steer them."""

from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
import typer

from lucius.cli.bulk import DryRunFlag, FilterOption, YesFlag, act_on_filter, checked_targets
from lucius.cli.completing import job_ids, request_types, tenants
from lucius.cli.context import CommandContext, JsonFlag, KeyOption, checked_key, context
from lucius.cli.http import WAIT_SECONDS_MAX, ApiAnswer, ApiFault, job_path
from lucius.cli.ids import by_job, each_job
from lucius.cli.options import id_given, ids_given, states_given
from lucius.cli.render import JOB_TABLE, docs_in, event_line, job_row, job_sheet, plain
from lucius.cli.times import AbsoluteFlag, since_given
from lucius.cli.watch import EVENT_PAGES_MAX, JsonLines, display_on, follow, last_seq
from lucius.core.states import JobState

app = typer.Typer(help="Look at jobs, follow them, steer them.", no_args_is_help=True, rich_markup_mode=None)

PAGES_MAX: Final = 500
PAGE_ROWS_MAX: Final = 200

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB_ID",
        callback=id_given,
        autocompletion=job_ids,
        help="The job's id, or a beginning that no other has.",
    ),
]
JobsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB_ID",
        callback=ids_given,
        autocompletion=job_ids,
        help="The ids of jobs, or beginnings that no others have.",
    ),
]
FewJobsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="JOB_ID",
        callback=ids_given,
        autocompletion=job_ids,
        help="The ids of jobs, or beginnings that no others have; or --filter.",
    ),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, max=PAGE_ROWS_MAX, help="Rows a page, at most 200.")
]
CursorOption = Annotated[str | None, typer.Option("--cursor", help="Go on where an earlier page ended.")]
AllFlag = Annotated[bool, typer.Option("--all", help="Follow the cursor to the end.")]


class RawPage(msgspec.Struct, frozen=True):
    """A list as the API sends it, its rows left unread."""

    items: list[msgspec.Raw]
    next_cursor: str | int | None = None


def show_pages(
    at: CommandContext, path: str, params: dict[str, str], *, every_page: bool, absolute: bool = False
) -> None:
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
        at.out.table(JOB_TABLE, [job_row(job, now_ms, absolute=absolute) for job in docs])
    else:
        at.out.say("No jobs.")
    if cursor is not None:
        at.out.say(f"There are more: --cursor {plain(cursor)}, or --all.")


def _page(at: CommandContext, path: str, params: dict[str, str]) -> RawPage:
    return _read_page(at, at.need(at.api.get(path, params)))


def _read_page(at: CommandContext, answer: ApiAnswer) -> RawPage:
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
    return None if given is None else ",".join(states_given(given))


@app.command("list")
def list_jobs(
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Only this tenant's jobs.", autocompletion=tenants)
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            help="Only jobs in this state, or in one of several, with commas.",
            autocompletion=_states,
            callback=_state,
        ),
    ] = None,
    request_type: Annotated[
        str | None, typer.Option("--type", help="Only this request type.", autocompletion=request_types)
    ] = None,
    created_after: Annotated[
        str | None,
        typer.Option(
            "--since",
            "--after",
            metavar="TIME",
            help="Only jobs created since: 90s, 15m, 1h, 7d, or an RFC 3339 time.",
            callback=since_given,
        ),
    ] = None,
    created_before: Annotated[
        str | None,
        typer.Option(
            "--until",
            "--before",
            metavar="TIME",
            help="Only jobs created before then, in the same forms.",
            callback=since_given,
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
    absolute: AbsoluteFlag = False,
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
        show_pages(at, "/v1/jobs", params, every_page=every_page, absolute=absolute)


@app.command()
def show(
    job_ids: JobsArgument,
    wait_seconds: Annotated[
        int, typer.Option("--wait", min=0, max=WAIT_SECONDS_MAX, help="Wait this many seconds for the end.")
    ] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Show jobs and their steps."""
    with context(as_json=as_json) as at:

        def print_job(answer: ApiAnswer) -> None:
            if as_json:
                at.out.json(answer.body)
            else:
                gap = "\n" if len(job_ids) > 1 else ""
                at.out.data(job_sheet(answer.doc, at.now_ms(), at.out.layout()) + gap)

        each_job(at, job_ids, lambda each: at.api.get(job_path(each), wait_seconds=wait_seconds), print_job)


@app.command()
def watch(job_id: JobArgument, as_json: JsonFlag = False) -> None:
    """Follow a job until it ends; the exit code says how it ended."""
    with context(as_json=as_json) as at:
        with JsonLines(at.out) if as_json else display_on(at, to_stdout=True) as display:
            outcome = by_job(at, job_id, lambda each: follow(at, each, display, with_events=not as_json))
        ended = at.need(outcome).doc
        at.ended(ended)
        output = ended.get("final_output")
        at.out.say(f"{plain(ended.get('jobId'))} SUCCEEDED" + (f": {plain(output)}" if output else ""))


@app.command()
def cancel(
    job_ids: FewJobsArgument = None,
    filters: FilterOption = None,
    yes: YesFlag = False,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Cancel jobs; a step under way is asked to stop."""
    _control("cancel", job_ids, filters, yes=yes, dry_run=dry_run, as_json=as_json)


@app.command()
def pause(
    job_ids: FewJobsArgument = None,
    filters: FilterOption = None,
    yes: YesFlag = False,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Hold jobs after the step that is under way."""
    _control("pause", job_ids, filters, yes=yes, dry_run=dry_run, as_json=as_json)


@app.command()
def resume(
    job_ids: FewJobsArgument = None,
    filters: FilterOption = None,
    yes: YesFlag = False,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Let held jobs go on."""
    _control("resume", job_ids, filters, yes=yes, dry_run=dry_run, as_json=as_json)


def _control(
    verb: str,
    job_ids: list[str] | None,
    filters: list[str] | None,
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    wanted = checked_targets(job_ids, filters, yes=yes, dry_run=dry_run)
    with context(as_json=as_json) as at:
        if wanted is not None:
            act_on_filter(at, verb, wanted, yes=yes, dry_run=dry_run)
            return

        def print_state(answer: ApiAnswer) -> None:
            if as_json:
                at.out.json(answer.body)
            else:
                at.out.data(f"{plain(answer.doc.get('jobId'))}  {plain(answer.doc.get('state'))}")

        def control(job_id: str) -> ApiAnswer | ApiFault:
            return at.api.post(job_path(job_id, f":{verb}"), repeatable=True)

        each_job(at, job_ids or [], control, print_state)


@app.command()
def rerun(
    job_ids: FewJobsArgument = None,
    from_step: Annotated[
        str | None, typer.Option("--from-step", metavar="STEP_ID", help="Begin here, such as step_02.")
    ] = None,
    key: KeyOption = None,
    filters: FilterOption = None,
    yes: YesFlag = False,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Start new jobs from jobs that ended.

    Results of earlier steps are kept. Prints the new ids.
    """
    wanted = checked_targets(job_ids, filters, yes=yes, dry_run=dry_run)
    if (from_step is not None or key is not None) and len(job_ids or ()) != 1:
        raise typer.BadParameter("--from-step and --key go with one job id.")
    body = None if from_step is None else msgspec.json.encode({"from_step": from_step})
    with context(as_json=as_json) as at:
        if wanted is not None:
            act_on_filter(at, "rerun", wanted, yes=yes, dry_run=dry_run)
        else:
            start_again(at, job_ids or [], lambda each: job_path(each, ":rerun"), body, key=checked_key(key))


def start_again(
    at: CommandContext,
    job_ids: Sequence[str],
    path_of: Callable[[str], str],
    body: bytes | None,
    *,
    key: str | None,
) -> None:
    def print_new(answer: ApiAnswer) -> None:
        if at.out.as_json:
            at.out.json(answer.body)
        else:
            at.out.data(plain(answer.doc.get("jobId")))

    each_job(at, job_ids, lambda each: at.api.post(path_of(each), body, key=key), print_new)


@app.command()
def events(
    job_id: JobArgument,
    after_seq: Annotated[int, typer.Option("--after", min=0, help="Only events after this number.")] = 0,
    absolute: AbsoluteFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Print a job's audit trail, oldest first."""
    found = [job_id]
    with context(as_json=as_json) as at:

        def page_after(each: str) -> ApiAnswer | ApiFault:
            found[0] = each
            return at.api.get(job_path(each, "/events"), {"after": str(after_seq)})

        for _ in range(EVENT_PAGES_MAX):
            page = _read_page(at, at.need(by_job(at, found[0], page_after)))
            items = [msgspec.json.decode(item) for item in page.items]
            for raw, event in zip(page.items, items, strict=True):
                if as_json:
                    at.out.json(bytes(raw))
                else:
                    at.out.data(event_line(event, absolute=absolute))
            after_seq = last_seq(docs_in(items), after_seq)
            if page.next_cursor is None or not items:
                return
