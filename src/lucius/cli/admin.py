"""`lucius dlq …` and `lucius outbox …`: what an operator does when something is stuck. Needs the admin
role.
"""

from typing import Final
from urllib.parse import quote

import typer

from lucius.cli.context import JsonFlag, KeyOption, checked_key, context
from lucius.cli.jobs import (
    AllFlag,
    CursorOption,
    JobArgument,
    LimitOption,
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
    limit: LimitOption = None,
    cursor: CursorOption = None,
    every_page: AllFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """List finally failed jobs."""
    with context(as_json=as_json) as at:
        show_pages(at, DLQ_PATH, page_params(limit, cursor), every_page=every_page)


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
