"""Scripts that are played on both engines: what happens to a job, move by move.

A move is about the current attempt, the latest whose directive was sent. Between two moves the player waits
until the engine has nothing left to do by itself, so a script means the same on every engine, however slow
one of them is.
"""

from enum import StrEnum

import msgspec

from lucius.core.model import StepPolicy

HOUR_MS = 3_600_000
SHORT_MS = 400  # of a deadline that shall pass: a workflow's timers are real
SOON_MS = 20  # of a backoff that shall pass
FAR_MS = 60_000  # what lies further off than that is not waited for


class Say(StrEnum):
    """What a service answers."""

    ACK = "ack"
    PROGRESS = "progress"
    DONE = "done"
    RETRY = "retry"
    FINAL = "final"


class Publish(StrEnum):
    """What becomes of a directive on its way to the bus."""

    KEPT = "kept"
    REFUSED = "refused"
    LOST = "lost"
    DOUBLED = "doubled"
    UNANSWERED = "unanswered"


class ControlWish(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="reply"):
    """`back`: how many attempts before the current one it answers. `by_bus`: else it comes as a callback."""

    say: Say
    back: int = 0
    times: int = 1
    forged: bool = False
    by_bus: bool = False
    percent: int = 50


class Early(msgspec.Struct, frozen=True, kw_only=True, tag="early"):
    """The next directive is answered before it is noted that it went out."""

    say: Say


class Untold(msgspec.Struct, frozen=True, kw_only=True, tag="untold"):
    """The reply is written but not settled, and comes again: a workflow could not be notified, or a process
    died. Only for replies after which nothing begins: what begins meanwhile depends on the engine."""

    say: Say


class ExpireMove(msgspec.Struct, frozen=True, kw_only=True, tag="expire"):
    """No service answers until the attempt's time is over."""


class Control(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="control"):
    wish: ControlWish
    times: int = 1


class Rerun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="rerun"):
    """Later moves are about the new job."""

    from_step: str | None = None


class Adopt(msgspec.Struct, frozen=True, kw_only=True, tag="adopt"):
    """A rerun that takes the last success that came too late."""


class Repeat(msgspec.Struct, frozen=True, kw_only=True, tag="repeat"):
    """The command comes once more under its key."""


class BusFaults(msgspec.Struct, frozen=True, kw_only=True, tag="bus"):
    """What becomes of the next directives, one after the other. Before the first move: of the very first."""

    fates: tuple[Publish, ...]


class Age(msgspec.Struct, frozen=True, kw_only=True, tag="age"):
    """The job grows older by its SLA at one go."""


class Orphan(msgspec.Struct, frozen=True, kw_only=True, tag="orphan"):
    """The job's workflow is terminated, and repair starts another. Nothing where there are no workflows."""


Move = Reply | Early | Untold | ExpireMove | Control | Rerun | Adopt | Repeat | BusFaults | Age | Orphan


class Script(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    moves: tuple[Move, ...]
    steps: int = 1
    policy: StepPolicy = StepPolicy()
    sla_ms: int = 7 * 24 * HOUR_MS
    acks_told: bool = True
    local_calls: bool = True
    seed: int | None = None  # what it was drawn from


def patient(
    *,
    attempts: int = 3,
    ack_ms: int = HOUR_MS,
    lease_ms: int = HOUR_MS,
    backoff_ms: int = 0,
    publish_ms: int = SOON_MS,
    publishes: int = 0,
) -> StepPolicy:
    """A policy under which nothing happens by itself but what is asked for."""
    return StepPolicy(
        max_attempts=attempts,
        ack_timeout_ms=ack_ms,
        lease_ms=lease_ms,
        backoff_publish_ms=(publish_ms,),
        backoff_ack_ms=(backoff_ms,),
        backoff_result_ms=(backoff_ms,),
        publish_attempts_max=publishes,
    )


def script_lines(script: Script) -> list[str]:
    """A script in lines, for people who have to find out what it did."""
    policy = script.policy
    head = (
        f"{script.name}: {script.steps} steps, {policy.max_attempts} attempts, "
        f"ACK {policy.ack_timeout_ms} ms, lease {policy.lease_ms} ms, "
        f"backoff {policy.backoff_result_ms[0]} ms"
    )
    return [head, *(f"  {number}. {_told(move)}" for number, move in enumerate(script.moves, 1))]


def _told(move: Move) -> str:
    built = msgspec.to_builtins(move)
    name = built.pop("type")
    return " ".join([name, *(f"{key}={value}" for key, value in built.items())])
