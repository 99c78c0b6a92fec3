"""The games of `test_model_jobs`, with the moves drawn by weight: fewer minimal games, more deep ones.

Hypothesis finds the shortest game that goes wrong; a walk gets to the corners that need many moves. A failure
names the walk, which goes the same way whenever it is played again.
"""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog
from tests.lab.model_api import TENANTS
from tests.lab.model_ledger import ENDED
from tests.lab.test_model_jobs import BAD, STATES, Games
from tests.sizes import SOAKING

from lucius.ledger.job_ledger import LayoutName
from lucius_lab.fuzz.server import quiet

WALKS = 1_000 if SOAKING else 6
MOVES = 100
SPANS_MS = (1, 5_000, 29_999, 30_000, 60_000, 900_000, 3_600_000, 90_000_000, 691_200_000)
WORDS = ("SUCCEEDED", "SUCCEEDED", "SUCCEEDED", "FAILED_RETRY", "FAILED_RETRY", "FAILED_FINAL")
SERVICES = ("ocr", "ocr", "embedding")

Said = tuple[str, str, int]


def _said(chance: random.Random) -> Said:
    return chance.choice(("ACK", "PROGRESS", "RESULT", "RESULT")), chance.choice(WORDS), chance.randrange(101)


def _command(chance: random.Random) -> tuple[str, str, int, str | None]:
    kind, key = (
        chance.choice(("OCR", "OCR_EMBEDDING", "OCR_EMBEDDING")),
        chance.choice((None, None, "k1", "k2")),
    )
    return chance.choice(TENANTS), kind, chance.randrange(30), key


def _move(game: Games, chance: random.Random) -> str:
    """One move that is possible now; its name."""
    place = chance.randrange(10_000)
    moves = {
        "submit": lambda: game.submit(_command(chance), chance.random() < 0.5),
        "refused": lambda: game.submit_what_is_refused(chance.choice(BAD), chance.randrange(4)),
        "batch": lambda: game.submit_a_batch([_command(chance), chance.choice(BAD[:-2]), _command(chance)]),
        "lease": lambda: game.lease(chance.choice(SERVICES), chance.choice((1, 2, 100))),
        "work": lambda: game.work(
            chance.choice(SERVICES),
            [_said(chance) for _ in range(chance.randint(1, 3))],
            chance.choice((1, 3)),
        ),
        "control": lambda: game.control(place, chance.choice(("pause", "resume", "resume", "cancel"))),
        "rerun": lambda: game.rerun(
            place,
            chance.choice((None, None, "k1", "k3")),
            chance.choice((None, None, "step_01", "step_02", "x")),
        ),
        "due": lambda: game.wait_until_something_is_due(chance.choice((0, 0, 1))),
        "wait": lambda: game.wait(chance.choice(SPANS_MS), chance.random() < 0.7),
        "look": lambda: game.look_around(
            chance.choice((None, *TENANTS)), chance.choice((None, *STATES)), place
        ),
    }
    weights = {"work": 12, "control": 8, "due": 8, "submit": 6, "lease": 6, "rerun": 5, "wait": 3}
    if game.api.directives:
        near = -1 - chance.randrange(4) if chance.random() < 0.7 else place
        moves["answer"] = lambda: game.answer(near, [_said(chance)])
        moves["twice"] = lambda: game.answer_twice(near, _said(chance))
        weights |= {"answer": 12, "twice": 2}
    if len(game.api.directives) > 1:
        moves["another"] = lambda: game.reply_for_another(place)
    name = chance.choices(list(moves), [weights.get(name, 1) for name in moves])[0]
    moves[name]()
    return name


@contextmanager
def quietly() -> Iterator[None]:
    before = structlog.get_config()
    quiet()
    try:
        yield
    finally:
        structlog.configure(**before)


def _walk(layout: LayoutName, spans: bool, seed: int, seen: Counter[str]) -> None:
    game: Games = type("Games", (Games,), {"layout": layout, "spans": spans})()
    chance = random.Random(seed)
    trail: list[str] = []
    try:
        game.begin(("OCR", "OCR_EMBEDDING"), chance.random() < 0.5)
        while len(trail) < MOVES:
            trail.append(_move(game, chance))
    except Exception as fault:
        fault.add_note(f"in walk {seed} after {len(trail)} moves, of which the last were {trail[-10:]}")
        game.api.close()
        raise
    seen.update(trail)
    seen.update(job.state for job in game.api.model.jobs.values())
    seen.update(f"step {step.state}" for job in game.api.model.jobs.values() for step in job.steps)
    game.teardown()


@pytest.mark.parametrize("spans", [True, False], ids=["spanning", "partitioned"])
@pytest.mark.parametrize("layout", list(LayoutName), ids=lambda layout: layout.value)
def test_long_walks_go_as_the_model_says(layout: LayoutName, spans: bool) -> None:
    seen: Counter[str] = Counter()
    with quietly():
        for seed in range(WALKS):
            _walk(layout, spans, seed, seen)
    assert seen.keys() >= {*ENDED, "PAUSED", "DISPATCHING", "IN_PROGRESS"}, seen
    assert seen.keys() >= {"step FAILED_RETRY", "step PROCESSING", "step INITIATED", "step PENDING"}, seen
