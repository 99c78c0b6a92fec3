"""A ledger with jobs in every state, everything that it answers, and what damage may make of an answer.

In: a world. Out: its answers by question, each a value or the fault that was told; and the questions that a
damaged ledger answered wrongly.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from tests.conformance.ledger_setup import DAY_MS, SERVICES, TENANT, Deployment, World, submit

from lucius.core.inputs import Cancel, Pause, ResultStatus
from lucius.core.routing import LANES
from lucius.core.states import JobState
from lucius.ledger.lists import ListFilter
from lucius.ledger.names import MS_MAX
from lucius.ledger.store import StoreError

LIMIT = 1_000
LATER_MS = 3_600_000


class Failed(msgspec.Struct, frozen=True):
    """The question was not answered, and the answer said so."""

    fault: str


async def jobs_in_every_state(world: World) -> dict[str, str]:
    """The id of a job by its state. Two jobs have ended well, one of them with three steps."""
    deployment = world.deployment()
    await deployment.warm()
    for number in range(2):
        await submit(
            deployment, number, request_type="OCR_EMBEDDING_SIS" if number else "OCR", key=f"key-{number}"
        )
        world.clock.now_ms += 1_000
    await deployment.work()
    running = ("IN_PROGRESS", "CANCELLING", "PAUSING", "FAILED_FINAL")
    for number, _ in enumerate(running, start=10):
        await submit(deployment, number, request_type="OCR_EMBEDDING", key=f"key-{number}")
        world.clock.now_ms += 1_000
    attempts = sorted(await deployment.take("ocr"), key=lambda attempt: attempt.job_id)
    for attempt in attempts:
        await deployment.ack(attempt)
    await deployment.writer.apply(attempts[1].job_id, Cancel())
    await deployment.writer.apply(attempts[2].job_id, Pause())
    await deployment.result(attempts[3], ResultStatus.FAILED_FINAL, "BROKEN")
    waiting = [await submit(deployment, number, key=f"key-{number}") for number in range(20, 24)]
    await deployment.writer.apply(waiting[0], Cancel())
    await deployment.writer.apply(waiting[1], Pause())
    records = await world.records()
    found = {record.job.state.value: job_id for job_id, record in records.items()}
    assert set(found) >= {state.value for state in JobState} - {"QUEUED"}, found
    return found


async def answers(world: World, deployment: Deployment) -> dict[str, Any]:
    """What a process answers that has just started. Whatever is not a fault of the store is raised."""
    now_ms = world.clock.now_ms
    found: dict[str, Any] = {}
    questions: dict[str, Callable[[], Awaitable[Any]]] = {
        "list of the tenant": lambda: _listed(deployment, ListFilter(tenant_norm=TENANT), now_ms),
        "list of all": lambda: _listed(deployment, ListFilter(), now_ms),
        "failed": lambda: deployment.lists.dlq("", LIMIT),
        "slots": lambda: _slots(deployment),
    }
    for job_id in world.ids.jobs:
        questions[f"job {job_id}"] = partial(_record, deployment, job_id)
        questions[f"events {job_id}"] = partial(deployment.ledger.events, job_id, limit=LIMIT)
    for lane in range(LANES):
        questions[f"due {lane}"] = partial(_due, deployment, lane)
        for service in SERVICES:
            questions[f"dispatch {service} {lane}"] = partial(_waiting, deployment, service, lane)
    for name, question in questions.items():
        try:
            found[name] = await question()
        except StoreError as fault:
            found[name] = Failed(str(fault))
    return found


async def _record(deployment: Deployment, job_id: str) -> Any:
    loaded = await deployment.ledger.load(job_id, fresh=True)
    return None if loaded is None else loaded.record


async def _listed(deployment: Deployment, wanted: ListFilter, now_ms: int) -> list[str]:
    return list((await deployment.lists.page(wanted, None, LIMIT, now_ms)).job_ids)


async def _slots(deployment: Deployment) -> list[str]:
    """A slot whose key is damaged is taken all the same: how many there are is what counts."""
    found, _ = await deployment.slots.page(TENANT)
    return ["slot" for _ in found]


async def _due(deployment: Deployment, lane: int) -> list[Any]:
    entries = await deployment.indexes.due(lane, MS_MAX - 1, LIMIT)
    return [(entry.at_ms, entry.job_id, entry.row) for entry in entries]


async def _waiting(deployment: Deployment, service: str, lane: int) -> list[Any]:
    entries = await deployment.indexes.dispatch(service, lane, LIMIT)
    return [(entry.at_ms, entry.job_id, entry.row) for entry in entries]


async def go_on(world: World, deployment: Deployment) -> None:
    """What a process does all the time: nothing of it may end for rows that cannot be read."""
    for step in (deployment.admission.recount, deployment.sweeper.sweep, deployment.retention.look):
        try:
            await step()
        except StoreError:
            continue
    for service in SERVICES:
        try:
            await deployment.take(service)
        except StoreError:
            continue
    world.clock.now_ms += 40 * DAY_MS
    try:
        await deployment.sweeper.sweep()
    except StoreError:
        return


def wrong(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Questions whose answer is neither what it was, nor told to be missing, nor shorter by what is lost."""
    return [name for name, answer in after.items() if not _may_be(before[name], answer)]


def _may_be(before: Any, after: Any) -> bool:
    if after == before or isinstance(after, Failed) or after is None:
        return True
    if not isinstance(after, list):
        return False
    # Events tell a story, of which an end that is cut off would be another.
    left = iter(before)
    return all(any(item == kept for kept in left) for item in after)
