"""`lucius plan`, `lucius why`, `lucius jobs explain` and `lucius jobs adopt`: why, and what to do about it.

In: the arguments. Out: what the API said, for people or as JSON. Times in the API's sentences are UTC.
"""

import re
from typing import Annotated, Final

import msgspec
import typer

from lucius.cli.context import CommandContext, JsonFlag, KeyOption, checked_key, context
from lucius.cli.http import EXIT_FAILED, ApiAnswer, job_path
from lucius.cli.ids import each_job
from lucius.cli.jobs import JobArgument, JobsArgument, start_again
from lucius.cli.render import Doc, ago, docs_in, event_line, instant_ms, plain, span
from lucius.cli.submit import (
    CommandParts,
    CorrelationOption,
    DocOption,
    DocumentArgument,
    FileArgument,
    InputOption,
    ModeOption,
    OutputOption,
    PayloadOption,
    PriorityOption,
    TenantOption,
    TypeOption,
    envelope_of,
)

OLD_COUNT_MS: Final = 10_000

_ADOPTABLE: Final = re.compile(r"( at (\w+) succeeded too late \(event (\d+)\): its result can be adopted)")


def plan(
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
    """Say what would become of a command, and everything that is wrong with it. Nothing is submitted."""
    parts = CommandParts(
        file=file,
        document=document,
        copies=False,
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
        answer = at.need(at.api.post("/v1/orchestrate:plan", envelope, key=checked))
        if as_json:
            at.out.json(answer.body)
        else:
            _print_plan(at, answer.doc)
        if answer.doc.get("accepted") is not True:
            raise typer.Exit(EXIT_FAILED)


def _print_plan(at: CommandContext, doc: Doc) -> None:
    lane, mode = doc.get("lane"), doc.get("mode")
    decided = f"{plain(doc.get('decision_source'))}, {plain(doc.get('decision_reason'))}"
    at.out.facts(
        ("accepted", "yes" if doc.get("accepted") is True else "no"),
        ("duplicate of", doc.get("duplicate_of")),
        ("protocol", doc.get("protocol_id")),
        ("mode", None if mode is None else f"{plain(mode)} ({decided})"),
        ("lane", None if lane is None else f"{plain(lane)} ({plain(doc.get('topic'))})"),
        ("in flight", _fullness(doc.get("limits"))),
    )
    rows: list[tuple[object, ...]] = [
        (step.get("stepId"), step.get("step_type"), step.get("service"), _json_text(step.get("payload")))
        for step in docs_in(doc.get("steps"))
    ]
    if rows:
        at.out.data("")
        at.out.table(("STEP", "TYPE", "SERVICE", "PAYLOAD"), rows)
    for problem in docs_in(doc.get("problems")):
        at.out.say(f"{plain(problem.get('code'))}: {_where(problem)}{plain(problem.get('message'))}")


def _where(problem: Doc) -> str:
    return f"{plain(problem['pointer'])}: " if problem.get("pointer") else ""


def _fullness(limits: object) -> str | None:
    if not isinstance(limits, dict):
        return None
    parts = []
    for name in ("tenant", "total", "burst"):
        count = limits.get(name)
        if isinstance(count, dict):
            parts.append(f"{name} {plain(count.get('in_flight'))} of {plain(count.get('max'))}")
    return ", ".join(parts) or None


def _json_text(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def explain(job_ids: JobsArgument, as_json: JsonFlag = False) -> None:
    """Say why jobs are where they are, what they wait for, and what happens next. Times are UTC."""
    with context(as_json=as_json) as at:

        def print_one(answer: ApiAnswer) -> None:
            if as_json:
                at.out.json(answer.body)
                return
            _print_explanation(at, answer.doc)
            if len(job_ids) > 1:
                at.out.data("")

        each_job(at, job_ids, lambda each: at.api.get(job_path(each, ":explain")), print_one)


def _print_explanation(at: CommandContext, doc: Doc) -> None:
    now_ms = at.now_ms()
    coming, attempt, service = doc.get("next"), doc.get("attempt"), doc.get("service")
    following = None
    if isinstance(coming, dict):
        when = "" if coming.get("at") is None else f", {ago(coming['at'], now_ms)}"
        following = f"{plain(coming.get('what'))}{when}"
    tried = None
    if isinstance(attempt, dict):
        tried = f"{plain(attempt.get('number'))} of {plain(attempt.get('of'))}"
    asked = None
    if isinstance(service, dict):
        last = service.get("last_asked_at")
        asked = plain(service.get("name")) + ("" if last is None else f", last asked {ago(last, now_ms)}")
    at.out.data(plain(doc.get("summary")))
    at.out.data("")
    at.out.facts(
        ("job", doc.get("jobId")),
        ("state", doc.get("state")),
        ("waits for", doc.get("waiting_for")),
        ("since", ago(doc.get("since"), now_ms)),
        ("next", following),
        ("step", doc.get("stepId")),
        ("attempt", tried),
        ("service", asked),
    )
    for event in docs_in(doc.get("late_answers")):
        at.out.data(f"late answer  {event_line(event).lstrip()}")
    hints = doc.get("hints")
    for hint in hints if isinstance(hints, list) else ():
        at.out.data(f"hint: {_as_command(plain(hint), plain(doc.get('jobId')))}")


def why(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's jobs.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what all open jobs wait for, in groups, the worst first. Times are UTC."""
    with context(as_json=as_json) as at:
        answer = at.need(at.api.get("/v1/why", None if tenant is None else {"tenant_id": tenant}))
        if as_json:
            at.out.json(answer.body)
        else:
            _print_groups(at, answer.doc)


def _print_groups(at: CommandContext, doc: Doc) -> None:
    groups = docs_in(doc.get("items"))
    rows: list[tuple[object, ...]] = [
        (group.get("severity"), group.get("code"), _group_text(group)) for group in groups
    ]
    if rows:
        at.out.table(("SEVERITY", "WAITS FOR", "WHY"), rows)
    else:
        at.out.data("nothing waits: no job is open")
    if doc.get("more") is True:
        at.out.say("there are more groups; --tenant shows those of one tenant")
    if doc.get("counted_at") is None:
        at.out.say("the open jobs are still being counted: some may be missing")
    elif (age_ms := _age_ms(at, doc)) >= OLD_COUNT_MS:
        at.out.say(f"the open jobs were counted {span(age_ms)} ago")


def _age_ms(at: CommandContext, doc: Doc) -> int:
    counted_ms = instant_ms(doc.get("counted_at"))
    return 0 if counted_ms is None else at.now_ms() - counted_ms


def _group_text(group: Doc) -> str:
    text, tenants = plain(group.get("text")), docs_in(group.get("tenants"))
    if len(tenants) < 2:
        return text
    named = ", ".join(f"{plain(each.get('tenant_id'))} {plain(each.get('jobs'))}" for each in tenants)
    return f"{text} ({named})"


def usage(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None,
    first: Annotated[
        str | None,
        typer.Option("--from", metavar="DAY", help="The first day, such as 2026-01-01; of the month."),
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DAY", help="The last day; today.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what services reported that they used, by tenant, day and service. Days are UTC."""
    given = {"tenant_id": tenant, "from": first, "to": last}
    with context(as_json=as_json) as at:
        asked = {name: value for name, value in given.items() if value is not None}
        answer = at.need(at.api.get("/v1/usage", asked))
        if as_json:
            at.out.json(answer.body)
            return
        doc = answer.doc
        rows: list[tuple[object, ...]] = [
            (
                item.get("tenant_id"),
                item.get("day"),
                item.get("service"),
                item.get("results"),
                _numbers(item.get("usage")),
            )
            for item in docs_in(doc.get("items"))
        ]
        if not rows:
            at.out.data(
                f"no service reported anything from {plain(doc.get('from'))} to {plain(doc.get('to'))}"
            )
            return
        at.out.table(("TENANT", "DAY", "SERVICE", "RESULTS", "USAGE"), rows)
        at.out.data("")
        at.out.data(f"in all  {_numbers(doc.get('totals'))}")
        if doc.get("more") is True:
            at.out.say("there is more than is shown; --tenant, --from and --to narrow it")


def _numbers(numbers: object) -> str:
    if not isinstance(numbers, dict):
        return ""
    return ", ".join(f"{plain(name)} {plain(number)}" for name, number in sorted(numbers.items()))


def _as_command(hint: str, job_id: str) -> str:
    """A hint says what may be done; at a terminal, with the command that does it."""
    # A function, since an id in a template could be read as a group.
    return _ADOPTABLE.sub(
        lambda late: f"{late[1]} with `lucius jobs adopt {job_id} --step {late[2]} --seq {late[3]}`", hint
    )


def adopt(
    job_id: JobArgument,
    step_id: Annotated[str, typer.Option("--step", metavar="STEP_ID", help="The step, such as step_02.")],
    seq: Annotated[int, typer.Option("--seq", min=1, help="The event that holds the late success.")],
    key: KeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Start a new job that takes a success that came too late as a step's result. Prints the new id.

    `lucius jobs explain` names the step and the event. Needs the admin role.
    """
    body = msgspec.json.encode({"stepId": step_id, "seq": seq})
    with context(as_json=as_json) as at:
        start_again(at, [job_id], lambda each: job_path(each, ":adopt"), body, key=checked_key(key))
