"""Temporal as the other rooms see it: start a job's workflow, signal it, is it there.

Nothing is connected before the first call, and a lost connection is made again by the next one. A job has at
most one workflow under its id: starting a second is refused by the server while the first is open or has
ended well, and allowed after one that failed, was terminated or timed out, so that repair can begin again.
For a job that is known to be open it is allowed after any that has ended.
"""

import asyncio
import logging
from datetime import timedelta
from functools import cache
from typing import Any

import msgspec
import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.common import (
    Priority,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.runtime import LogForwardingConfig, LoggingConfig, MetricBuffer, Runtime, TelemetryConfig
from temporalio.service import GrpcCompression, RetryConfig, RPCError, RPCStatusCode

from lucius.contracts.internal import JobDefaults, Position, StepSignal
from lucius.core.priority import PRIORITY_MOST
from lucius.core.states import STEP_ACTIVE
from lucius.engines.temporal.workflow import STATE_ATTRIBUTE, WORKFLOW_NAME
from lucius.jobs.workflows import StartOutcome, WorkflowLabels, WorkflowsUnavailable
from lucius.ledger.names import tenant_group

log = structlog.get_logger("lucius.temporal")

TENANT_ATTRIBUTE = SearchAttributeKey.for_keyword("LuciusTenant")
REQUEST_TYPE_ATTRIBUTE = SearchAttributeKey.for_keyword("LuciusRequestType")
ATTRIBUTES = (TENANT_ATTRIBUTE, REQUEST_TYPE_ATTRIBUTE, STATE_ATTRIBUTE)

UNLABELLED_STARTS = 1_000  # without labels, once the namespace refused them, before trying again
RPC_SECONDS_MAX = 5.0
REUSE_OF_FAILED = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
REUSE_OF_ANY = WorkflowIDReusePolicy.ALLOW_DUPLICATE
CLOSING_TRIES = 10
CLOSING_SECONDS = 0.1
CONNECT_SECONDS_MAX = 5.0
# The callers try again themselves, and better: a reply stays on the bus, a job in the due index.
RETRIES = RetryConfig(max_elapsed_time_millis=2_000, max_retries=3)


class TemporalTarget(msgspec.Struct, frozen=True, kw_only=True):
    address: str = "127.0.0.1:7233"
    namespace: str = "default"
    task_queue: str = "lucius"
    tls: bool = False
    api_key: str | None = None


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    execution_timeout_seconds: float | None = None
    local_calls: bool = True
    eager: bool = False
    attributes: bool = True  # search attributes, where the namespace has them
    history_events_max: int | None = None
    created_with: JobDefaults | None = None


class TemporalLink:
    """The one connection of a process."""

    def __init__(self, target: TemporalTarget, *, metrics: MetricBuffer | None = None) -> None:
        """`metrics`: takes what the library counts, and must be emptied now and then. None: nothing is
        counted."""
        self.target = target
        self._runtime = _shared_runtime() if metrics is None else _make_runtime(metrics)
        self._client: Client | None = None

    async def client(self) -> Client:
        """Not connected yet, perhaps."""
        if self._client is None:
            self._client = await _connect(self.target, self._runtime, lazy=True)
        return self._client

    async def connected(self) -> Client:
        """For a worker, which cannot wait for its first call. Raises `WorkflowsUnavailable`."""
        try:
            return await _connect(self.target, self._runtime, lazy=False)
        except RuntimeError as fault:
            raise WorkflowsUnavailable(str(fault)) from None

    async def ping(self) -> None:
        """Raises `WorkflowsUnavailable` unless Temporal answers and knows the namespace."""
        client = await self.client()
        try:
            if not await client.service_client.check_health(timeout=_span(RPC_SECONDS_MAX)):
                raise WorkflowsUnavailable("Temporal is up but does not serve")
            await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace=self.target.namespace), timeout=_span(RPC_SECONDS_MAX)
            )
        except (RPCError, RuntimeError) as fault:
            raise WorkflowsUnavailable(_said(fault)) from None

    async def register_attributes(self) -> None:
        """Adds our search attributes where that is ours to do; elsewhere they are there or they are not.
        Raises `WorkflowsUnavailable`."""
        client = await self.client()
        namespace = self.target.namespace
        try:
            known = await client.operator_service.list_search_attributes(
                ListSearchAttributesRequest(namespace=namespace), timeout=_span(RPC_SECONDS_MAX)
            )
            missing = [key.name for key in ATTRIBUTES if key.name not in known.custom_attributes]
            if missing:
                keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
                await client.operator_service.add_search_attributes(
                    AddSearchAttributesRequest(
                        namespace=namespace, search_attributes=dict.fromkeys(missing, keyword)
                    ),
                    timeout=_span(RPC_SECONDS_MAX),
                )
        except RPCError as fault:
            if _is_connection(fault):
                raise WorkflowsUnavailable(_said(fault)) from None
            log.warning("search_attributes_not_registered", error=_said(fault))
        except RuntimeError as fault:
            raise WorkflowsUnavailable(str(fault)) from None


class TemporalStarter:
    def __init__(self, link: TemporalLink, options: StartOptions) -> None:
        self._link = link
        self._options = options
        self._registered = False
        self._unlabelled_left = 0

    async def start(
        self, job_id: str, position: Position, labels: WorkflowLabels | None = None, *, is_open: bool = False
    ) -> StartOutcome:
        """Raises `WorkflowsUnavailable`."""
        reuse = REUSE_OF_ANY if is_open else REUSE_OF_FAILED
        whole = labels
        if not self._options.attributes:
            labels = None
        elif self._unlabelled_left > 0:
            self._unlabelled_left -= 1
            labels = None
        if labels is not None and not self._registered:
            await self._link.register_attributes()
            self._registered = True
        try:
            return await self._start(job_id, position, whole, labels, reuse)
        except RPCError as fault:
            if labels is None or not _is_about_attributes(fault):
                raise WorkflowsUnavailable(_said(fault)) from None
        # They are not registered, or a node does not know them yet: a job matters more than its labels.
        log.warning("search_attributes_refused", jobId=job_id)
        self._unlabelled_left = UNLABELLED_STARTS
        try:
            return await self._start(job_id, position, whole, None, reuse)
        except RPCError as fault:
            raise WorkflowsUnavailable(_said(fault)) from None

    async def _start(
        self,
        job_id: str,
        position: Position,
        whole: WorkflowLabels | None,
        labels: WorkflowLabels | None,
        reuse: WorkflowIDReusePolicy,
    ) -> StartOutcome:
        """`labels`: those to search by."""
        tenant = None if whole is None else whole.tenant
        client = await self._link.client()
        seconds = self._options.execution_timeout_seconds
        try:
            await client.start_workflow(
                WORKFLOW_NAME,
                self._assignment(job_id, position, tenant, labels),
                id=job_id,
                task_queue=self._link.target.task_queue,
                execution_timeout=None if seconds is None else _span(seconds),
                id_reuse_policy=reuse,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                search_attributes=None if labels is None else _attributes(labels, position),
                request_eager_start=self._options.eager,
                rpc_timeout=_span(RPC_SECONDS_MAX),
                priority=Priority() if whole is None else _priority(whole),
            )
        except WorkflowAlreadyStartedError:
            return StartOutcome.RUNNING
        except RuntimeError as fault:
            raise WorkflowsUnavailable(str(fault)) from None
        return StartOutcome.STARTED

    def _assignment(
        self, job_id: str, position: Position, tenant: str | None, labels: WorkflowLabels | None
    ) -> dict[str, Any]:
        given: dict[str, Any] = {"jobId": job_id, "position": msgspec.to_builtins(position)}
        if tenant is not None:
            given["tenant_id"] = tenant
        if self._options.created_with is not None:
            given["created_with"] = msgspec.to_builtins(self._options.created_with)
        if not self._options.local_calls:
            given["local_calls"] = False
        if position.step_state in STEP_ACTIVE:
            given["ask_first"] = True
        if labels is not None:
            given["show_state"] = True
        if self._options.history_events_max is not None:
            given["history_events_max"] = self._options.history_events_max
        return given


class TemporalSignaller:
    def __init__(self, link: TemporalLink) -> None:
        self._link = link

    async def signal(self, job_id: str, name: str, signal: StepSignal) -> bool:
        """False if the workflow is closed or unknown, which is no error. Raises `WorkflowsUnavailable`."""
        client = await self._link.client()
        handle, content = client.get_workflow_handle(job_id), msgspec.to_builtins(signal)
        for tries_left in reversed(range(CLOSING_TRIES)):
            try:
                await handle.signal(name, content, rpc_timeout=_span(RPC_SECONDS_MAX))
            except RPCError as fault:
                if fault.status is RPCStatusCode.NOT_FOUND and "namespace" not in fault.message.lower():
                    return False
                if not _is_closing(fault) or not tries_left:
                    raise WorkflowsUnavailable(_said(fault)) from None
                await asyncio.sleep(CLOSING_SECONDS)
            except RuntimeError as fault:
                raise WorkflowsUnavailable(str(fault)) from None
            else:
                break
        return True


async def _connect(target: TemporalTarget, runtime: Runtime, *, lazy: bool) -> Client:
    return await Client.connect(
        target.address,
        namespace=target.namespace,
        tls=target.tls,
        api_key=target.api_key,
        lazy=lazy,
        runtime=runtime,
        retry_config=RETRIES,
        connect_timeout=_span(CONNECT_SECONDS_MAX),
        # Our messages are a few hundred bytes: packing them costs more than it saves.
        grpc_compression=GrpcCompression.NONE,
    )


@cache
def _shared_runtime() -> Runtime:
    return _make_runtime(None)


def _make_runtime(metrics: MetricBuffer | None) -> Runtime:
    """Left to itself the library's core writes what it has to say to standard output, where data belongs."""
    forwarding = LogForwardingConfig(logging.getLogger("lucius.temporal.core"), append_target_to_name=False)
    kept = LoggingConfig(filter=LoggingConfig.default.filter, forwarding=forwarding)
    return Runtime(telemetry=TelemetryConfig(logging=kept, metrics=metrics, attach_service_name=False))


def _priority(labels: WorkflowLabels) -> Priority:
    """Orders the tasks of workflows where the task queue is behind; Temporal has five levels, 1 the first."""
    level = (PRIORITY_MOST - labels.priority) // 2 + 1
    return Priority(priority_key=level, fairness_key=tenant_group(labels.tenant))


def _attributes(labels: WorkflowLabels, position: Position) -> TypedSearchAttributes:
    return TypedSearchAttributes(
        [
            SearchAttributePair(TENANT_ATTRIBUTE, labels.tenant),
            SearchAttributePair(REQUEST_TYPE_ATTRIBUTE, labels.request_type),
            SearchAttributePair(STATE_ATTRIBUTE, position.job_state.value),
        ]
    )


def _is_about_attributes(fault: RPCError) -> bool:
    return fault.status is RPCStatusCode.INVALID_ARGUMENT and "search attribute" in fault.message.lower()


def _is_closing(fault: RPCError) -> bool:
    """Its last task is being written down: in a moment it is closed, or goes on as it was."""
    return fault.status is RPCStatusCode.RESOURCE_EXHAUSTED and "closing" in fault.message.lower()


def _is_connection(fault: RPCError) -> bool:
    return fault.status in (
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.CANCELLED,
        RPCStatusCode.RESOURCE_EXHAUSTED,
    )


def _said(fault: RPCError | RuntimeError) -> str:
    return f"{fault.status.name}: {fault.message}" if isinstance(fault, RPCError) else str(fault)


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
