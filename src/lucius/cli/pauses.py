"""`lucius pause …` and `lucius resume …`: services, tenants and request types of which nothing leaves."""

from typing import Annotated, Any, Final

import msgspec
import typer

from lucius.cli.completing import request_types, services, tenants
from lucius.cli.context import JsonFlag, context
from lucius.cli.render import Doc, TableForm, ago, docs_in, plain

PATH = "/v1/pauses"
PAUSE_TABLE: Final = TableForm(
    headings=("KIND", "NAME", "SINCE", "REASON", "BY"), whole=("KIND", "NAME", "SINCE", "BY")
)

pause = typer.Typer(
    help="Pause a service, a tenant or a request type: nothing of it leaves, and what is under way goes on.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
resume = typer.Typer(
    help="Resume what was paused, and jobs that were parked.", no_args_is_help=True, rich_markup_mode=None
)

ReasonOption = Annotated[str | None, typer.Option("--reason", help="Why, for those who see the pause.")]
_HELP: Final = "As `lucius pause list` would show it."
ServiceArgument = Annotated[str, typer.Argument(metavar="NAME", help=_HELP, autocompletion=services)]
TenantArgument = Annotated[str, typer.Argument(metavar="NAME", help=_HELP, autocompletion=tenants)]
TypeArgument = Annotated[str, typer.Argument(metavar="NAME", help=_HELP, autocompletion=request_types)]


@pause.command("list")
def list_pauses(as_json: JsonFlag = False) -> None:
    """List what is paused, since when and why."""
    with context(as_json=as_json) as at:
        answer = at.need(at.api.get(PATH))
        if as_json:
            at.out.json(answer.body)
            return
        now_ms = None if at.out.layout().columns is None else at.now_ms()

        def told(since: object) -> object:
            return since if now_ms is None else ago(since, now_ms)

        rows: list[tuple[object, ...]] = [
            (each.get("kind"), each.get("name"), told(each.get("since")), each.get("reason"), each.get("by"))
            for each in docs_in(answer.doc.get("items"))
        ]
        if rows:
            at.out.table(PAUSE_TABLE, rows)
        else:
            at.out.say("Nothing is paused.")


@pause.command("service")
def pause_service(name: ServiceArgument, reason: ReasonOption = None, as_json: JsonFlag = False) -> None:
    """Pause a service: its directives wait."""
    _pause("service", name, reason, as_json)


@pause.command("tenant")
def pause_tenant(name: TenantArgument, reason: ReasonOption = None, as_json: JsonFlag = False) -> None:
    """Pause a tenant: directives of its jobs wait."""
    _pause("tenant", name, reason, as_json)


@pause.command("type")
def pause_type(name: TypeArgument, reason: ReasonOption = None, as_json: JsonFlag = False) -> None:
    """Pause a request type: directives of its jobs wait."""
    _pause("type", name, reason, as_json)


def _pause(kind: str, name: str, reason: str | None, as_json: bool) -> None:
    document: dict[str, Any] = {"kind": kind, "name": name}
    if reason is not None:
        document["reason"] = reason
    with context(as_json=as_json) as at:
        answer = at.need(at.api.post(PATH, msgspec.json.encode(document), repeatable=True))
        if as_json:
            at.out.json(answer.body)
        else:
            paused, since = plain(answer.doc.get("name")), plain(answer.doc.get("since"))
            at.out.say(f"{kind} {paused} is paused since {since}")


@resume.command("service")
def resume_service(name: ServiceArgument, as_json: JsonFlag = False) -> None:
    """Resume a service."""
    _resume("service", name, as_json)


@resume.command("tenant")
def resume_tenant(name: TenantArgument, as_json: JsonFlag = False) -> None:
    """Resume a tenant."""
    _resume("tenant", name, as_json)


@resume.command("type")
def resume_type(name: TypeArgument, as_json: JsonFlag = False) -> None:
    """Resume a request type."""
    _resume("type", name, as_json)


def _resume(kind: str, name: str, as_json: bool) -> None:
    document = msgspec.json.encode({"kind": kind, "name": name})
    with context(as_json=as_json) as at:
        answer = at.need(at.api.post(f"{PATH}:resume", document, repeatable=True))
        if as_json:
            at.out.json(answer.body)
        elif answer.doc.get("was_paused"):
            at.out.say(f"{kind} {plain(answer.doc.get('name'))} goes on")
        else:
            at.out.say(f"{kind} {plain(answer.doc.get('name'))} was not paused")


@resume.command("jobs")
def resume_jobs(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only of this tenant.")] = None,
    request_type: Annotated[str | None, typer.Option("--type", help="Only of this request type.")] = None,
    service: Annotated[str | None, typer.Option("--service", help="Only those at this service.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Resume them, instead of counting them.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Resume paused jobs, those that were parked with fresh attempts. Without --yes they are only counted."""
    given = {"tenant_id": tenant, "request_type": request_type, "service": service}
    chosen = {"state": ["PAUSED"], **{name: value for name, value in given.items() if value is not None}}
    with context(as_json=as_json) as at:
        matched = affected = 0
        refused: list[Doc] = []
        cursor: str | None = None
        while True:
            document: dict[str, Any] = {"action": "resume", "filter": chosen, "dry_run": not yes}
            if cursor is not None:
                document["cursor"] = cursor
            doc = at.need(at.api.post("/v1/jobs:bulk", msgspec.json.encode(document))).doc
            matched += int(plain(doc.get("matched")) or 0)
            affected += int(plain(doc.get("affected")) or 0)
            refused += docs_in(doc.get("refused"))
            cursor = doc.get("next_cursor")
            if cursor is None:
                break
        if as_json:
            told = {"matched": matched, "affected": affected, "refused": refused, "dry_run": not yes}
            at.out.json(msgspec.json.encode(told))
        elif yes:
            at.out.say(f"{affected} of {matched} paused jobs go on")
        else:
            at.out.say(f"{affected} of {matched} paused jobs would go on; --yes resumes them")
