"""The client for code that does not await.

In and out: exactly what `lucius.client.Lucius` takes and gives, and the same exceptions. Every call is
carried out by that client on a private loop in a thread of its own; nothing is written twice here.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lucius.client.aio import Command, Key
from lucius.client.aio import Lucius as AsyncLucius
from lucius.client.environment import ClientEnvironment
from lucius.client.models import Accepted, Answer, Event, Job, Page, Plan, Problem, Protocol, Step
from lucius.client.wire import TIMEOUT_SECONDS, OnRetry, RetryPolicy

if TYPE_CHECKING:
    from typing import Unpack

    import httpx2

Value = TypeVar("Value")

_END = object()


class Lucius:
    """Use it in a `with`, or close it: it keeps a thread and a connection. Any thread may call."""

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
        self._lucius = AsyncLucius(
            url,
            api_key,
            timeout_seconds=timeout_seconds,
            retry=retry,
            on_retry=on_retry,
            outside=outside,
            transport=transport,
        )
        self.url = self._lucius.url
        self._loop = asyncio.new_event_loop()
        # A daemon: a program that forgot to close still ends.
        self._thread = threading.Thread(target=self._loop.run_forever, name="lucius-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._do(self._lucius.aclose())
        self._do(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def request(
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
        return self._do(
            self._lucius.request(
                method,
                path,
                params=params,
                body=body,
                idempotency_key=idempotency_key,
                wait_seconds=wait_seconds,
                repeatable=repeatable,
            )
        )

    def submit(
        self,
        envelope: Mapping[str, Any] | bytes | None = None,
        *,
        idempotency_key: Key = None,
        **members: "Unpack[Command]",
    ) -> Accepted:
        return self._do(self._lucius.submit(envelope, idempotency_key=idempotency_key, **members))

    def submit_raw(self, body: bytes, *, idempotency_key: Key = None) -> Answer:
        return self._do(self._lucius.submit_raw(body, idempotency_key=idempotency_key))

    def batch(self, envelopes: Sequence[Mapping[str, Any]]) -> list[Accepted | Problem]:
        return self._do(self._lucius.batch(envelopes))

    def plan(self, envelope: Mapping[str, Any] | bytes | None = None, **members: "Unpack[Command]") -> Plan:
        return self._do(self._lucius.plan(envelope, **members))

    def run(
        self,
        envelope: Mapping[str, Any] | bytes | None = None,
        *,
        idempotency_key: Key = None,
        within_seconds: float | None = None,
        **members: "Unpack[Command]",
    ) -> Job:
        return self._do(
            self._lucius.run(
                envelope, idempotency_key=idempotency_key, within_seconds=within_seconds, **members
            )
        )

    def wait(self, job_id: str, *, within_seconds: float | None = None) -> Job:
        return self._do(self._lucius.wait(job_id, within_seconds=within_seconds))

    def job(self, job_id: str, wait_seconds: float = 0) -> Job:
        return self._do(self._lucius.job(job_id, wait_seconds))

    def steps(self, job_id: str) -> tuple[Step, ...]:
        return self._do(self._lucius.steps(job_id))

    def events(self, job_id: str, after: int = 0) -> Iterator[Event]:
        return self._each(self._lucius.events(job_id, after))

    def watch(self, job_id: str, after: int = 0) -> Iterator[Event]:
        return self._each(self._lucius.watch(job_id, after))

    def jobs(
        self,
        *,
        tenant_id: str | None = None,
        state: str | None = None,
        request_type: str | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Job]:
        return self._each(
            self._lucius.jobs(
                tenant_id=tenant_id,
                state=state,
                request_type=request_type,
                created_after=created_after,
                created_before=created_before,
                limit=limit,
            )
        )

    def jobs_page(self, *, cursor: str | None = None, **filters: str | int | None) -> Page[Job]:
        return self._do(self._lucius.jobs_page(cursor=cursor, **filters))

    def dlq(
        self,
        *,
        tenant_id: str | None = None,
        request_type: str | None = None,
        error_code: str | None = None,
        failed_after: str | None = None,
        failed_before: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Job]:
        return self._each(
            self._lucius.dlq(
                tenant_id=tenant_id,
                request_type=request_type,
                error_code=error_code,
                failed_after=failed_after,
                failed_before=failed_before,
                limit=limit,
            )
        )

    def cancel(self, job_id: str) -> Job:
        return self._do(self._lucius.cancel(job_id))

    def pause(self, job_id: str) -> Job:
        return self._do(self._lucius.pause(job_id))

    def resume(self, job_id: str) -> Job:
        return self._do(self._lucius.resume(job_id))

    def rerun(self, job_id: str, *, from_step: str | None = None, idempotency_key: str | None = None) -> Job:
        return self._do(self._lucius.rerun(job_id, from_step=from_step, idempotency_key=idempotency_key))

    def adopt(self, job_id: str, step_id: str, seq: int, *, idempotency_key: str | None = None) -> Job:
        return self._do(self._lucius.adopt(job_id, step_id, seq, idempotency_key=idempotency_key))

    def redrive(self, job_id: str, *, idempotency_key: str | None = None) -> Job:
        return self._do(self._lucius.redrive(job_id, idempotency_key=idempotency_key))

    def explain(self, job_id: str) -> dict[str, Any]:
        return self._do(self._lucius.explain(job_id))

    def protocols(self) -> tuple[Protocol, ...]:
        return self._do(self._lucius.protocols())

    def protocol(self, protocol_id: str) -> Protocol:
        return self._do(self._lucius.protocol(protocol_id))

    def retry_outbox(self) -> int:
        return self._do(self._lucius.retry_outbox())

    def _do(self, call: Coroutine[Any, Any, Value]) -> Value:
        """Carries a call out on the loop; an interrupt here ends it there."""
        if self._loop.is_closed():
            call.close()
            raise RuntimeError("This client is closed.")
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _each(self, items: AsyncGenerator[Value, None]) -> Iterator[Value]:
        try:
            while (item := self._do(_next(items))) is not _END:
                yield item
        finally:
            if not self._loop.is_closed():
                self._do(items.aclose())


async def _next(items: AsyncGenerator[Any, None]) -> Any:
    return await anext(items, _END)
