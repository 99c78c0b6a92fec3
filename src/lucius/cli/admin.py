"""`lucius dlq …` and `lucius outbox …`: what an operator does when something is stuck. Needs the admin
role.
"""

from typing import Annotated, Final
from urllib.parse import quote

import typer

from lucius.cli.context import JsonFlag, KeyOption, checked_key, context
from lucius.cli.jobs import (
    AllFlag,
    CursorOption,
    JobArgument,
    LimitOption,
    given_time,
    page_params,
    show_pages,
    start_again,
)
from lucius.cli.render import plain

DLQ_PATH: Final = "/v1/admin/dlq"

dlq = typer.Typer(help="Jobs that failed for good.", no_args_is_help=True, rich_markup_mode=None)
outbox = typer.Typer(help="Directives waiting to be sent.", no_args_is_help=True, rich_markup_mode=None)


@dlq.command("list")
def list_dead(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's jobs.")] = None,
    request_type: Annotated[str | None, typer.Option("--type", help="Only this request type.")] = None,
    code: Annotated[
        str | None, typer.Option("--code", help="Only jobs that failed with this error code.")
    ] = None,
    failed_after: Annotated[
        str | None,
        typer.Option(
            "--after",
            metavar="TIME",
            help="Only jobs that failed after this RFC 3339 time.",
            callback=given_time,
        ),
    ] = None,
    failed_before: Annotated[
        str | None,
        typer.Option(
            "--before", metavar="TIME", help="Only jobs that failed before this time.", callback=given_time
        ),
    ] = None,
    limit: LimitOption = None,
    cursor: CursorOption = None,
    every_page: AllFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """List finally failed jobs, the last that failed first."""
    params = page_params(
        limit,
        cursor,
        tenant_id=tenant,
        request_type=request_type,
        error_code=code,
        failed_after=failed_after,
        failed_before=failed_before,
    )
    with context(as_json=as_json) as at:
        show_pages(at, DLQ_PATH, params, every_page=every_page)


@dlq.command()
def redrive(job_id: JobArgument, key: KeyOption = None, as_json: JsonFlag = False) -> None:
    """Run a failed job again as a new one. Prints the new id."""
    path = f"{DLQ_PATH}/{quote(job_id, safe='')}:redrive"
    start_again(path, None, key=checked_key(key), as_json=as_json)


@outbox.command()
def retry(as_json: JsonFlag = False) -> None:
    """Make every waiting directive due now. Prints how many there were."""
    with context(as_json=as_json) as at:
        answer = at.need(at.api.post("/v1/admin/outbox/retry", repeatable=True))
        if as_json:
            at.out.json(answer.body)
        else:
            at.out.data(plain(answer.doc.get("made_due")))


@outbox.callback()
def outbox_group() -> None:
    """Directives waiting to be sent."""
