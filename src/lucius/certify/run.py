"""Plays every rule on a stage, and writes the certificate.

In: a stage on which the service has arrived. Out: one verdict a rule, in the order of the rules. What a rule
needs and does not have makes it `not tried`; a fault of the service never ends the run.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from lucius.bus.port import BusError
from lucius.certify.rules import LAST, RULES
from lucius.certify.testbed import ServiceTestbed
from lucius.certify.values import (
    Carrier,
    Certificate,
    Judgement,
    Need,
    Rule,
    RuleFinding,
    RuleVerdict,
    failed,
)
from lucius.contracts.times import rfc3339

# `result-once` counts the whole run; after `drain` the service is gone.
_LATE = ("result-once", "drain")

_WHY = {
    Need.START: "needs a command that starts the service (--start)",
    Need.HTTP: "over the bus a reply gets no answer",
    Need.BUS: "over HTTP the lanes are Lucius's own affair",
    Need.SLOW: "needs a sample `slow` (--sample)",
    Need.RETRYABLE: "needs a sample `retryable` (--sample)",
    Need.FINAL: "needs a sample `final` (--sample)",
}

Report = Callable[[RuleVerdict], None]


async def certify(
    testbed: ServiceTestbed,
    *,
    lucius: str,
    now_ms: Callable[[], int],
    only: Sequence[str] = (),
    report: Report,
) -> Certificate:
    """`only`: ids of the rules to play; empty for all."""
    clock = asyncio.get_running_loop().time
    began, at = clock(), rfc3339(now_ms())
    found: dict[str, RuleVerdict] = {}
    for rule in _in_order(rule for rule in RULES if not only or rule.id in only):
        found[rule.id] = await _judged(rule, testbed, clock)
        report(found[rule.id])
    verdicts = tuple(found[rule.id] for rule in RULES if rule.id in found)
    return Certificate(
        service=testbed.asked.service,
        step_type=testbed.asked.step_type,
        carrier=testbed.asked.carrier,
        lucius=lucius,
        at=at,
        seconds=round(clock() - began, 3),
        passed=all(verdict.judgement is not Judgement.FAILED for verdict in verdicts),
        verdicts=verdicts,
    )


def _in_order(rules: Iterable[Rule]) -> list[Rule]:
    return sorted(rules, key=lambda rule: (rule.id in LAST, rule.id in _LATE and _LATE.index(rule.id) + 1))


async def _judged(rule: Rule, testbed: ServiceTestbed, clock: Callable[[], float]) -> RuleVerdict:
    began = clock()
    missing = [need for need in rule.needs if not _has(testbed, need)]
    finding = _unplayed(missing) if missing else await _played(rule, testbed)
    return RuleVerdict(
        rule=rule.id,
        title=rule.title,
        paragraph=rule.paragraph,
        judgement=finding.judgement,
        done=rule.done,
        expected=rule.expected,
        evidence=finding.evidence,
        seconds=round(clock() - began, 3),
    )


def _unplayed(missing: list[Need]) -> RuleFinding:
    elsewhere = [need for need in missing if need in (Need.HTTP, Need.BUS)]
    judgement = Judgement.NOT_APPLICABLE if elsewhere else Judgement.NOT_TRIED
    return RuleFinding(judgement=judgement, evidence=tuple(_WHY[need] for need in elsewhere or missing))


async def _played(rule: Rule, testbed: ServiceTestbed) -> RuleFinding:
    try:
        finding = await rule.play(testbed)
    except BusError as fault:
        finding = failed(f"the bus failed: {fault}")
    await testbed.withdraw()
    process = testbed.process
    if process is None or process.running or rule.id in LAST or rule.id == _LATE[-1]:
        return finding
    ended = f"the service ended with {process.returncode}: {process.said}"
    back = await testbed.restart()
    return failed(ended, *finding.evidence, *(["and did not come back"] if back else []))


def _has(testbed: ServiceTestbed, need: Need) -> bool:
    match need:
        case Need.START:
            return testbed.process is not None
        case Need.HTTP:
            return testbed.asked.carrier is Carrier.HTTP
        case Need.BUS:
            return testbed.asked.carrier is Carrier.BUS
    return testbed.asked.samples.named(need.value) is not None
