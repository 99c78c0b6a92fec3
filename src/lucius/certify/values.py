"""What a certificate is made of: samples of work, rules, findings, verdicts."""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from lucius.certify.testbed import ServiceTestbed

Json = Any


class Judgement(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_TRIED = "not tried"
    NOT_APPLICABLE = "does not apply"  # the rule is about another way to the service


class Carrier(StrEnum):
    """How work reaches the service."""

    HTTP = "http"
    BUS = "bus"


class Need(StrEnum):
    """What a rule cannot do without. Where it is missing the rule is not tried, and says why; the first two
    are about the way to the service, and without them the rule does not apply."""

    HTTP = "http"  # a transport that answers replies
    BUS = "bus"
    START = "start"  # a command that starts the service
    SLOW = "slow"
    RETRYABLE = "retryable"
    FINAL = "final"


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One piece of work. Its input is `input_ref` as it is, or a file with `input_text` or the bytes of
    `input_file`; left out, it is a line of text. The other references are made up unless given."""

    payload: dict[str, Json] = {}
    input_ref: dict[str, Json] | None = None
    input_text: str | None = None
    input_file: str | None = None
    workspace_ref: dict[str, Json] | None = None
    output_ref: dict[str, Json] | None = None
    upstream: list[dict[str, Json]] = []


class SampleSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`ok` succeeds; `slow` works for three leases or longer; `retryable` and `final` fail in that manner."""

    ok: Sample
    slow: Sample | None = None
    retryable: Sample | None = None
    final: Sample | None = None

    def named(self, name: str) -> Sample | None:
        found: Sample | None = getattr(self, name)
        return found


class CertifyTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long things may take."""

    ack_seconds: float = 5.0
    lease_seconds: float = 3.0  # of the directives: how long a sign of life may take
    work_seconds: float = 60.0  # one sample, the slow one included
    start_seconds: float = 30.0  # until a started service asks for work
    drain_seconds: float = 45.0  # from SIGTERM to the end of the process
    settle_seconds: float = 0.75  # of silence, before it is said that nothing more comes

    @property
    def silence_seconds(self) -> float:
        """How long a service may say nothing before it is not waited for any more. Longer than the sample
        `slow` takes: one that gives no sign of life is to be seen to its end."""
        return max(self.wait_seconds, 4 * self.lease_seconds)

    @property
    def wait_seconds(self) -> float:
        """How long an ACK is waited for before it is given up, late as it would be."""
        return 2 * self.ack_seconds + self.lease_seconds


class RuleFinding(msgspec.Struct, frozen=True, kw_only=True):
    judgement: Judgement
    evidence: tuple[str, ...] = ()


Play = Callable[["ServiceTestbed"], Awaitable[RuleFinding]]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """`paragraph` is where the rule stands in the contract, `done` what is done to see whether it holds."""

    id: str
    title: str
    paragraph: str
    done: str
    expected: str
    play: Play
    needs: tuple[Need, ...] = ()


class RuleVerdict(msgspec.Struct, frozen=True, kw_only=True):
    rule: str
    title: str
    paragraph: str
    judgement: Judgement
    done: str
    expected: str
    evidence: tuple[str, ...]
    seconds: float


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    step_type: str
    carrier: Carrier
    lucius: str  # the version that judged
    at: str
    seconds: float
    passed: bool  # no rule failed; those not tried are listed all the same
    verdicts: tuple[RuleVerdict, ...]

    def those(self, judgement: Judgement) -> tuple[RuleVerdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.judgement is judgement)


def passed(*evidence: str) -> RuleFinding:
    return RuleFinding(judgement=Judgement.PASSED, evidence=evidence)


def failed(*evidence: str) -> RuleFinding:
    return RuleFinding(judgement=Judgement.FAILED, evidence=evidence)


def not_tried(*evidence: str) -> RuleFinding:
    return RuleFinding(judgement=Judgement.NOT_TRIED, evidence=evidence)
