"""Commands: one, or many in one call."""

import asyncio

from lucius.api.bodies import BATCH_BYTES_MAX, ENVELOPE_BYTES_MAX, read_body, read_json
from lucius.api.parameters import header_text, idempotency_key
from lucius.api.problems import answer, problem_document, unreadable
from lucius.api.routing import ACCEPTED, DUPLICATE, Call, CommandsAnswer, Result
from lucius.contracts.documents import parse_json, parse_list
from lucius.contracts.envelope import parse_envelope
from lucius.core.model import Json
from lucius.core.refusal import Code, FieldError, Refused
from lucius.jobs.submit import Submitted
from lucius.ledger.store import StoreError, Unreadable

BATCH_COMMANDS_MAX = 500
BATCH_COMMANDS_AT_ONCE = 128


async def orchestrate(call: Call) -> Result:
    request = call.request
    document = await read_json(request)
    if isinstance(document, Refused):
        return document
    key = idempotency_key(request)
    if isinstance(key, Refused):
        return key
    result = await _submit(call, document, key, header_text(request, "traceparent"))
    if isinstance(result, Refused):
        return result
    more = {"Location": f"/v1/jobs/{result.job_id}"}
    if result.duplicate:
        more["Idempotent-Replayed"] = "true"
    return CommandsAnswer(answer(_accepted(result), status=202, headers=more), (_outcome(result),))


async def batch(call: Call) -> Result:
    if idempotency_key(call.request) is not None:
        fault = FieldError("/commands", "each envelope has an idempotency_key of its own")
        return Refused(Code.INVALID_ENVELOPE, "a batch has no idempotency key", (fault,))
    raw = await read_body(call.request, BATCH_BYTES_MAX)
    if isinstance(raw, Refused):
        return raw
    commands = parse_list(raw, "commands", items_max=BATCH_COMMANDS_MAX)
    if isinstance(commands, Refused):
        return commands
    if len(commands) > BATCH_COMMANDS_MAX:
        fault = FieldError("/commands", f"may hold {BATCH_COMMANDS_MAX} envelopes")
        return Refused(Code.INVALID_ENVELOPE, "the batch is too long", (fault,))
    results = await _batch_results(call, commands)
    return CommandsAnswer(answer({"items": list(map(_item, results))}), tuple(map(_outcome, results)))


async def _batch_results(call: Call, commands: list[bytes]) -> list[Submitted | Refused]:
    """So many of a batch at a time: another batch need not wait until the last of this one is done."""
    own = asyncio.Semaphore(BATCH_COMMANDS_AT_ONCE)

    async def submit(command: bytes) -> Submitted | Refused:
        async with own, call.deps.batch_turns.turn(len(command)):
            return await _submit_of_batch(call, command)

    return list(await asyncio.gather(*map(submit, commands)))


async def _submit_of_batch(call: Call, raw: bytes) -> Submitted | Refused:
    """What is wrong with one envelope, its numbers and its depth included, spoils only itself."""
    if len(raw) > ENVELOPE_BYTES_MAX:
        return Refused(Code.BODY_TOO_LARGE, f"an envelope may have {ENVELOPE_BYTES_MAX} bytes")
    command = parse_json(raw)
    if isinstance(command, Refused):
        return command
    try:
        return await _submit(call, command, None, None)
    except Unreadable as fault:
        return unreadable(fault)
    except StoreError:
        return Refused(Code.SYSTEM_SATURATED, "the ledger cannot take more now", retry_after_seconds=1)


async def _submit(
    call: Call, document: Json, key: str | None, traceparent: str | None
) -> Submitted | Refused:
    envelope = parse_envelope(document, key_header=key, traceparent_header=traceparent)
    if isinstance(envelope, Refused):
        return envelope
    if not call.caller.sees(envelope.tenant_norm):
        fault = FieldError("/tenant_id", "is not one of the caller's tenants")
        return Refused(Code.FORBIDDEN, "the caller may not submit for this tenant", (fault,))
    return await call.deps.submitter.submit(envelope)


def _accepted(result: Submitted) -> dict[str, Json]:
    return {"jobId": result.job_id, "state": result.state.value, "duplicate": result.duplicate}


def _item(result: Submitted | Refused) -> Json:
    if isinstance(result, Submitted):
        return _accepted(result)
    if result.retry_after_seconds is None:
        return problem_document(result)
    return problem_document(result, retry_after_seconds=result.retry_after_seconds)  # an item has no headers


def _outcome(result: Submitted | Refused) -> str:
    if isinstance(result, Refused):
        return result.code.value
    return DUPLICATE if result.duplicate else ACCEPTED
