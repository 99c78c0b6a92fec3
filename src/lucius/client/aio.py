"""The client: one method a call of the public API, and the few that make several of them pleasant.

In: commands, ids, wishes. Out: values of `models`; refusals and faults are `errors`. Every command carries an
idempotency key or is its own (`BY_CONTENT`), so that a broken connection never makes two jobs of one.
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, TypeVar
from urllib.parse import quote

import msgspec

from lucius.client.environment import ClientEnvironment
from lucius.client.errors import JobStillOpen, LuciusError, ended_well
from lucius.client.models import (
    Accepted,
    Answer,
    Batched,
    Event,
    Job,
    MadeDue,
    Page,
    Plan,
    Problem,
    Protocol,
    Step,
)
from lucius.client.target import DEFAULT_URL, header_safe, target_of
from lucius.client.watching import GAP_SECONDS, events_after, job_of, job_path, watch
from lucius.client.wire import TIMEOUT_SECONDS, HttpConnection, OnRetry, RetryPolicy, decoded
from lucius.tls import client_tls_of

if TYPE_CHECKING:
    from typing import Unpack

    import httpx2

Doc = TypeVar("Doc")

BATCH_COMMANDS_MAX: Final = 500
HOLD_SECONDS: Final = 20.0
SCHEMA_VERSION: Final = "1"
DLQ_PATH: Final = "/v1/admin/dlq"


class ByContent(Enum):
    """Instead of a key: the same content is the same command, and its job is found again."""

    BY_CONTENT = "by content"


BY_CONTENT: Final = ByContent.BY_CONTENT
Key = str | ByContent | None


class Command(TypedDict, total=False):
    """The members of an envelope. A ref may be its URI alone; payload and schema version have defaults."""

    tenant_id: str
    request_type: str
    input_ref: str | Mapping[str, Any]
    output_ref: str | Mapping[str, Any]
    payload: Mapping[str, Any]
    schema_version: str
    mode: str
    doc_id: str
    callback_urls: Mapping[str, str]
    correlation_id: str
    traceparent: str
    priority: int


class Lucius:
    """A client of one Lucius; without arguments, of `LUCIUS_URL` with `LUCIUS_API_KEY`. Over https
    it trusts `LUCIUS_TLS_CA`, and shows `LUCIUS_TLS_CLIENT_CERTIFICATE` with `LUCIUS_TLS_CLIENT_KEY`."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry: RetryPolicy | None = None,
        on_retry: OnRetry | None = None,
        outside: ClientEnvironment | None = None,
        transport: "httpx2.AsyncBaseTransport | None" = None,
    ) -> None:
        around = outside or ClientEnvironment()
        target = target_of(
            url or around.env.get("LUCIUS_URL") or DEFAULT_URL,
            around.env.get("LUCIUS_API_KEY") if api_key is None else api_key,
            url_name="LUCIUS_URL" if url is None else "The url",
            key_name="LUCIUS_API_KEY" if api_key is None else "the api_key",
        )
        if isinstance(target, str):
            raise ValueError(target)  # noqa: TRY004 (the text says what is wrong with a value)
        self.url = target.url
        self._wire = HttpConnection(
            target,
            timeout_seconds=timeout_seconds,
            retry=retry or RetryPolicy(),
            outside=around,
            on_retry=on_retry,
            transport=transport,
            tls=client_tls_of(around.env) if target.url.startswith("https:") else None,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._wire.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        idempotency_key: str | None = None,
        wait_seconds: float = 0,
        repeatable: bool | None = None,
    ) -> Answer:
        """Any call, its answer as it came. By default, a GET and a call with a key may be repeated."""
        safe = method == "GET" or idempotency_key is not None if repeatable is None else repeatable
        return await self._wire.call(
            method,
            path,
            params=params,
            body=body,
            key=_checked(idempotency_key),
            wait_seconds=wait_seconds,
            repeatable=safe,
        )

    async def submit(
        self,
        envelope: Mapping[str, Any] | bytes | None = None,
        *,
        idempotency_key: Key = None,
        **members: "Unpack[Command]",
    ) -> Accepted:
        """Submits a command: an envelope, its members, or both (members win). Bytes are sent as they are."""
        answer = await self.submit_raw(_envelope(envelope, members), idempotency_key=idempotency_key)
        return decoded(answer, Accepted)

    async def submit_raw(self, body: bytes, *, idempotency_key: Key = None) -> Answer:
        """Submits an envelope byte for byte; the answer as it came."""
        key = self._key_for(body, idempotency_key)
        return await self._wire.call("POST", "/v1/orchestrate", body=body, key=key)

    async def batch(self, envelopes: Sequence[Mapping[str, Any]]) -> list[Accepted | Problem]:
        """Up to 500 commands at once: in their order, each one's answer or its problem."""
        if len(envelopes) > BATCH_COMMANDS_MAX:
            raise ValueError(f"A batch holds at most {BATCH_COMMANDS_MAX} commands, not {len(envelopes)}.")
        keyed = [
            envelope
            if envelope.get("idempotency_key") is not None
            else {**envelope, "idempotency_key": self._wire.outside.new_key()}
            for envelope in envelopes
        ]
        answer = await self._wire.call("POST", "/v1/orchestrate:batch", body=_encode({"commands": keyed}))
        return [_batch_item(answer, item) for item in decoded(answer, Batched).items]

    async def plan(
        self, envelope: Mapping[str, Any] | bytes | None = None, **members: "Unpack[Command]"
    ) -> Plan:
        """What would happen to a command; nothing is written."""
        body = _envelope(envelope, members)
        return decoded(await self._wire.call("POST", "/v1/orchestrate:plan", body=body), Plan)

    async def run(
        self,
        envelope: Mapping[str, Any] | bytes | None = None,
        *,
        idempotency_key: Key = None,
        within_seconds: float | None = None,
        **members: "Unpack[Command]",
    ) -> Job:
        """Submits a command and waits for its job's success. `JobFailed` and `JobCancelled` hold the job."""
        accepted = await self.submit(envelope, idempotency_key=idempotency_key, **members)
        return ended_well(await self.wait(accepted.job_id, within_seconds=within_seconds))

    async def wait(self, job_id: str, *, within_seconds: float | None = None) -> Job:
        """The job, however it ended. `JobStillOpen` once `within_seconds` are up; the job goes on."""
        clock = asyncio.get_running_loop().time
        until = math.inf if within_seconds is None else clock() + within_seconds
        while True:
            job = await job_of(self._wire, job_id, min(HOLD_SECONDS, max(until - clock(), 0.0)))
            if job.terminal:
                return job
            if clock() >= until:
                raise JobStillOpen(job, within_seconds or 0.0)
            # A server that does not hold the answer must not be asked without a breath in between.
            await self._wire.outside.sleep(GAP_SECONDS)

    async def job(self, job_id: str, wait_seconds: float = 0) -> Job:
        """The job with its steps; held by the server for up to 60 s until it ends."""
        return await job_of(self._wire, job_id, wait_seconds)

    async def steps(self, job_id: str) -> tuple[Step, ...]:
        return decoded(await self._wire.call("GET", job_path(job_id, "/steps")), Page[Step]).items

    def events(self, job_id: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """The audit trail as it is, oldest first, page after page."""
        return events_after(self._wire, job_id, after)

    def watch(self, job_id: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """Every event, those to come included, until the job ends; across broken connections and restarts."""
        return watch(self._wire, job_id, after)

    def jobs(
        self,
        *,
        tenant_id: str | None = None,
        state: str | None = None,
        request_type: str | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[Job, None]:
        """All jobs that fit, newest first; `limit` is the size of a page."""
        wanted = _params(
            tenant_id=tenant_id,
            state=state,
            request_type=request_type,
            created_after=created_after,
            created_before=created_before,
            limit=limit,
        )
        return self._listed("/v1/jobs", wanted)

    async def jobs_page(self, *, cursor: str | None = None, **filters: str | int | None) -> Page[Job]:
        """One page of jobs, for callers that keep the cursor themselves."""
        params = _params(cursor=cursor, **filters)
        return decoded(await self._wire.call("GET", "/v1/jobs", params=params), Page[Job])

    def dlq(
        self,
        *,
        tenant_id: str | None = None,
        request_type: str | None = None,
        error_code: str | None = None,
        failed_after: str | None = None,
        failed_before: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[Job, None]:
        """The finally failed jobs that fit, the last that failed first; `limit` is the size of a page."""
        wanted = _params(
            tenant_id=tenant_id,
            request_type=request_type,
            error_code=error_code,
            failed_after=failed_after,
            failed_before=failed_before,
            limit=limit,
        )
        return self._listed(DLQ_PATH, wanted)

    async def cancel(self, job_id: str) -> Job:
        return await self._control(job_id, "cancel")

    async def pause(self, job_id: str) -> Job:
        return await self._control(job_id, "pause")

    async def resume(self, job_id: str) -> Job:
        return await self._control(job_id, "resume")

    async def rerun(
        self, job_id: str, *, from_step: str | None = None, idempotency_key: str | None = None
    ) -> Job:
        """A new job from one that ended. Without a key a job has at most one open rerun, and this is it."""
        body = None if from_step is None else _encode({"from_step": from_step})
        return await self._started(job_path(job_id, ":rerun"), body, idempotency_key)

    async def adopt(self, job_id: str, step_id: str, seq: int, *, idempotency_key: str | None = None) -> Job:
        """A rerun that takes the late success recorded as event `seq` as the step's result."""
        body = _encode({"stepId": step_id, "seq": seq})
        return await self._started(job_path(job_id, ":adopt"), body, idempotency_key)

    async def redrive(self, job_id: str, *, idempotency_key: str | None = None) -> Job:
        """Runs a finally failed job again, as a new one."""
        path = f"{DLQ_PATH}/{quote(job_id, safe='')}:redrive"
        return await self._started(path, None, idempotency_key)

    async def explain(self, job_id: str) -> dict[str, Any]:
        """Why the job is where it is, and what happens next; the document as the API sends it."""
        return (await self._wire.call("GET", job_path(job_id, ":explain"))).doc

    async def protocols(self) -> tuple[Protocol, ...]:
        return decoded(await self._wire.call("GET", "/v1/protocols"), Page[Protocol]).items

    async def protocol(self, protocol_id: str) -> Protocol:
        path = f"/v1/protocols/{quote(protocol_id, safe='')}"
        return decoded(await self._wire.call("GET", path), Protocol)

    async def retry_outbox(self) -> int:
        """Makes every waiting directive due now; how many there were."""
        return decoded(await self._wire.call("POST", "/v1/admin/outbox/retry"), MadeDue).made_due

    async def _control(self, job_id: str, verb: str) -> Job:
        return decoded(await self._wire.call("POST", job_path(job_id, f":{verb}")), Job)

    async def _started(self, path: str, body: bytes | None, key: str | None) -> Job:
        answer = await self._wire.call("POST", path, body=body, key=_checked(key), repeatable=key is not None)
        return decoded(answer, Job)

    async def _listed(self, path: str, params: dict[str, str]) -> AsyncGenerator[Job, None]:
        seen: set[str] = set()
        while True:
            page = decoded(await self._wire.call("GET", path, params=params), Page[Job])
            for job in page.items:
                yield job
            if page.next_cursor is None:
                return
            cursor = str(page.next_cursor)
            if cursor in seen:
                raise LuciusError(None, 200, "The list leads back to a page that was read already.")
            seen.add(cursor)
            params = {**params, "cursor": cursor}

    def _key_for(self, body: bytes, wish: Key) -> str | None:
        """The key to send beside an envelope; None where the envelope has its own, or is its own."""
        if isinstance(wish, str):
            return _checked(wish)
        if wish is BY_CONTENT or _own_key(body):
            return None
        return self._wire.outside.new_key()


class _Keyed(msgspec.Struct):
    idempotency_key: Any = None


def _own_key(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_Keyed).idempotency_key is not None
    except (msgspec.DecodeError, RecursionError):
        return False  # the server will say what is wrong with it


def _checked(key: str | None) -> str | None:
    if key is not None and (not key.strip() or not header_safe(key)):
        raise ValueError("An idempotency key takes printable ASCII characters.")
    return key


def _params(**values: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _envelope(envelope: Mapping[str, Any] | bytes | None, members: Mapping[str, Any]) -> bytes:
    if isinstance(envelope, bytes):
        if members:
            raise TypeError("An envelope in bytes is sent as it is: it takes no members beside it.")
        return envelope
    given = {name: value for name, value in members.items() if value is not None}
    for name in ("input_ref", "output_ref"):
        if isinstance(given.get(name), str):
            given[name] = {"uri": given[name]}
    defaults = {"payload": {}, "schema_version": SCHEMA_VERSION} if envelope is None else {}
    return _encode({**defaults, **(envelope or {}), **given})


def _encode(document: Mapping[str, Any]) -> bytes:
    """JSON as the API takes it; what JSON cannot carry (NaN, lone surrogates) is a ValueError here."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _batch_item(answer: Answer, item: msgspec.Raw) -> Accepted | Problem:
    one = Answer(status=answer.status, headers=answer.headers, body=bytes(item))
    try:
        return decoded(one, Accepted)
    except LuciusError:
        return decoded(one, Problem)
