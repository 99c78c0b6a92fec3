"""The topics and subscriptions of a namespace, as a place to provision.

In: what is wanted. Out: what is there, in the words of `plan`. Knows Microsoft's administration client. Of
what that client says about a fault nothing is repeated, since it may hold an address or a key.

Service Bus gives a new subscription a rule that takes everything, and the client has no way to name another
at once. So there is a moment in which a new subscription takes what is for others; what came in then is
reported.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Self

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.core.pipeline.transport import AsyncHttpTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import SubscriptionProperties, TopicProperties

from lucius.bus.service_bus.connection import NamespaceAccess
from lucius.provision import plan
from lucius.provision.apply import AccessFailed, ActionFailed, ProvisionTask
from lucius.provision.plan import Resource, ResourceKind
from lucius.provision.service_bus_rules import filter_for, takes_of

AT_ONCE_MAX: Final = 4
RETRIES_MAX: Final = 3
RETRY_SECONDS: Final = 0.5
CONNECT_SECONDS_MAX: Final = 10.0
CALL_SECONDS_MAX: Final = 60.0
DEFAULT_RULE: Final = "$Default"
# What Service Bus itself has where nothing is ever deleted, and from where on we take it for never.
NEVER_SPAN: Final = "P10675199DT2H48M5.477539S"
NEVER_DAYS_MIN: Final = 3_650
ROLE: Final = "it takes the role Azure Service Bus Data Owner, or a key with the right to manage"


class ServiceBusTarget:
    """Made by `ServiceBusTarget.open`."""

    def __init__(self, client: ServiceBusAdministrationClient) -> None:
        # It logs addresses; what matters comes as the fault.
        logging.getLogger("azure.servicebus").setLevel(logging.CRITICAL)
        self._client = client
        self._free = asyncio.Semaphore(AT_ONCE_MAX)

    @classmethod
    def open(cls, access: NamespaceAccess, *, transport: AsyncHttpTransport[Any, Any] | None = None) -> Self:
        """`transport`: what carries the calls, closed with the place; None: the usual one. Nothing is sent
        yet. Raises `ValueError`."""
        options: dict[str, Any] = {
            "retry_total": RETRIES_MAX,
            "retry_backoff_factor": RETRY_SECONDS,
            "connection_timeout": CONNECT_SECONDS_MAX,
            "read_timeout": CALL_SECONDS_MAX,
        }
        if transport is not None:
            options["transport"] = transport
        if access.connection_string is None:
            if access.namespace is None or access.credential is None:
                raise ValueError("Service Bus needs a connection string, or a namespace and an identity")
            return cls(ServiceBusAdministrationClient(access.namespace, access.credential, **options))
        try:
            client = ServiceBusAdministrationClient.from_connection_string(
                access.connection_string, **options
            )
        except (ValueError, UnboundLocalError):
            raise ValueError("the connection string of Service Bus cannot be read") from None
        return cls(client)

    async def close(self) -> None:
        await self._client.close()

    async def look(self, wanted: Sequence[Resource]) -> list[Resource]:
        topics = {thing.name.lower() for thing in wanted if thing.kind is ResourceKind.TOPIC}
        subscriptions: dict[str, set[str]] = {}
        for thing in wanted:
            if thing.kind is ResourceKind.SUBSCRIPTION:
                topic, _, name = thing.name.lower().partition("/")
                subscriptions.setdefault(topic, set()).add(name)
        try:
            there = [each async for each in self._client.list_topics() if each.name.lower() in topics]
            async with asyncio.TaskGroup() as looking:
                tasks = [
                    looking.create_task(self._look_at(each.name, subscriptions.get(each.name.lower(), set())))
                    for each in there
                ]
        except (AzureError, OSError, TimeoutError, ExceptionGroup) as fault:
            raise AccessFailed(_not_done(_first(fault)).reason) from None
        return [*map(_topic, there), *(thing for task in tasks for thing in task.result())]

    async def work(self, jobs: Sequence[ProvisionTask]) -> Mapping[str, ActionFailed]:
        """One thing of a topic at a time: Service Bus refuses changes of one that cross each other."""
        groups: dict[str, list[ProvisionTask]] = {}
        for job in jobs:
            groups.setdefault(job.thing.name.partition("/")[0].lower(), []).append(job)
        answers = await asyncio.gather(*(self._work_at(group) for group in groups.values()))
        return {name: not_done for each in answers for name, not_done in each.items()}

    async def _look_at(self, topic: str, names: set[str]) -> list[Resource]:
        async with self._free:
            found: list[Resource] = []
            async for each in self._client.list_subscriptions(topic):
                if each.name.lower() in names:
                    rules = [rule async for rule in self._client.list_rules(topic, each.name)]
                    found.append(_subscription(topic, each, takes_of(rules), several=len(rules) > 1))
            return found

    async def _work_at(self, jobs: Sequence[ProvisionTask]) -> dict[str, ActionFailed]:
        not_done: dict[str, ActionFailed] = {}
        async with self._free:
            for job in jobs:
                if (answer := await self._put_right(job)) is not None:
                    not_done[job.thing.name] = answer
        return not_done

    async def _put_right(self, job: ProvisionTask) -> ActionFailed | None:
        make = self._make_topic if job.thing.kind is ResourceKind.TOPIC else self._make_subscription
        change = self._change_topic if job.thing.kind is ResourceKind.TOPIC else self._change_subscription
        try:
            return await (change(job) if job.settings else make(job.thing))
        except (AzureError, OSError, TimeoutError) as fault:
            return _not_done(fault)

    async def _make_topic(self, thing: Resource) -> ActionFailed | None:
        await _unless_there(
            self._client.create_topic(
                thing.name,
                requires_duplicate_detection=bool(thing.settings[plan.DUPLICATE_DETECTION]),
                duplicate_detection_history_time_window=_span(thing, plan.DUPLICATE_WINDOW),
            )
        )
        return None

    async def _make_subscription(self, thing: Resource) -> ActionFailed | None:
        topic, _, name = thing.name.partition("/")
        await _unless_there(
            self._client.create_subscription(
                topic,
                name,
                lock_duration=_span(thing, plan.LOCK),
                max_delivery_count=int(thing.settings[plan.DELIVERIES]),
                dead_lettering_on_message_expiration=bool(thing.settings[plan.DEAD_LETTER_EXPIRED]),
                requires_session=bool(thing.settings[plan.SESSIONS]),
            )
        )
        if thing.settings[plan.TAKES] == plan.EVERYTHING:
            return None
        await self._set_rule(thing)
        runtime = await self._client.get_subscription_runtime_properties(topic, name)
        if not runtime.total_message_count:
            return None
        return ActionFailed(
            reason=f"it took {runtime.total_message_count} messages that are for others before it had its"
            " filter: remove them, they are copies"
        )

    async def _change_topic(self, job: ProvisionTask) -> ActionFailed | None:
        found = await self._client.get_topic(job.thing.name)
        if plan.DUPLICATE_WINDOW in job.settings:
            found.duplicate_detection_history_time_window = _span(job.thing, plan.DUPLICATE_WINDOW)
        _change_both(found, job)
        await self._client.update_topic(found)
        return None

    async def _change_subscription(self, job: ProvisionTask) -> ActionFailed | None:
        topic, _, name = job.thing.name.partition("/")
        if plan.TAKES in job.settings:
            await self._set_rule(job.thing)
        if set(job.settings) == {plan.TAKES}:
            return None
        found = await self._client.get_subscription(topic, name)
        if plan.LOCK in job.settings:
            found.lock_duration = _span(job.thing, plan.LOCK)
        if plan.DELIVERIES in job.settings:
            found.max_delivery_count = int(job.thing.settings[plan.DELIVERIES])
        if plan.DEAD_LETTER_EXPIRED in job.settings:
            found.dead_lettering_on_message_expiration = bool(job.thing.settings[plan.DEAD_LETTER_EXPIRED])
        if plan.FORWARDS_TO in job.settings:
            found.forward_to = None
        _change_both(found, job)
        await self._client.update_subscription(topic, found)
        return None

    async def _set_rule(self, thing: Resource) -> None:
        """The one rule there is gets another filter; where there is none, one is made."""
        topic, _, name = thing.name.partition("/")
        chosen = filter_for(str(thing.settings[plan.TAKES]))
        rules = [rule async for rule in self._client.list_rules(topic, name)]
        if not rules:
            await self._client.create_rule(topic, name, DEFAULT_RULE, filter=chosen)
        elif len(rules) == 1:
            (rule,) = rules
            rule.filter, rule.action = chosen, None
            await self._client.update_rule(topic, name, rule)


async def _unless_there(making: Awaitable[object]) -> None:
    """An answer may be lost, and the same asked for again by the client: then it is there."""
    try:
        await making
    except ResourceExistsError:
        return


def _change_both(found: TopicProperties | SubscriptionProperties, job: ProvisionTask) -> None:
    if plan.STATUS in job.settings:
        found.status = plan.ACTIVE
    if plan.IDLE_DELETE in job.settings:
        found.auto_delete_on_idle = NEVER_SPAN


def _topic(found: TopicProperties) -> Resource:
    return Resource(
        kind=ResourceKind.TOPIC,
        name=found.name,
        settings={
            plan.STATUS: _status(found.status),
            plan.DUPLICATE_DETECTION: bool(found.requires_duplicate_detection),
            plan.DUPLICATE_WINDOW: _seconds(found.duplicate_detection_history_time_window),
            plan.IDLE_DELETE: _idle(found.auto_delete_on_idle),
        },
    )


def _subscription(topic: str, found: SubscriptionProperties, takes: str, *, several: bool) -> Resource:
    return Resource(
        kind=ResourceKind.SUBSCRIPTION,
        name=f"{topic}/{found.name}",
        settings={
            plan.STATUS: _status(found.status),
            plan.LOCK: _seconds(found.lock_duration),
            plan.DELIVERIES: found.max_delivery_count or 0,
            plan.DEAD_LETTER_EXPIRED: bool(found.dead_lettering_on_message_expiration),
            plan.SESSIONS: bool(found.requires_session),
            plan.IDLE_DELETE: _idle(found.auto_delete_on_idle),
            # Only the name: the address of the namespace is no business of a report.
            plan.FORWARDS_TO: (found.forward_to or plan.NOWHERE).rstrip("/").rpartition("/")[2],
            plan.TAKES: takes,
        },
        # One of several rules would have to be deleted, and which one is not ours to say.
        fixed=frozenset({plan.TAKES}) if several else frozenset(),
    )


def _status(status: Any) -> str:
    return str(getattr(status, "value", status) or plan.ACTIVE)


def _span(thing: Resource, name: str) -> timedelta:
    return timedelta(seconds=int(thing.settings[name]))


def _seconds(span: Any) -> int:
    return int(span.total_seconds()) if isinstance(span, timedelta) else 0


def _idle(span: Any) -> str:
    if not isinstance(span, timedelta) or span.days >= NEVER_DAYS_MIN:
        return plan.NEVER
    return f"after {int(span.total_seconds())} s"


def _first(fault: Exception) -> Exception:
    """Of those that came together. One that is no fault of the place is raised as it is."""
    while isinstance(fault, ExceptionGroup):
        fault = fault.exceptions[0]
    if not isinstance(fault, AzureError | OSError | TimeoutError):
        raise fault
    return fault


def _not_done(fault: Exception) -> ActionFailed:
    status = fault.status_code if isinstance(fault, HttpResponseError) else None
    if isinstance(fault, ClientAuthenticationError) and status is None:
        return ActionFailed(reason=str(fault), closed=True)  # our own identity's text
    if status in (401, 403):
        return ActionFailed(reason=f"not allowed ({status}): {ROLE}", closed=True)
    if isinstance(fault, ResourceNotFoundError):
        return ActionFailed(reason="what it belongs to is not there")
    if status is None:
        return ActionFailed(reason=f"cannot be reached ({type(fault).__name__})", closed=True)
    return ActionFailed(reason=f"Service Bus answered {status}", closed=status >= 500)
