"""Random scripts: drawn from a seed, the same for the same seed."""

import random
from collections.abc import Callable

from lucius.core.model import StepPolicy
from lucius_lab.equivalence.script import (
    HOUR_MS,
    SHORT_MS,
    SOON_MS,
    BusFaults,
    Control,
    ControlWish,
    Early,
    ExpireMove,
    Move,
    Orphan,
    Publish,
    Repeat,
    Reply,
    Rerun,
    Say,
    Script,
    patient,
)

MOVES_MIN = 2
MOVES_MAX = 10
_SAYS = (Say.ACK, Say.ACK, Say.PROGRESS, Say.DONE, Say.DONE, Say.DONE, Say.RETRY, Say.RETRY, Say.FINAL)

Draw = Callable[[random.Random], Move]


def generated(seed: int) -> Script:
    chance = random.Random(seed)  # noqa: S311 - chance is what a seed says
    moves = tuple(_move(chance) for _ in range(chance.randint(MOVES_MIN, MOVES_MAX)))
    return Script(
        name=f"seed {seed}",
        seed=seed,
        steps=chance.randint(1, 3),
        policy=_policy(chance),
        acks_told=chance.random() < 0.5,
        local_calls=chance.random() < 0.8,
        moves=moves,
    )


def _policy(chance: random.Random) -> StepPolicy:
    """Half of the deadlines are short, so that one may be waited for; few backoffs are too long for that."""
    return patient(
        attempts=chance.randint(1, 3),
        ack_ms=chance.choice((SHORT_MS, HOUR_MS)),
        lease_ms=chance.choice((SHORT_MS, HOUR_MS)),
        backoff_ms=chance.choice((0, 0, 0, SOON_MS, SOON_MS, HOUR_MS)),
        publish_ms=chance.choice((0, SOON_MS, SOON_MS, HOUR_MS)),
        publishes=chance.choice((0, 0, 0, 2)),
    )


def _move(chance: random.Random) -> Move:
    return chance.choices(_DRAWS, _WEIGHTS)[0](chance)


def _reply(chance: random.Random) -> Reply:
    return Reply(say=chance.choice(_SAYS), by_bus=chance.random() < 0.3, percent=chance.randint(0, 100))


def _odd_reply(chance: random.Random) -> Reply:
    """A duplicate, a late one, or a forged one."""
    return Reply(
        say=chance.choice(_SAYS),
        times=chance.randint(1, 2),
        back=chance.randint(0, 2),
        forged=chance.random() < 0.2,
        by_bus=chance.random() < 0.3,
    )


def _control(chance: random.Random) -> Control:
    return Control(wish=chance.choice(tuple(ControlWish)), times=chance.choice((1, 1, 1, 2)))


def _bus(chance: random.Random) -> BusFaults:
    return BusFaults(fates=tuple(chance.choice(tuple(Publish)) for _ in range(chance.randint(1, 2))))


def _early(chance: random.Random) -> Early:
    return Early(say=chance.choice(_SAYS))


def _rerun(chance: random.Random) -> Rerun:
    return Rerun(from_step=chance.choice((None, None, "step_01", "step_02")))


_TABLE: tuple[tuple[int, Draw], ...] = (
    (40, _reply),
    (12, _odd_reply),
    (14, _control),
    (12, lambda chance: ExpireMove()),
    (6, _bus),
    (4, _early),
    (5, _rerun),
    (4, lambda chance: Repeat()),
    (3, lambda chance: Orphan()),
)
_WEIGHTS = [weight for weight, _ in _TABLE]
_DRAWS = [draw for _, draw in _TABLE]
