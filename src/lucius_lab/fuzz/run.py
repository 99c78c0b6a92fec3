"""The fuzzer: hundreds of thousands of inputs that are almost right, and one question after each.

In: how many, and a seed. Out: a summary, or the smallest input found that breaks a rule of `fuzz_oracle`.
Inputs come in rounds; each round has a server of its own, so a long run needs no more memory than a short
one, and any round can be played again by itself.

    python -m lucius_lab.fuzz.run --count 20000 --seed 1 [--json]
"""

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec

from lucius.bus.port import ReplyOut
from lucius.ledger.job_ledger import LayoutName
from lucius_lab.fuzz.cases import BUS, Case, Cases, FuzzTargets, staged
from lucius_lab.fuzz.oracle import fault_of, fault_of_reply, label_of
from lucius_lab.fuzz.server import FuzzAnswer, FuzzServer, quiet

ROUND_INPUTS: Final = 1_000
SHRINK_TRIES_MAX: Final = 400
# More turns of the event loop than a message needs from the bus to the ledger.
TURNS_MAX: Final = 5_000
DEAD_LETTERS_MAX: Final = 100_000
BUS_LANE: Final = 0

# Each round takes the next: both layouts, both kinds of store.
DEPLOYMENTS: Final = (
    (LayoutName.LEDGER, True),
    (LayoutName.TABLE, True),
    (LayoutName.LEDGER, False),
    (LayoutName.TABLE, False),
)


class RuleViolation(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that was broken, and by what."""

    fault: str
    case: Case
    round_seed: int
    index: int
    alone: bool
    """Whether the case does it on a fresh stage; else it needs the inputs of its round before it."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    count: int
    outcomes: dict[str, int]
    violation: RuleViolation | None = None


class FuzzRound:
    """One server and the inputs that were sent to it."""

    def __init__(self, seed: int) -> None:
        layout, spans = DEPLOYMENTS[seed % len(DEPLOYMENTS)]
        self._deployment = FuzzServer(seed, layout=layout, spans=spans)
        self._chance = random.Random(seed)  # noqa: S311 - to be repeatable, not to be secret
        self._messages = 0
        self.outcomes: Counter[str] = Counter()

    async def __aenter__(self) -> "FuzzRound":
        self.stage: FuzzTargets = await staged(self._deployment)
        self._receiver = await self._deployment.bus.replies(BUS_LANE, group="lucius")
        self._consuming = asyncio.create_task(self._deployment.consumer.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._consuming.cancel()
        with suppress(asyncio.CancelledError):
            await self._consuming

    def cases(self, count: int) -> Iterator[Case]:
        cases = Cases(self.stage, self._chance)
        for _ in range(count):
            yield cases.next()

    async def throw(self, case: Case) -> str | None:
        """What is wrong with the server's answer to this case; None if nothing is."""
        if case.kind == BUS:
            return await self._throw_reply(case)
        before = self._deployment.writes
        try:
            answer = await self._deployment.request(
                case.method, case.path, headers=case.headers, body=case.body, query=case.query
            )
        except Exception as fault:
            return f"the application raised {fault!r}"
        found = fault_of(case, answer, self._deployment.writes - before)
        if found is None:
            self.outcomes[label_of(case, answer)] += 1
            found = await self._unreadable(case, answer)
        return found

    async def _unreadable(self, case: Case, answer: FuzzAnswer) -> str | None:
        """A job that was accepted can be read, and so can its trail."""
        if case.kind != "submit" or answer.status != 202:
            return None
        job = f"/v1/jobs/{answer.json()['jobId']}"
        for path in (job, f"{job}/events", f"{job}:explain"):
            read = await self._deployment.call("GET", path, self.stage.key)
            if read.status != 200:
                return f"accepted, and then {read.status} for {path}"
            read.json()
        return None

    async def _throw_reply(self, case: Case) -> str | None:
        consumer, before = self._deployment.consumer, self._deployment.writes
        settled = Counter(consumer.outcomes)
        dead_before = len(await self._receiver.dead_letters(messages_max=DEAD_LETTERS_MAX))
        self._messages += 1
        out = ReplyOut(lane=BUS_LANE, message_key="k", message_id=f"m{self._messages}", body=case.body)
        await self._deployment.bus.publish_reply(out)
        for _ in range(TURNS_MAX):
            if consumer.outcomes.total() > settled.total():
                break
            if self._consuming.done():
                return f"the consumer ended: {self._consuming.exception()!r}"
            await asyncio.sleep(0)
        else:
            return "a message was not settled"
        outcomes = dict(Counter(consumer.outcomes) - settled)
        letters = await self._receiver.dead_letters(messages_max=DEAD_LETTERS_MAX)
        reasons = [letter.reason for letter in letters[dead_before:]]
        self.outcomes[label_of(case, None, next(iter(outcomes)))] += 1
        return fault_of_reply(outcomes, reasons, self._deployment.writes - before)


async def fuzz(count: int, seed: int, report: Callable[[int], None] | None = None) -> Summary:
    """Throws `count` inputs, round by round, and stops at the first that breaks a rule."""
    outcomes: Counter[str] = Counter()
    thrown = 0
    for number in range(-(-count // ROUND_INPUTS)):
        round_seed = seed + number
        async with FuzzRound(round_seed) as played:
            for index, case in enumerate(played.cases(min(ROUND_INPUTS, count - thrown))):
                fault = await played.throw(case)
                if fault is not None:
                    violation = await shrunk(fault, case, round_seed, index)
                    return Summary(
                        seed=seed, count=thrown + index + 1, outcomes=dict(outcomes), violation=violation
                    )
            thrown += index + 1
            outcomes.update(played.outcomes)
        if report is not None:
            report(thrown)
    return Summary(seed=seed, count=thrown, outcomes=dict(sorted(outcomes.items())))


async def alone(case: Case, round_seed: int) -> str | None:
    """What is wrong with the answer of a fresh server to this case."""
    async with FuzzRound(round_seed) as played:
        return await played.throw(case)


async def shrunk(fault: str, case: Case, round_seed: int, index: int) -> RuleViolation:
    """The smallest case found that breaks a rule by itself."""
    found = await alone(case, round_seed)
    if found is None:
        return RuleViolation(fault=fault, case=case, round_seed=round_seed, index=index, alone=False)
    tries = 0
    progressing = True
    while progressing and tries < SHRINK_TRIES_MAX:
        progressing = False
        for smaller in _smaller(case):
            tries += 1
            still = await alone(smaller, round_seed)
            if still is not None:
                case, found, progressing = smaller, still, True
                break
            if tries >= SHRINK_TRIES_MAX:
                break
    return RuleViolation(fault=found, case=case, round_seed=round_seed, index=index, alone=True)


def _smaller(case: Case) -> Iterator[Case]:
    """Headers left out one by one, then parts of the body, the largest first."""
    for at in range(len(case.headers)):
        yield msgspec.structs.replace(case, headers=case.headers[:at] + case.headers[at + 1 :])
    if case.query:
        yield msgspec.structs.replace(case, query=b"")
    try:
        document = json.loads(case.body)
    except (ValueError, RecursionError):
        pass
    else:
        for less in _without_parts(document):
            yield msgspec.structs.replace(case, body=json.dumps(less).encode())
    width = len(case.body) // 2
    while width >= 1:
        for at in range(0, len(case.body), width):
            yield msgspec.structs.replace(case, body=case.body[:at] + case.body[at + width :])
        width //= 2


def _without_parts(document: Any) -> Iterator[Any]:
    if isinstance(document, dict):
        for name in document:
            yield {other: member for other, member in document.items() if other != name}
        for name, member in document.items():
            yield from ({**document, name: less} for less in _without_parts(member))
    elif isinstance(document, list):
        for at in range(len(document)):
            yield document[:at] + document[at + 1 :]
        for at, item in enumerate(document):
            yield from ([*document[:at], less, *document[at + 1 :]] for less in _without_parts(item))
    elif isinstance(document, str) and len(document) > 1:
        yield document[: len(document) // 2]


def report(violation: RuleViolation) -> str:
    """What a person needs to see it happen again."""
    shown = json.dumps(violation.case.shown(), indent=2)
    needs = "by itself" if violation.alone else "after the inputs of its round before it"
    again = f"--seed {violation.round_seed} --count {violation.index + 1}"
    return f"{violation.fault}\n{shown}\nbreaks the rule {needs}; again with: {again}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lucius_lab.fuzz.run", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="how many inputs")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same inputs")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    chosen = parser.parse_args(arguments)
    if chosen.count < 1 or chosen.seed < 0:
        parser.error("--count must be at least 1, --seed at least 0")
    quiet()
    sys.stderr.write(f"fuzz: {chosen.count} inputs, seed {chosen.seed}\n")
    summary = asyncio.run(fuzz(chosen.count, chosen.seed, lambda thrown: _report(thrown, chosen.count)))
    violation = summary.violation
    if chosen.json:
        document = msgspec.to_builtins(msgspec.structs.replace(summary, violation=None))
        if violation is not None:
            document["violation"] = {
                "fault": violation.fault,
                "alone": violation.alone,
                "round_seed": violation.round_seed,
                "index": violation.index,
                "case": violation.case.shown(),
            }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    elif violation is not None:
        sys.stdout.write(report(violation) + "\n")
    else:
        for outcome, times in summary.outcomes.items():
            sys.stdout.write(f"{times:>9}  {outcome}\n")
    return 0 if violation is None else 1


def _report(thrown: int, count: int) -> None:
    sys.stderr.write(f"\rfuzz: {thrown} of {count}" + ("\n" if thrown >= count else ""))
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
