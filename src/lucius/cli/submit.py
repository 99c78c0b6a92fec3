"""`lucius submit` and `lucius run`: a command goes in, a job id or a result comes out.

The envelope comes from a file, from stdin (`-`), from options, or from a request type and a document; options
given beside a file replace its members. A file without such options is sent byte for byte, so that no number
in it is ever rewritten on the way.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import msgspec
import typer

from lucius.cli.completing import request_types, tenants, types_and_files
from lucius.cli.context import CommandContext, JsonFlag, KeyOption, checked_key, context
from lucius.cli.http import ApiAnswer
from lucius.cli.local_documents import TENANT, result_beside, within_reach
from lucius.cli.render import plain
from lucius.cli.watch import display_on, follow

SOURCE_BYTES_MAX: Final = 1024 * 1024
SCHEMA_VERSION: Final = "1"

FileArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE|TYPE",
        help="An envelope as JSON; `-` reads it from stdin. Or a request type.",
        autocompletion=types_and_files,
    ),
]
DocumentArgument = Annotated[
    str | None, typer.Argument(metavar="DOCUMENT", help="With a request type: a path or a URI.")
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", help="Who the job is for.", autocompletion=tenants)
]
TypeOption = Annotated[
    str | None,
    typer.Option(
        "--type", help="The request type, such as OCR or OCR_EMBEDDING.", autocompletion=request_types
    ),
]
InputOption = Annotated[
    str | None,
    typer.Option("--input", metavar="URI", help="Where the input is: a URI, a path, or a ref as JSON."),
]
OutputOption = Annotated[
    str | None,
    typer.Option("--output", metavar="URI", help="Where the result goes: a URI, a path, or a ref as JSON."),
]
PayloadOption = Annotated[
    str | None, typer.Option("--payload", metavar="JSON|@FILE", help="The payload, as JSON or from a file.")
]
ModeOption = Annotated[str | None, typer.Option("--mode", help="DEFAULT (older: SAFE) or BURST.")]
DocOption = Annotated[str | None, typer.Option("--doc-id", help="The document's id; BURST needs one.")]
PriorityOption = Annotated[
    int | None,
    typer.Option("--priority", min=0, max=9, help="Among the tenant's jobs: 9 leaves first, 5 is usual."),
]
CorrelationOption = Annotated[str | None, typer.Option("--correlation-id", help="Your own id for the job.")]


class CommandParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the user gave, unread."""

    file: str | None
    document: str | None = None  # then `file` is a request type
    copies: bool = True  # a document that lies beyond the server's reach is copied into it
    tenant: str | None
    request_type: str | None
    input: str | None
    output: str | None
    payload: str | None
    mode: str | None
    doc_id: str | None
    priority: int | None
    correlation_id: str | None
    key: str | None


def submit(
    file: FileArgument = None,
    document: DocumentArgument = None,
    tenant: TenantOption = None,
    request_type: TypeOption = None,
    input_uri: InputOption = None,
    output_uri: OutputOption = None,
    payload: PayloadOption = None,
    mode: ModeOption = None,
    doc_id: DocOption = None,
    priority: PriorityOption = None,
    key: KeyOption = None,
    correlation_id: CorrelationOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Submit a job and print its id."""
    parts = CommandParts(
        file=file,
        document=document,
        tenant=tenant,
        request_type=request_type,
        input=input_uri,
        output=output_uri,
        payload=payload,
        mode=mode,
        doc_id=doc_id,
        priority=priority,
        correlation_id=correlation_id,
        key=key,
    )
    envelope, checked = envelope_of(parts), checked_key(key)
    with context(as_json=as_json) as at:
        answer = _send(at, envelope, checked)
        if as_json:
            at.out.json(answer.body)
        else:
            at.out.data(plain(answer.doc.get("jobId")))


def run(
    file: FileArgument = None,
    document: DocumentArgument = None,
    tenant: TenantOption = None,
    request_type: TypeOption = None,
    input_uri: InputOption = None,
    output_uri: OutputOption = None,
    payload: PayloadOption = None,
    mode: ModeOption = None,
    doc_id: DocOption = None,
    priority: PriorityOption = None,
    key: KeyOption = None,
    correlation_id: CorrelationOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Submit a job, show its progress, and print where its result is."""
    parts = CommandParts(
        file=file,
        document=document,
        tenant=tenant,
        request_type=request_type,
        input=input_uri,
        output=output_uri,
        payload=payload,
        mode=mode,
        doc_id=doc_id,
        priority=priority,
        correlation_id=correlation_id,
        key=key,
    )
    envelope, checked = envelope_of(parts), checked_key(key)
    with context(as_json=as_json) as at:
        sent = _send(at, envelope, checked).doc
        job_id = str(sent.get("jobId"))
        again = " before; a new --key makes a new job" if sent.get("duplicate") is True else ""
        at.out.say(f"{plain(job_id)} accepted{again}")
        with display_on(at, to_stdout=False) as display:
            outcome = follow(at, job_id, display)
        ended = at.need(outcome)
        if as_json:
            at.out.json(ended.body)
        elif ended.doc.get("final_output") is not None and ended.doc.get("state") == "SUCCEEDED":
            at.out.data(plain(ended.doc["final_output"]))
        at.ended(ended.doc)


def _send(at: CommandContext, envelope: bytes, key: str | None) -> ApiAnswer:
    # Without a key the content is the key: sent twice, it is still one job.
    answer = at.need(at.api.post("/v1/orchestrate", envelope, key=key, repeatable=True))
    if answer.doc.get("duplicate") is True:
        at.out.say(f"This command is known already: its job is {plain(answer.doc.get('state'))}.")
    return answer


def envelope_of(parts: CommandParts) -> bytes:
    """The envelope to send. What only the server can judge is left to the server."""
    if parts.document is not None:
        parts = spelled_out(parts, parts.document)
    given = _given(parts)
    if parts.file is not None:
        if _looks_like_a_type(parts.file):
            raise typer.BadParameter(f"There is no file {parts.file}. With a request type goes a DOCUMENT.")
        text = read_source(parts.file)
        envelope = _object_in(text, parts.file)
        if parts.key is not None and "idempotency_key" in envelope:
            given["idempotency_key"] = parts.key
        return _encode({**envelope, **given}) if given else text.encode()
    required = {
        "--tenant": parts.tenant,
        "--type": parts.request_type,
        "--input": parts.input,
        "--output": parts.output,
    }
    missing = [option for option, value in required.items() if value is None]
    if missing:
        also = f"or also {', '.join(missing)}"
        raise typer.BadParameter(f"Give an envelope FILE (or `-` for stdin), a TYPE and a DOCUMENT, {also}.")
    return _encode({"payload": {}, "schema_version": SCHEMA_VERSION, **given})


def _looks_like_a_type(name: str) -> bool:
    """In capitals as request types are, and no file goes by that name."""
    return name == name.upper() != name.lower() and not Path(name).exists()


def spelled_out(parts: CommandParts, document: str) -> CommandParts:
    """A request type and a document, as the options that they stand for."""
    if parts.request_type is not None or parts.input is not None:
        raise typer.BadParameter("A request type and a DOCUMENT cannot be combined with --type and --input.")
    request_type = str(parts.file)
    reachable = within_reach(document, copies=parts.copies)
    return msgspec.structs.replace(
        parts,
        file=None,
        document=None,
        tenant=parts.tenant or TENANT,
        request_type=request_type,
        input=reachable,
        output=parts.output or result_beside(reachable, request_type),
    )


def _given(parts: CommandParts) -> dict[str, Any]:
    members = {
        "tenant_id": parts.tenant,
        "request_type": parts.request_type,
        "input_ref": None if parts.input is None else _ref(parts.input, "--input"),
        "output_ref": None if parts.output is None else _ref(parts.output, "--output"),
        "payload": None if parts.payload is None else _payload(parts.payload),
        "mode": None if parts.mode is None else parts.mode.upper(),
        "doc_id": parts.doc_id,
        "priority": parts.priority,
        "correlation_id": parts.correlation_id,
    }
    return {name: value for name, value in members.items() if value is not None}


def _ref(text: str, option: str) -> dict[str, Any]:
    """What has neither a scheme nor braces is a path on this machine."""
    if text.lstrip().startswith("{"):
        return _object_in(text, option)
    if "://" in text or not text:
        return {"uri": text}
    try:
        return {"uri": Path(text).resolve().as_uri()}
    except (OSError, RuntimeError) as fault:  # links that lead in a circle
        raise typer.BadParameter(f"{option}: {text} leads nowhere: {fault}.") from None


def _payload(text: str) -> dict[str, Any]:
    if text.startswith("@"):
        return _object_in(read_source(text[1:]), text[1:])
    return _object_in(text, "--payload")


def read_source(name: str) -> str:
    """A file's text, or stdin's for `-`; bounded, UTF-8."""
    try:
        if name == "-":
            raw = sys.stdin.buffer.read(SOURCE_BYTES_MAX + 1)
        else:
            with Path(name).open("rb") as source:
                raw = source.read(SOURCE_BYTES_MAX + 1)
    except OSError as error:
        raise typer.BadParameter(f"Cannot read {name}: {error.strerror or 'not readable'}.") from None
    if len(raw) > SOURCE_BYTES_MAX:
        raise typer.BadParameter(f"{name} is larger than {SOURCE_BYTES_MAX // 1024} KiB.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{name} is not UTF-8 text.") from None


def _object_in(text: str, source: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise typer.BadParameter(f"{source} is not JSON: {error.msg} ({where}).") from None
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{source} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{source} must hold a JSON object.")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _encode(envelope: dict[str, Any]) -> bytes:
    try:
        return json.dumps(envelope, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        raise typer.BadParameter(
            "The envelope holds a number or a character that JSON cannot carry."
        ) from None
