"""`lucius lifebook …`: runs of the contract over DynamoDB and SQS.

Client commands talk to the API of Lifebook at LIFEBOOK_URL with LIFEBOOK_API_KEY. `api`, `worker` and `dev`
run a part; where AWS is, they are told as any program that uses the AWS SDK.
"""

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn
from urllib.parse import quote

import msgspec
import typer

from lucius.cli.context import JsonFlag, Output
from lucius.cli.http import EXIT_ENDED_BADLY, EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE

if TYPE_CHECKING:
    import httpx2

app = typer.Typer(
    name="lifebook",
    help="Runs over DynamoDB and SQS, by a contract of its own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

DEFAULT_URL: Final = "http://127.0.0.1:8421"
CALL_SECONDS_MAX: Final = 30.0
LOOK_SECONDS: Final = 0.25
TERMINAL: Final = ("completed", "dead", "canceled")
NEEDS_AWS: Final = "Lifebook needs boto3: pip install 'lucius[aws]'"

Doc = dict[str, Any]
JobId = Annotated[str, typer.Argument(metavar="JOB_ID", help="The run.")]
WorkflowsOption = Annotated[
    str | None,
    typer.Option(
        "--workflows",
        metavar="MODULE",
        help="Modules that register workflows; LIFEBOOK_WORKFLOWS unless given.",
    ),
]


class _Calls:
    """Calls of the API. What it refuses ends the command."""

    def __init__(self, client: "httpx2.Client", out: Output) -> None:
        self._client = client
        self._out = out

    def call(self, method: str, path: str, **more: Any) -> Doc:
        import httpx2

        try:
            answer = self._client.request(method, path, **more)
        except httpx2.HTTPError as fault:
            self._out.say(f"error: {self._client.base_url} cannot be reached: {fault}")
            self._out.say("  Is it running? Start it with `lucius lifebook dev`, or set LIFEBOOK_URL.")
            raise typer.Exit(EXIT_UNREACHABLE) from None
        try:
            document: Doc = answer.json()
        except ValueError:
            document = {"code": "INTERNAL", "detail": f"an answer that is not JSON ({answer.status_code})"}
        if answer.status_code < 400:
            return document
        if self._out.as_json:
            self._out.json(answer.content)
        self._out.say(f"error: {document.get('code')}: {document.get('detail')}")
        for each in document.get("errors", ()):
            self._out.say(f"  {each['pointer'] or '/'}: {each['message']}")
        allowed = answer.status_code not in (401, 403)
        raise typer.Exit(EXIT_FAILED if allowed else EXIT_UNREACHABLE)

    def show(self, job_id: str) -> Doc:
        return self.call("GET", f"/v1/runs/{quote(job_id, safe='')}")


@contextmanager
def _calls(out: Output) -> Iterator[_Calls]:
    import httpx2

    key = os.environ.get("LIFEBOOK_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = os.environ.get("LIFEBOOK_URL") or DEFAULT_URL
    with httpx2.Client(base_url=url, headers=headers, timeout=CALL_SECONDS_MAX) as client:
        yield _Calls(client, out)


@app.command()
def run(
    workflow_id: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow to run.")],
    workspace: Annotated[str, typer.Option(help="The workspace that owns the run.")] = "demo",
    user: Annotated[str, typer.Option(help="The initiating user.")] = "cli",
    given: Annotated[str, typer.Option("--input", metavar="JSON", help="The input, as JSON.")] = "{}",
    key: Annotated[str | None, typer.Option(help="Idempotency key; a new one unless given.")] = None,
    credits_estimate: Annotated[str | None, typer.Option("--credits", help="Credits to reserve.")] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, max=100, help="Attempts it may have.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the end of the run.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Ask for a run, and wait for its end."""
    out = Output(as_json=as_json)
    try:
        value = json.loads(given)
    except ValueError:
        raise typer.BadParameter("--input is not JSON.") from None
    asked = {
        "workspace_id": workspace,
        "user_id": user,
        "workflow_id": workflow_id,
        "input": value,
        "idempotency_key": key or secrets.token_hex(16),
    }
    if credits_estimate is not None:
        asked["credits_estimate"] = credits_estimate
    if max_attempts is not None:
        asked["max_attempts"] = max_attempts
    with _calls(out) as calls:
        submitted = calls.call("POST", "/v1/runs", json=asked)
        if not wait:
            _show(out, submitted, submitted["job_id"])
            return
        job = _watch(calls, out, submitted["job_id"])
    _show(out, job, f"{job['job_id']} {job['status']}")
    if job["status"] != "completed":
        out.say(f"{job['last_error_code']}: {job['last_error_message']}")
        raise typer.Exit(EXIT_ENDED_BADLY)


def _watch(calls: _Calls, out: Output, job_id: str) -> Doc:
    seen = None
    while True:
        job = calls.show(job_id)
        at = (job["status"], job["step_cursor"], job["attempts"])
        if at != seen:
            out.say(f"{job['status']}: step {job['step_cursor']} of {job['steps_total']}")
            seen = at
        if job["status"] in TERMINAL:
            return job
        time.sleep(LOOK_SECONDS)


def _show(out: Output, document: Doc, text: str) -> None:
    if out.as_json:
        out.json(msgspec.json.encode(document))
    else:
        out.data(text)


@app.command()
def show(job_id: JobId, as_json: JsonFlag = False) -> None:
    """Show a run, field by field."""
    out = Output(as_json=as_json)
    with _calls(out) as calls:
        _shown(out, calls.show(job_id))


def _shown(out: Output, job: Doc) -> None:
    if out.as_json:
        out.json(msgspec.json.encode(job))
        return
    for name, value in job.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        out.data(f"{name:<20} {text}")


@app.command("list")
def list_runs(
    workspace: Annotated[str, typer.Option(help="The workspace whose runs are listed.")] = "demo",
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Where a page before this one ended.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the runs of a workspace, newest first."""
    out = Output(as_json=as_json)
    asked = {"workspace_id": workspace, "limit": str(limit), **({"cursor": cursor} if cursor else {})}
    with _calls(out) as calls:
        page = calls.call("GET", "/v1/runs", params=asked)
    if as_json:
        out.json(msgspec.json.encode(page))
        return
    names = ("job_id", "status", "workflow_id", "trigger_type", "credits_estimate", "created_at")
    out.table(names, [tuple(row[name] for name in names) for row in page["items"]])
    if page["next_cursor"]:
        out.say(f"More: --cursor {page['next_cursor']}")


@app.command()
def cancel(job_id: JobId, as_json: JsonFlag = False) -> None:
    """Cancel a run: at once, or before its next step."""
    _control(job_id, "cancel", as_json)


@app.command()
def redrive(job_id: JobId, as_json: JsonFlag = False) -> None:
    """Give a dead run new attempts; finished steps are not run again."""
    _control(job_id, "redrive", as_json)


def _control(job_id: str, what: str, as_json: bool) -> None:
    out = Output(as_json=as_json)
    with _calls(out) as calls:
        job = calls.call("POST", f"/v1/runs/{quote(job_id, safe='')}:{what}")
    _show(out, job, f"{job['job_id']} {job['status']}")


@app.command()
def dlq(
    redrive: Annotated[
        bool,
        typer.Option(
            "--redrive", help="Give every dead run new attempts, and return the other messages to the queue."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the messages in the dead-letter queue, or bring them back; looking takes none out."""
    out = Output(as_json=as_json)
    if redrive:
        _redrive_all(out)
        return
    with _calls(out) as calls:
        page = calls.call("GET", "/v1/dlq")
    if as_json:
        out.json(msgspec.json.encode(page))
        return
    names = ("message_id", "job_id", "status", "last_error_code", "reason")
    out.table(names, [tuple(row[name] or "" for name in names) for row in page["items"]])


def _redrive_all(out: Output) -> None:
    with _calls(out) as calls:
        done = calls.call("POST", "/v1/dlq:redrive")
    _show(out, done, "\n".join(done["redriven"]))
    moved = "moved by SQS" if done["task"] else f"{done['returned']} returned to the queue"
    out.say(f"{len(done['redriven'])} runs redriven, other messages: {moved}")
    for each in done["refused"]:
        out.say(f"{each['job_id']} stays dead: {each['code']}: {each['detail']}")
    if done["refused"]:
        raise typer.Exit(EXIT_ENDED_BADLY)


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    workspace: Annotated[list[str], typer.Option(help="A workspace it is for, or *; may be repeated.")],
    role: Annotated[list[str], typer.Option(help="submit, read or control; may be repeated.")],
) -> None:
    """Make an API key: prints it once, and on stderr the entry for the file LIFEBOOK_API_KEYS names."""
    from lucius.lifebook.keys import ROLES, key_entry

    if unknown := sorted(set(role) - set(ROLES)):
        raise typer.BadParameter(f"{unknown[0]} is no role; roles are {', '.join(ROLES)}.")
    out = Output(as_json=False)
    made = f"lbk_{secrets.token_hex(32)}"
    out.data(made)
    out.say(key_entry(name, made, workspaces=workspace, roles=role).decode())


@app.command()
def worker(
    workflows: WorkflowsOption = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, max=256, help="Runs at a time; LIFEBOOK_CONCURRENCY unless given.")
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep/--no-sweep", help="Also look for what was left behind.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Say as JSON on stdout when it is up.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Work: receive messages, run steps, until SIGTERM or Ctrl-C."""
    _run_part("worker", log_level, workflows=workflows, concurrency=concurrency, sweep=sweep, as_json=as_json)


@app.command()
def api(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8421,
    workflows: WorkflowsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say as JSON on stdout when it is up.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve the API of runs."""
    _run_part("api", log_level, workflows=workflows, host=host, port=port, as_json=as_json)


@app.command()
def dev(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 takes a free one.")] = 8421,
    workflows: WorkflowsOption = None,
    sample: Annotated[bool, typer.Option("--sample/--no-sample", help="Run the sample workflow.")] = True,
    once: Annotated[bool, typer.Option("--once", help="End when the sample run has ended.")] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Run everything on this machine: local DynamoDB and SQS, the API, a worker, a sample run."""
    _run_part("dev", log_level, workflows=workflows, port=port, sample=sample, once=once)


def _run_part(part: str, log_level: str, **options: Any) -> NoReturn:
    out = Output(as_json=False)
    try:
        from lucius.cli import lifebook_parts
        from lucius.lifebook.aws import AwsUnavailable
        from lucius.lifebook.local import LocalAwsFailed
        from lucius.lifebook.settings import BadVariable
    except ModuleNotFoundError as fault:
        if fault.name not in ("boto3", "botocore"):
            raise
        out.say(f"error: {NEEDS_AWS}")
        raise typer.Exit(EXIT_USAGE) from None
    try:
        code = lifebook_parts.run_part(part, log_level, out, options)
    except BadVariable as fault:
        out.say(f"error: {fault}")
        raise typer.Exit(EXIT_USAGE) from None
    except (AwsUnavailable, LocalAwsFailed) as fault:
        out.say(f"error: {fault}")
        raise typer.Exit(EXIT_UNREACHABLE) from None
    raise typer.Exit(code)
