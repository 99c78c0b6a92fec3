"""`lucius dlq …` and `lucius outbox …`: what an operator does when something is stuck. Needs the admin
role.
"""

from typing import Annotated, Final
from urllib.parse import quote

import typer

from lucius.cli.bulk import DryRunFlag, FilterOption, YesFlag, act_on_filter, checked_targets
from lucius.cli.completing import request_types, tenants
from lucius.cli.context import JsonFlag, KeyOption, checked_key, context
from lucius.cli.jobs import (
    AllFlag,
    CursorOption,
    FewJobsArgument,
    LimitOption,
    page_params,
    show_pages,
    start_again,
)
from lucius.cli.render import plain
from lucius.cli.times import AbsoluteFlag, since_given

DLQ_PATH: Final = "/v1/admin/dlq"

dlq = typer.Typer(help="Jobs that failed for good.", no_args_is_help=True, rich_markup_mode=None)
outbox = typer.Typer(help="Directives waiting to be sent.", no_args_is_help=True, rich_markup_mode=None)


@dlq.command("list")
def list_dead(
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Only this tenant's jobs.", autocompletion=tenants)
    ] = None,
    request_type: Annotated[
        str | None, typer.Option("--type", help="Only this request type.", autocompletion=request_types)
    ] = None,
    code: Annotated[
        str | None, typer.Option("--code", help="Only jobs that failed with this error code.")
    ] = None,
    failed_after: Annotated[
        str | None,
        typer.Option(
            "--since",
            "--after",
            metavar="TIME",
            help="Only jobs that failed since: 90s, 15m, 1h, 7d, or an RFC 3339 time.",
            callback=since_given,
        ),
    ] = None,
    failed_before: Annotated[
        str | None,
        typer.Option(
            "--until",
            "--before",
            metavar="TIME",
            help="Only jobs that failed before then, in the same forms.",
            callback=since_given,
        ),
    ] = None,
    limit: LimitOption = None,
    cursor: CursorOption = None,
    every_page: AllFlag = False,
    absolute: AbsoluteFlag = False,
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
        show_pages(at, DLQ_PATH, params, every_page=every_page, absolute=absolute)


@dlq.command()
def redrive(
    job_ids: FewJobsArgument = None,
    key: KeyOption = None,
    filters: FilterOption = None,
    yes: YesFlag = False,
    dry_run: DryRunFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Run failed jobs again as new ones. Prints the new ids."""
    wanted = checked_targets(job_ids, filters, yes=yes, dry_run=dry_run)
    if key is not None and len(job_ids or ()) != 1:
        raise typer.BadParameter("--key goes with one job id.")
    with context(as_json=as_json) as at:
        if wanted is not None:
            act_on_filter(at, "redrive", {"state": ["FAILED_FINAL"], **wanted}, yes=yes, dry_run=dry_run)
        else:
            start_again(at, job_ids or [], _redrive_path, None, key=checked_key(key))


def _redrive_path(job_id: str) -> str:
    return f"{DLQ_PATH}/{quote(job_id, safe='')}:redrive"


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
