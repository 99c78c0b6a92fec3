"""For operators: the outbox, the finally failed, the protocols, health, metrics."""

from typing import Final

from starlette.responses import Response

from lucius.api.gate import Principal
from lucius.api.health import alive, ready
from lucius.api.jobs import PAGE_ITEMS_MAX, find_job, run_again
from lucius.api.pages import cursor_at, page_of_jobs, place_at, visible_rows
from lucius.api.parameters import DLQ_PARAMETERS, dlq_filter, stray, whole_number
from lucius.api.problems import answer
from lucius.api.reasons import policy_view
from lucius.api.routing import Call, OpenCall, Result
from lucius.contracts.keys import Role
from lucius.core.model import Json, ProtocolSpec
from lucius.core.refusal import Code, Refused
from lucius.jobs.reruns import NOT_ON_THE_LIST
from lucius.ledger.lists import JobPage, ListedJob
from lucius.ledger.rows import ListRow
from lucius.registry.payload_examples import payload_example

SAMPLE_TENANT: Final = "sample"


async def retry_outbox(call: Call) -> Result:
    if call.caller.tenants is not None:
        message = "this concerns the rows of every tenant, and the caller is limited to some"
        return Refused(Code.FORBIDDEN, message)
    return answer({"made_due": await call.deps.retry_now.all_due()})


async def list_dlq(call: Call) -> Result:
    request = call.request
    limit = stray(request, *DLQ_PARAMETERS) or whole_number(request, "limit", 50, 1, PAGE_ITEMS_MAX)
    if isinstance(limit, Refused):
        return limit
    wanted = dlq_filter(request, call.deps.now_ms(), call.caller.tenants)
    if isinstance(wanted, Refused):
        return wanted
    place = place_at(request.query_params.get("cursor"))
    if isinstance(place, Refused):
        return place

    lists = call.deps.lists

    async def read(after: str, count: int) -> list[tuple[str, ListRow]]:
        return await lists.dlq(after, count, wanted)

    async def passes(row: ListRow) -> bool:
        return await lists.passes_dlq(row, wanted)

    async def find() -> JobPage:
        passing = passes if wanted.of_rows else None
        rows, more = await visible_rows(read, call.caller, place, limit, passing)
        jobs = tuple(ListedJob(row.job_id, cursor_at(key)) for key, row in rows)
        return JobPage(jobs=jobs, next_cursor=None if more is None else cursor_at(more))

    return await page_of_jobs(call.deps, request, find)


async def redrive(call: Call) -> Result:
    loaded = await find_job(call)
    return NOT_ON_THE_LIST if isinstance(loaded, Refused) else await run_again(call, call.deps.reruns.redrive)


async def list_protocols(call: Call) -> Result:
    registry = call.deps.registry
    items = [_protocol_view(protocol) for protocol in registry.all()]
    return answer({"items": items, "next_cursor": None, "problems": list(registry.problems())})


async def get_protocol(call: Call) -> Result:
    protocol = call.deps.registry.find(call.path_id)
    if protocol is None:
        return Refused(Code.NOT_FOUND, "there is no protocol of this id")
    return answer({**_protocol_view(protocol), "example": await _example(call, protocol)})


async def _example(call: Call, protocol: ProtocolSpec) -> dict[str, Json] | None:
    """A command for this protocol that is accepted here, about a sample document; None if there is none."""
    deps, caller = call.deps, call.caller
    payload = payload_example(protocol)
    if deps.samples is None or payload is None:
        return None
    # What the first service gets is a document to be read, or its text.
    kind = "pdf" if protocol.steps[0].step_type == "OCR" else "text"
    document = await deps.samples.document_uri(kind)
    if document is None:
        return None
    request_type = protocol.request_types[0]
    command: dict[str, Json] = {
        "tenant_id": min(caller.tenants) if caller.tenants else SAMPLE_TENANT,
        "request_type": request_type,
        "input_ref": {"uri": document},
        "output_ref": {"uri": deps.samples.output_uri(f"{protocol.protocol_id}.result.json")},
        "payload": payload,
        "schema_version": "1",
    }
    plan = await deps.planning.plan(command, key_header=None)
    return None if plan.problems else command


async def livez(call: OpenCall) -> Result:
    return alive()


async def readyz(call: OpenCall) -> Result:
    return await ready(call.deps.checks)


async def metrics(call: OpenCall) -> Result:
    """The names of tenants are for callers only who may see all of them. Reads memory, never the ledger."""
    caller = await call.deps.gate.admit(call.request, Role.READ)
    sees_all = isinstance(caller, Principal) and caller.tenants is None
    accept = call.request.headers.get("accept", "")
    text, media_type = call.deps.watching.metrics.text(accept, tenants=sees_all)
    return Response(text, media_type=media_type)


def _protocol_view(protocol: ProtocolSpec) -> dict[str, Json]:
    return {
        "protocol_id": protocol.protocol_id,
        "request_types": list(protocol.request_types),
        "steps": [
            {
                "step_type": step.step_type,
                "service": step.service,
                "payload_key": step.payload_key,
                "payload_schema": step.payload_schema,
                "defaults": step.defaults,
                **policy_view(step.policy),
                "stop_on_pause": step.stop_on_pause,
            }
            for step in protocol.steps
        ],
    }
