"""A whole Lucius to send requests to, without sockets: the application over a store in this process.

In: a seed, a layout, whether commits may span partitions, and limits. Out: answers to requests, and how much
was written meanwhile. The clock stands still until it is told to move, and ids come from the seed, so the
same requests to a new server of the same seed get the same answers.
"""

import asyncio
import logging
import random
import sys
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec
import structlog

from lucius.api.access import AccessObserver, AccessOptions
from lucius.api.app import make_app
from lucius.api.dependencies import ApiDependencies, Fleet, InstallationFacts
from lucius.api.gate import GuardedGate
from lucius.api.job_feed import JobFeed
from lucius.api.job_waits import JobWaits
from lucius.api.streams import Streams
from lucius.assembly.kernel import Kernel, KernelOptions
from lucius.bus.memory import MemoryBus
from lucius.contracts.keys import KeyRequest, Role
from lucius.core.model import Json
from lucius.core.refusal import Refused
from lucius.engines.activity_rows import ActivityRows
from lucius.engines.outbox.dispatcher import LedgerDispatcher
from lucius.engines.outbox.retry_now import RetryNow
from lucius.engines.outbox.sweeper import Sweeper
from lucius.engines.process_reports import ProcessReports, WorkerSightings
from lucius.engines.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.engines.webhooks.address import CallbackPolicy, system_resolver
from lucius.engines.webhooks.delivery import WebhookDelivery
from lucius.engines.webhooks.sender import WebhookSender
from lucius.jobs.admission import InFlightLimits
from lucius.jobs.new_job import NewIds
from lucius.jobs.planning import CommandPlanner
from lucius.jobs.tokens import CallbackTokens, SigningKey
from lucius.ledger.api_keys import ApiKeyStore
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.lists import Lists
from lucius.ledger.memory import MemoryStore
from lucius.ledger.names import Tables
from lucius.ledger.store import Op
from lucius.registry.builtin import BuiltinRegistry
from lucius.telemetry import Metrics
from lucius.telemetry.activity import Activity

BEGAN_AT_MS = 1_800_000_000_000
SLA_MS = 7 * 86_400_000
LOOK_EVERY_MS = 1_000
BASE_URL = "http://lucius.test"
WORKSPACE = "s3://workspace"
STREAMS_MAX = 16
# How often a caller that is still there lets others run before it hangs up: far more than a call needs that
# does not wait, and no time at all for one that would wait for half a minute.
TURNS_BEFORE_HANGUP = 200
CONSUMER_WAIT_MS = 60_000

Headers = Sequence[tuple[bytes, bytes]]


class FuzzAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class FuzzServer:
    """The API over the real kernel, as the composition root builds it, but without the outside world."""

    def __init__(
        self,
        seed: int,
        *,
        layout: LayoutName = LayoutName.LEDGER,
        spans: bool = True,
        limits: InFlightLimits | None = None,
    ) -> None:
        self.now_at_ms = BEGAN_AT_MS
        self.writes = 0
        """How many rows were written or deleted so far."""
        self._chance = random.Random(seed)  # noqa: S311 - to be repeatable, not to be secret
        self._numbers = count(1)
        store = MemoryStore(spans=spans, after_commit=self._committed)
        self.kernel = Kernel(
            store,
            KernelOptions(
                registry=BuiltinRegistry(),
                layout=layout,
                sla_ms=SLA_MS,
                workspace_root=WORKSPACE,
                callbacks=CallbackPolicy(),
                limits=limits or InFlightLimits(),
            ),
            now_ms=self.now_ms,
            ids=self,
        )
        self.ledger = self.kernel.ledger
        self.bus = MemoryBus(now_ms=self.now_ms)
        self.deployment = self._make_deployment()
        self.app = make_app(self.deployment)
        self.consumer = ReplyConsumer(
            self.bus,
            self.deployment.inputs,
            ConsumerLimits(wait_ms=CONSUMER_WAIT_MS),
            ping_ledger=store.ping,
        )

    # Time and chance

    def now_ms(self) -> int:
        return self.now_at_ms

    def new_lease_id(self) -> str:
        return self._chance.randbytes(12).hex()

    def new_ids(self) -> NewIds:
        number = next(self._numbers)
        return NewIds(
            job_id=f"job_{number:026d}",
            correlation_id=f"c{number}",
            traceparent=f"00-{number:032x}-{number:016x}-01",
        )

    def _new_key_parts(self) -> tuple[str, str]:
        return self._chance.randbytes(8).hex(), self._chance.randbytes(32).hex()

    # Requests

    async def key(self, *roles: Role, tenants: frozenset[str] | None = None) -> str:
        """A new API key that holds these roles; None: for every tenant."""
        wish = KeyRequest(name="fuzz", tenants=tenants, roles=frozenset(roles), services=None)
        made = await self.deployment.keys.create(wish)
        if isinstance(made, Refused):
            raise TypeError(made.message)
        return made.text

    async def request(
        self, method: str, path: str, *, headers: Headers = (), body: bytes = b"", query: bytes = b""
    ) -> FuzzAnswer:
        """One request through the whole application. What the application raises is raised here."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("utf-8", "surrogatepass"),
            "query_string": query,
            "root_path": "",
            "headers": [(b"host", b"lucius.test"), *headers],
            "client": ("127.0.0.1", 1),
            "server": ("lucius.test", 80),
        }
        caller = _FuzzCaller(body)
        await self.app(scope, caller.receive, caller.send)
        return caller.answer()

    async def call(self, method: str, path: str, key: str | None, document: Json = None) -> FuzzAnswer:
        """A request with a credential and a JSON document, both of which may be missing."""
        headers = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]
        path, _, query = path.partition("?")
        body = b"" if document is None else msgspec.json.encode(document)
        return await self.request(method, path, headers=headers, body=body, query=query.encode())

    # Composition

    def _committed(self, ops: Sequence[Op]) -> None:
        self.writes += len(ops)

    def _make_deployment(self) -> ApiDependencies:
        kernel, now_ms, ledger = self.kernel, self.now_ms, self.kernel.ledger
        tokens = CallbackTokens([SigningKey(kid="fuzz", secret=self._chance.randbytes(32).hex())])
        dispatcher = LedgerDispatcher(
            kernel.fair_share,
            kernel.writer,
            kernel.due_handler,
            tokens,
            callback_base=BASE_URL,
            now_ms=now_ms,
            look_every_ms=LOOK_EVERY_MS,
        )
        kernel.writer.reserve_waiter = dispatcher.waiter_for
        self.sweeper = Sweeper(kernel.indexes, kernel.due_handler, now_ms=now_ms, look_every_ms=LOOK_EVERY_MS)
        waiting = JobWaits(ledger)
        streams = Streams(ledger, clock=self._seconds, streams_max=STREAMS_MAX)
        sender = WebhookSender(CallbackPolicy(), system_resolver, lambda: (), user_agent="Lucius-Fuzz")
        webhooks = WebhookDelivery(ledger, sender, now_ms=now_ms, look_every_ms=LOOK_EVERY_MS)
        metrics = Metrics(lambda name: kernel.options.registry.resolve(name) is not None)
        feed = JobFeed(ledger, streams)
        for watcher in (feed, dispatcher, self.sweeper, waiting, streams, webhooks, metrics):
            kernel.listeners.add(watcher.watch)
        activity, workers = Activity(), WorkerSightings(now_ms=now_ms)
        kernel.listeners.add(activity.watch)
        keys = ApiKeyStore(ledger.store, Tables().meta, now_ms=now_ms, new_parts=self._new_key_parts)
        return ApiDependencies(
            gate=GuardedGate(keys),
            keys=keys,
            submitter=kernel.submitter,
            admission=kernel.admission,
            planning=CommandPlanner(kernel.submitter, kernel.admission, ledger, now_ms=now_ms),
            reruns=kernel.reruns,
            inputs=kernel.writer,
            dispatcher=dispatcher,
            retry_now=RetryNow(kernel.indexes, kernel.services, kernel.writer),
            tokens=tokens,
            registry=kernel.options.registry,
            ledger=ledger,
            lists=Lists(ledger, kernel.tenants),
            waiting=waiting,
            streams=streams,
            feed=feed,
            webhooks=webhooks,
            flow=kernel.flow,
            scheduler=kernel.make_scheduler(kernel.writer, look_every_ms=LOOK_EVERY_MS),
            fleet=Fleet(
                reports=ProcessReports(
                    ledger,
                    workers,
                    metrics,
                    process="fuzz",
                    part="all",
                    version="0",
                    shared=False,
                    now_ms=now_ms,
                ),
                activity=ActivityRows(ledger, activity, "fuzz", now_ms=now_ms),
                tenants=kernel.tenants,
                modes=kernel.options.modes,
            ),
            workers=workers,
            usage=kernel.usage,
            installation=InstallationFacts(
                engine=kernel.options.engine, auth_required=True, oidc=None, trace_link=None, artifacts=False
            ),
            watching=AccessObserver(metrics, AccessOptions(), clock=self._seconds, new_id=self.new_lease_id),
            checks={},
            now_ms=now_ms,
        )

    def _seconds(self) -> float:
        return self.now_at_ms / 1000


class _FuzzCaller:
    """Sends its body at once, stays for as long as an answer that does not wait takes, then hangs up."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status = 0
        self._headers: dict[str, str] = {}
        self._chunks: list[bytes] = []

    async def receive(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        for _ in range(TURNS_BEFORE_HANGUP):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            pairs = message["headers"]
            self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
        elif message["type"] == "http.response.body":
            self._chunks.append(message.get("body", b""))

    def answer(self) -> FuzzAnswer:
        return FuzzAnswer(status=self._status, headers=self._headers, body=b"".join(self._chunks))


def quiet() -> None:
    """Refusals by the thousand are no news: nothing is logged but faults."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
