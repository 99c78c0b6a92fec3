"""Workflows: registered classes whose steps run in the order in which they stand.

    @workflow("summarise")
    class Summarise:
        @step(credits="0.25", timeout_seconds=60)
        async def fetch(self, run: StepRun) -> dict[str, str]:
            return {"text": await read(run.input["uri"])}

        @step()
        def count(self, run: StepRun) -> int:
            return len(run.results[0]["text"].split())

A step may be run more than once: when its worker crashes before its end is written. `run.token` is the same
every time and different for every other step of every job, so a step can hand it to whatever it changes
outside. What a step returns, and its checkpoint, is small JSON: references, not contents.
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from decimal import Decimal
from typing import Any, Final, TypeVar

import msgspec

from lucius.core.model import Json
from lucius.lifebook.job import ZERO, LifebookJob

RESULT_BYTES_MAX: Final = 16 * 1024
RESULTS_BYTES_MAX: Final = 192 * 1024
CHECKPOINT_BYTES_MAX: Final = 16 * 1024
INPUT_BYTES_MAX: Final = 32 * 1024
STEPS_MAX: Final = 100
NAME_CHARACTERS_MAX: Final = 100
CREDIT_PLACES_MAX: Final = 9
DEPTH_MAX: Final = 100
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", re.ASCII)

Class = TypeVar("Class", bound=type[Any])
Save = Callable[[str], Awaitable[None]]


class BadWorkflow(Exception):
    """A workflow is declared in a way that cannot run; raised when its module is loaded."""


class BadStepValue(Exception):
    """A step handed in something that cannot be kept. The text says what, never the value."""


class StepRun:
    """What a step knows of its job, and what it may tell the worker while it runs."""

    def __init__(self, job: LifebookJob, *, save: Save, seconds_left: Callable[[], float]) -> None:
        self.job_id = job.job_id
        self.workspace_id = job.workspace_id
        self.user_id = job.user_id
        self.trigger_type = job.trigger_type
        self.trace_id = job.trace_id
        self.index = job.step_cursor
        self.attempt = job.attempts + 1
        self.redrives = job.redrives
        self.token = f"{job.job_id}:{job.step_cursor}"
        self.input: Json = msgspec.json.decode(job.input)
        self.results: list[Json] = [msgspec.json.decode(result) for result in job.results]
        self.checkpoint: Json = None if job.checkpoint is None else msgspec.json.decode(job.checkpoint)
        self.credits_left = job.credits_reserved - job.credits_spent
        self.credits = ZERO
        self._save = save
        self._loop = asyncio.get_running_loop()
        self._seconds_left = seconds_left

    async def keep(self, note: Json) -> None:
        """Keeps a checkpoint: a later attempt of this step finds it in `checkpoint`."""
        await self._save(encoded(note, CHECKPOINT_BYTES_MAX, "The checkpoint"))
        self.checkpoint = note

    def keep_blocking(self, note: Json) -> None:
        """The same for a step that is no coroutine, which runs in a thread."""
        asyncio.run_coroutine_threadsafe(self.keep(note), self._loop).result()

    def spend(self, amount: Decimal | str | int) -> None:
        """Credits that this step costs; booked together with its end."""
        self.credits += checked_credits(amount, "spend")

    def seconds_left(self) -> float:
        """How long this step may still run."""
        return self._seconds_left()


class WorkflowStep(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    credits: Decimal
    timeout_ms: int | None
    call: Callable[..., Any]


class Workflow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    steps: tuple[WorkflowStep, ...]
    max_attempts: int | None
    owner: Any
    input_type: Any = None
    """Inputs are checked against it when a run is asked for; any JSON value unless given."""

    @property
    def credits(self) -> Decimal:
        return sum((each.credits for each in self.steps), ZERO)


class WorkflowRegistry:
    """Workflows by name. A name is taken once."""

    def __init__(self, workflows: Iterable[Workflow] = ()) -> None:
        self._known: dict[str, Workflow] = {}
        for each in workflows:
            self.add(each)

    def add(self, workflow: Workflow) -> None:
        if workflow.name in self._known:
            raise BadWorkflow(f"There are two workflows {workflow.name!r}.")
        self._known[workflow.name] = workflow

    def get(self, name: str) -> Workflow | None:
        return self._known.get(name)

    def names(self) -> list[str]:
        return sorted(self._known)

    def replace(self, workflow: Workflow) -> None:
        self._known[workflow.name] = workflow


REGISTRY: Final = WorkflowRegistry()
_STEP: Final = "__lifebook_step__"


class _Marked(msgspec.Struct, frozen=True, kw_only=True):
    credits: Decimal
    timeout_ms: int | None


def step(
    *,
    credits: Decimal | str | int = 0,  # noqa: A002
    timeout_seconds: float | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks a method as a step. `credits`: its fixed price, refused before it runs if the reserve is too
    small."""
    if timeout_seconds is not None and not 0 < timeout_seconds <= 86_400:
        raise BadWorkflow(f"timeout_seconds must be above 0 and at most a day, not {timeout_seconds}.")
    timeout_ms = None if timeout_seconds is None else round(timeout_seconds * 1000)
    marked = _Marked(credits=checked_credits(credits, "credits", fault=BadWorkflow), timeout_ms=timeout_ms)

    def mark(method: Callable[..., Any]) -> Callable[..., Any]:
        setattr(method, _STEP, marked)
        return method

    return mark


def workflow(
    name: str,
    *,
    max_attempts: int | None = None,
    input_type: Any = None,
    registry: WorkflowRegistry | None = None,
) -> Callable[[Class], Class]:
    """Registers a class: its marked methods are the steps, in the order in which they stand."""

    def register(cls: Class) -> Class:
        found = workflow_of(cls, name, max_attempts=max_attempts, input_type=input_type)
        (REGISTRY if registry is None else registry).add(found)
        return cls

    return register


def workflow_of(
    cls: type[Any], name: str, *, max_attempts: int | None = None, input_type: Any = None
) -> Workflow:
    if not name or len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
        raise BadWorkflow(f"A workflow's name has 1 to {NAME_CHARACTERS_MAX} printable characters: {name!r}.")
    if max_attempts is not None and not 1 <= max_attempts <= 100:
        raise BadWorkflow(f"max_attempts of {name!r} must be from 1 to 100, not {max_attempts}.")
    owner = cls()
    steps = []
    for method_name, method in vars(cls).items():
        marked = getattr(method, _STEP, None)
        if marked is not None:
            steps.append(
                WorkflowStep(
                    name=method_name,
                    credits=marked.credits,
                    timeout_ms=marked.timeout_ms,
                    call=getattr(owner, method_name),
                )
            )
    if not 1 <= len(steps) <= STEPS_MAX:
        raise BadWorkflow(
            f"The workflow {name!r} has {len(steps)} steps; mark 1 to {STEPS_MAX} with @step()."
        )
    return Workflow(
        name=name, steps=tuple(steps), max_attempts=max_attempts, owner=owner, input_type=input_type
    )


def is_async(each: WorkflowStep) -> bool:
    return inspect.iscoroutinefunction(each.call)


def encoded(value: Json, bytes_max: int, what: str) -> str:
    """As JSON, if it is JSON and small enough."""
    try:
        text = msgspec.json.encode(value).decode()
        kept = msgspec.json.decode(text)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        raise BadStepValue(f"{what} is not JSON.") from None
    if _is_deep(kept):
        raise BadStepValue(f"{what} is nested more than {DEPTH_MAX} levels deep.")
    if len(text.encode()) > bytes_max:
        raise BadStepValue(f"{what} has more than {bytes_max} bytes of JSON; keep it elsewhere, refer to it.")
    return text


def _is_deep(value: Json) -> bool:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [
            member
            for holder in level
            if isinstance(holder, dict | list)
            for member in (holder.values() if isinstance(holder, dict) else holder)
        ]
        if not level:
            return False
    return True


def checked_credits(
    value: Decimal | str | int, what: str, *, fault: type[Exception] = BadStepValue
) -> Decimal:
    """A number of credits: not negative, finite, with at most nine places."""
    # Python would also read digits of other scripts, and underscores between them.
    if isinstance(value, str) and _NUMBER.fullmatch(value) is None:
        raise fault(f"{what} is not a number of credits.")
    try:
        amount = Decimal(value)
    except (ArithmeticError, TypeError, ValueError):
        raise fault(f"{what} is not a number of credits.") from None
    exponent = amount.as_tuple().exponent
    if not amount.is_finite() or amount < 0 or not isinstance(exponent, int) or exponent < -CREDIT_PLACES_MAX:
        raise fault(f"{what} must be a number of credits from 0, with at most {CREDIT_PLACES_MAX} places.")
    if amount.adjusted() > 12:
        raise fault(f"{what} is too large a number of credits.")
    return amount or ZERO  # there is no negative zero of credits
