"""`lucius protocols …`: which recipes there are, and whether a document is one.

`list` and `show` ask the API. `check` works here, with the code that the server itself uses, and needs
no server.
"""

from typing import Annotated

import msgspec
import typer

from lucius.cli.context import CommandContext, JsonFlag, Output, context
from lucius.cli.http import EXIT_FAILED
from lucius.cli.ids import PROTOCOLS, by_id, path_of
from lucius.cli.options import id_given
from lucius.cli.render import Doc, TableForm, docs_in, plain
from lucius.cli.submit import read_source
from lucius.core.flow import ServiceLimits
from lucius.core.model import ProtocolSpec, StepPolicy

app = typer.Typer(help="The recipes that jobs follow.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_protocols(as_json: JsonFlag = False) -> None:
    """List the protocols and the request types that pick them."""
    with context(as_json=as_json) as at:
        answer = at.need(at.api.get("/v1/protocols"))
        if as_json:
            at.out.json(answer.body)
            return
        rows: list[tuple[object, ...]] = [
            (
                protocol.get("protocol_id"),
                ", ".join(plain(name) for name in protocol.get("request_types") or ()),
                " → ".join(plain(step.get("step_type")) for step in docs_in(protocol.get("steps"))),
            )
            for protocol in docs_in(answer.doc.get("items"))
        ]
        if rows:
            form = TableForm(headings=("PROTOCOL", "REQUEST TYPES", "STEPS"), whole=("PROTOCOL",))
            at.out.table(form, rows)
        else:
            at.out.say("No protocols.")


@app.command()
def show(
    protocol_id: Annotated[
        str, typer.Argument(metavar="PROTOCOL_ID", callback=id_given, help="Such as ocr_v1.")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Show a protocol's steps and the schema of each step's payload."""
    with context(as_json=as_json) as at:
        answer = at.need(
            by_id(at, PROTOCOLS, protocol_id, lambda found: at.api.get(path_of(PROTOCOLS, found)))
        )
        if as_json:
            at.out.json(answer.body)
        else:
            _print_protocol(at, answer.doc)


def _print_protocol(at: CommandContext, protocol: Doc) -> None:
    at.out.facts(
        ("protocol", protocol.get("protocol_id")),
        ("request types", ", ".join(plain(name) for name in protocol.get("request_types") or ())),
    )
    rows: list[tuple[object, ...]] = [
        (
            step.get("step_type"),
            step.get("service"),
            step.get("payload_key"),
            _json_text(step.get("defaults")),
            _json_text(step.get("payload_schema")),
        )
        for step in docs_in(protocol.get("steps"))
    ]
    at.out.data("")
    headings = ("STEP", "SERVICE", "PAYLOAD KEY", "DEFAULTS", "PAYLOAD SCHEMA")
    if at.out.layout().columns is None:
        at.out.table(headings, rows)
        return
    # In a column of a terminal JSON would be folded in the middle of its words.
    at.out.table(headings[:-1], [row[:-1] for row in rows])
    for step in docs_in(protocol.get("steps")):
        if schema := step.get("payload_schema"):
            text = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
            at.out.data(f"\nPayload of {plain(step.get('step_type'))}:\n{text}")


def _json_text(value: object) -> str | None:
    return msgspec.json.encode(value).decode() if value else None


@app.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A protocol as YAML or JSON; `-` for stdin.")],
    as_json: JsonFlag = False,
) -> None:
    """Check a protocol document, or one of services, without a server."""
    out = Output(as_json=as_json)
    services = _services_in(source := read_source(file), is_json=file.lower().endswith(".json"))
    if services is not None and not isinstance(services, tuple):
        if as_json:
            out.json(msgspec.json.encode({"valid": True, "services": services}))
        else:
            out.facts(("services", ", ".join(plain(name) for name in services)))
        return
    verdict = services or _checked(source, is_json=file.lower().endswith(".json"))
    if isinstance(verdict, tuple):
        if as_json:
            out.json(msgspec.json.encode({"valid": False, "problems": verdict}))
        what = "a protocol" if services is None else "a document of services"
        out.say("\n".join([f"{file} is not {what}:", *(f"  {plain(problem)}" for problem in verdict)]))
        raise typer.Exit(EXIT_FAILED)
    if as_json:
        out.json(msgspec.json.encode({"valid": True, "protocol": verdict}))
        return
    steps = " → ".join(plain(step.step_type) for step in verdict.steps)
    out.facts(
        ("protocol", verdict.protocol_id),
        ("request types", ", ".join(verdict.request_types)),
        ("steps", steps),
    )


def _services_in(text: str, *, is_json: bool) -> "dict[str, ServiceLimits] | tuple[str, ...] | None":
    """None if the document is not one of services."""
    from lucius.registry.documents import load_document
    from lucius.registry.service_limits import SERVICES, parse_services

    doc, trouble = load_document(text.encode(), is_json=is_json)
    is_of_services = trouble is None and isinstance(doc, dict) and SERVICES in doc
    return parse_services(doc) if is_of_services else None


def _checked(text: str, *, is_json: bool) -> ProtocolSpec | tuple[str, ...]:
    from lucius.registry.documents import load_document, parse_protocol

    doc, trouble = load_document(text.encode(), is_json=is_json)
    return parse_protocol(doc, defaults=StepPolicy()) if trouble is None else (trouble,)
