"""Commands come in: one, or many at once."""

import asyncio

from fastapi import APIRouter, Request, Response

from lucius.api.bodies import BATCH_BYTES_MAX, ENVELOPE_BYTES_MAX, read_body, read_json
from lucius.api.dependencies import ApiDependencies
from lucius.api.gate import Principal
from lucius.api.parameters import header_text, idempotency_key
from lucius.api.problems import answer, problem, problem_document, unreadable
from lucius.api.turns import Turns
from lucius.contracts.documents import parse_json, parse_list
from lucius.contracts.envelope import parse_envelope
from lucius.contracts.keys import Role
from lucius.core.model import Json
from lucius.core.refusal import Code, FieldError, Refused
from lucius.jobs.submit import Submitted
from lucius.ledger.store import StoreError, Unreadable

BATCH_COMMANDS_MAX = 500
BATCH_COMMANDS_AT_ONCE = 128


def routes(deps: ApiDependencies) -> APIRouter:
    router = APIRouter()
    turns = Turns()

    async def orchestrate(request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.SUBMIT)
        if isinstance(caller, Refused):
            return problem(caller)
        document = await read_json(request)
        if isinstance(document, Refused):
            return problem(document)
        key = idempotency_key(request)
        if isinstance(key, Refused):
            return problem(key)
        result = await _submit(deps, caller, document, key, header_text(request, "traceparent"))
        if isinstance(result, Refused):
            return problem(result)
        more = {"Location": f"/v1/jobs/{result.job_id}"}
        if result.duplicate:
            more["Idempotent-Replayed"] = "true"
        return answer(_accepted(result), status=202, headers=more)

    router.post("/v1/orchestrate", operation_id="orchestrate")(orchestrate)
    router.post("/v1/commands", operation_id="submitCommand")(orchestrate)

    @router.post("/v1/orchestrate:batch", operation_id="orchestrateBatch")
    async def batch(request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.SUBMIT)
        if isinstance(caller, Refused):
            return problem(caller)
        if idempotency_key(request) is not None:
            fault = FieldError("/commands", "each envelope has an idempotency_key of its own")
            return problem(Refused(Code.INVALID_ENVELOPE, "a batch has no idempotency key", (fault,)))
        raw = await read_body(request, BATCH_BYTES_MAX)
        commands = (
            raw if isinstance(raw, Refused) else parse_list(raw, "commands", items_max=BATCH_COMMANDS_MAX)
        )
        if isinstance(commands, Refused):
            return problem(commands)
        if len(commands) > BATCH_COMMANDS_MAX:
            fault = FieldError("/commands", f"may hold {BATCH_COMMANDS_MAX} envelopes")
            return problem(Refused(Code.INVALID_ENVELOPE, "the batch is too long", (fault,)))
        return answer({"items": await _batch_items(deps, caller, commands, turns)})

    return router


async def _batch_items(
    deps: ApiDependencies, caller: Principal, commands: list[bytes], turns: Turns
) -> list[Json]:
    """So many of a batch at a time: another batch need not wait until the last of this one is done."""
    own = asyncio.Semaphore(BATCH_COMMANDS_AT_ONCE)

    async def item(command: bytes) -> Json:
        async with own, turns.turn(len(command)):
            return await _batch_item(deps, caller, command)

    return list(await asyncio.gather(*map(item, commands)))


async def _batch_item(deps: ApiDependencies, caller: Principal, raw: bytes) -> Json:
    """What is wrong with one envelope, its numbers and its depth included, spoils only itself."""
    try:
        result = await _submit_raw(deps, caller, raw)
    except Unreadable as fault:
        result = unreadable(fault)
    except StoreError:
        result = Refused(Code.SYSTEM_SATURATED, "the ledger cannot take more now", retry_after_seconds=1)
    if isinstance(result, Submitted):
        return _accepted(result)
    if result.retry_after_seconds is None:
        return problem_document(result)
    return problem_document(result, retry_after_seconds=result.retry_after_seconds)  # an item has no headers


async def _submit_raw(deps: ApiDependencies, caller: Principal, raw: bytes) -> Submitted | Refused:
    if len(raw) > ENVELOPE_BYTES_MAX:
        return Refused(Code.BODY_TOO_LARGE, f"an envelope may have {ENVELOPE_BYTES_MAX} bytes")
    command = parse_json(raw)
    return command if isinstance(command, Refused) else await _submit(deps, caller, command, None, None)


async def _submit(
    deps: ApiDependencies, caller: Principal, document: Json, key: str | None, traceparent: str | None
) -> Submitted | Refused:
    envelope = parse_envelope(document, key_header=key, traceparent_header=traceparent)
    if isinstance(envelope, Refused):
        return envelope
    if not caller.sees(envelope.tenant_norm):
        fault = FieldError("/tenant_id", "is not one of the caller's tenants")
        return Refused(Code.FORBIDDEN, "the caller may not submit for this tenant", (fault,))
    return await deps.submitter.submit(envelope)


def _accepted(result: Submitted) -> dict[str, Json]:
    return {"jobId": result.job_id, "state": result.state.value, "duplicate": result.duplicate}
