"""Every `LIFEBOOK_*` variable: declared once, read and checked once.

In: the environment. Out: settings, or a fault that names the variable. Where AWS is, and who calls it, is the
AWS SDK's own configuration (`AWS_REGION`, `AWS_ENDPOINT_URL_DYNAMODB`, profiles, roles) and not repeated
here. What the contract leaves to other documents of its owner (FD-2 credits, FD-10 retention) is assumed here
and nowhere else.
"""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec

from lucius.core.durations import parse_duration_ms
from lucius.lifebook.machine import Policy
from lucius.lifebook.schema import BALANCES_TABLE, DLQ, QUEUE, RECEIVES_MAX, TABLE
from lucius.lifebook.triggers import FileDrop, is_secret, read_drops

SECONDS_MAX_VISIBILITY: Final = 43_200
ATTEMPTS_MAX: Final = 100
_MAKER: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class BadVariable(Exception):
    """A variable holds something that cannot be used."""


class Variable(msgspec.Struct, frozen=True):
    name: str
    default: str
    meaning: str


VARIABLES: Final[tuple[Variable, ...]] = (
    Variable("LIFEBOOK_TABLE", TABLE, "table of the jobs"),
    Variable("LIFEBOOK_QUEUE", QUEUE, "name or URL of the queue"),
    Variable("LIFEBOOK_DLQ", DLQ, "name or URL of the dead-letter queue"),
    Variable("LIFEBOOK_WORKFLOWS", "", "modules that register workflows, separated by commas"),
    Variable("LIFEBOOK_MAX_ATTEMPTS", "5", "attempts of a job that asks for no number of its own"),
    Variable("LIFEBOOK_BACKOFF", "30s,2m,10m,30m", "waits after the attempts of a job; the last one repeats"),
    Variable("LIFEBOOK_LEASE", "60s", "how long a worker holds a job without a heartbeat"),
    Variable("LIFEBOOK_CLOCK_SKEW", "5s", "how far the clocks of two workers may be apart"),
    Variable("LIFEBOOK_STEP_TIMEOUT", "15m", "how long a step may run that names no time of its own"),
    Variable("LIFEBOOK_RETENTION", "90d", "FD-10 is not at hand: how long an ended job is kept"),
    Variable(
        "LIFEBOOK_CREDITS",
        "off",
        "FD-2 is not at hand: `table` reserves at balances in LIFEBOOK_BALANCES, `off` grants all, "
        "`MODULE:NAME` is what keeps balances of your own",
    ),
    Variable("LIFEBOOK_BALANCES", BALANCES_TABLE, "table of the workspaces' balances"),
    Variable("LIFEBOOK_CREDITS_MAX", "1000000", "FD-2 is not at hand: the largest estimate of a run"),
    Variable(
        "LIFEBOOK_ANALYTICS",
        "none",
        "where events go: `none`, `file:PATH`, `sqs:QUEUE` or `events:BUS` (EventBridge)",
    ),
    Variable("LIFEBOOK_RECEIVES_MAX", str(RECEIVES_MAX), "maxReceiveCount of the queue's redrive policy"),
    Variable("LIFEBOOK_FAIR_QUEUE", "false", "`true`: messages carry their workspace as MessageGroupId"),
    Variable("LIFEBOOK_CONCURRENCY", "4", "jobs that one worker process runs at a time"),
    Variable(
        "LIFEBOOK_PENDING_GRACE", "1m", "after this a sweeper does what a process should have done at once"
    ),
    Variable("LIFEBOOK_QUEUED_GRACE", "6h", "after this a job that no worker took gets another message"),
    Variable("LIFEBOOK_SWEEP_INTERVAL", "30s", "how often a worker process looks for what was left behind"),
    Variable(
        "LIFEBOOK_API_KEYS", "", "file of API keys, see the reference; without it only loopback is served"
    ),
    Variable("LIFEBOOK_WEBHOOK_SECRET", "", "secret of signed webhook triggers (Standard Webhooks)"),
    Variable("LIFEBOOK_FILE_DROPS", "", "JSON list of {bucket, prefix, workspace_id, user_id, workflow_id}"),
    Variable("LIFEBOOK_URL", "http://127.0.0.1:8421", "where the client commands find the API"),
    Variable("LIFEBOOK_API_KEY", "", "who the client commands are to the API"),
    Variable("LIFEBOOK_MINISTACK", "", "program that `lucius lifebook dev` starts for DynamoDB and SQS"),
    Variable("LIFEBOOK_LAMBDA_MARGIN", "10s", "time a Lambda call keeps back to end in good order"),
)
DEFAULTS: Final = {variable.name: variable.default for variable in VARIABLES}


class LifebookSettings(msgspec.Struct, frozen=True, kw_only=True):
    table: str
    queue: str
    dlq: str
    workflows: tuple[str, ...]
    max_attempts: int
    policy: Policy
    step_timeout_ms: int
    balances: str | None
    """The table of balances; None where they are kept elsewhere, or not at all."""
    balances_maker: str | None
    """`MODULE:NAME` of what keeps the balances instead."""
    credits_max: Decimal
    analytics: str
    fair_queue: bool
    concurrency: int
    sweep_interval_ms: int
    api_keys_file: str | None
    webhook_secret: str | None
    lambda_margin_ms: int
    file_drops: tuple[FileDrop, ...]

    def __repr__(self) -> str:
        return f"LifebookSettings(table={self.table!r}, queue={self.queue!r})"


def read_settings(env: Mapping[str, str]) -> LifebookSettings:
    read = _Reader(env)
    read.refuse_unknown()
    credits_kind, maker = read.keeper("LIFEBOOK_CREDITS", ("off", "table"))
    return LifebookSettings(
        table=read.text("LIFEBOOK_TABLE"),
        queue=read.text("LIFEBOOK_QUEUE"),
        dlq=read.text("LIFEBOOK_DLQ"),
        workflows=tuple(part.strip() for part in read.raw("LIFEBOOK_WORKFLOWS").split(",") if part.strip()),
        max_attempts=read.count("LIFEBOOK_MAX_ATTEMPTS", most=ATTEMPTS_MAX),
        policy=Policy(
            lease_ms=read.span("LIFEBOOK_LEASE", least_ms=1_000, most_ms=SECONDS_MAX_VISIBILITY * 1000),
            skew_ms=read.span("LIFEBOOK_CLOCK_SKEW", least_ms=0),
            backoffs_ms=read.spans("LIFEBOOK_BACKOFF"),
            retention_ms=read.span("LIFEBOOK_RETENTION"),
            pending_grace_ms=read.span("LIFEBOOK_PENDING_GRACE"),
            chore_grace_ms=read.span("LIFEBOOK_PENDING_GRACE"),
            queued_grace_ms=read.span("LIFEBOOK_QUEUED_GRACE"),
            receives_max=read.count("LIFEBOOK_RECEIVES_MAX", most=1_000),
            credits_held=credits_kind != "off",
        ),
        step_timeout_ms=read.span("LIFEBOOK_STEP_TIMEOUT"),
        balances=read.text("LIFEBOOK_BALANCES") if credits_kind == "table" else None,
        balances_maker=maker,
        credits_max=read.credits("LIFEBOOK_CREDITS_MAX"),
        analytics=read.analytics("LIFEBOOK_ANALYTICS"),
        fair_queue=read.one_of("LIFEBOOK_FAIR_QUEUE", ("false", "true")) == "true",
        concurrency=read.count("LIFEBOOK_CONCURRENCY", most=256),
        sweep_interval_ms=read.span("LIFEBOOK_SWEEP_INTERVAL"),
        api_keys_file=read.raw("LIFEBOOK_API_KEYS") or None,
        webhook_secret=read.secret("LIFEBOOK_WEBHOOK_SECRET"),
        lambda_margin_ms=read.span("LIFEBOOK_LAMBDA_MARGIN"),
        file_drops=read.drops("LIFEBOOK_FILE_DROPS"),
    )


class _Reader:
    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def refuse_unknown(self) -> None:
        for name in self._env:
            if name.startswith("LIFEBOOK_") and name not in DEFAULTS:
                raise BadVariable(f"{name} is no setting of Lifebook. Settings: {', '.join(DEFAULTS)}.")

    def raw(self, name: str) -> str:
        return self._env.get(name, "").strip() or DEFAULTS[name]

    def text(self, name: str) -> str:
        if not (value := self.raw(name)):
            raise BadVariable(f"{name} is empty.")
        return value

    def count(self, name: str, *, most: int) -> int:
        text = self.raw(name)
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
            raise BadVariable(f"{name} must be a whole number from 1 to {most}, not {text!r}.")
        return int(text)

    def span(self, name: str, *, least_ms: int = 1, most_ms: int | None = None) -> int:
        return self._span(name, self.raw(name), least_ms, most_ms)

    def spans(self, name: str) -> tuple[int, ...]:
        most_ms = SECONDS_MAX_VISIBILITY * 1000
        return tuple(self._span(name, part, 0, most_ms) for part in self.raw(name).split(","))

    def _span(self, name: str, text: str, least_ms: int, most_ms: int | None) -> int:
        span = parse_duration_ms(text)
        if span is None or span < least_ms or (most_ms is not None and span > most_ms):
            within = f"at least {least_ms} ms" + (f" and at most {most_ms} ms" if most_ms else "")
            raise BadVariable(
                f"{name} must be a span of time such as 30s, 15m or 2h, {within}, not {text!r}."
            )
        return span

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.raw(name).lower()
        if value not in choices:
            raise BadVariable(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
        return value

    def keeper(self, name: str, choices: tuple[str, ...]) -> tuple[str, str | None]:
        """One of the choices, or that it is something of the deployment's own, and what."""
        value = self.raw(name)
        if _MAKER.fullmatch(value):
            return "own", value
        if value.lower() not in choices:
            raise BadVariable(f"{name} must be one of {', '.join(choices)} or MODULE:NAME, not {value!r}.")
        return value.lower(), None

    def credits(self, name: str) -> Decimal:
        try:
            value = Decimal(self.raw(name))
        except InvalidOperation:
            value = Decimal(-1)
        if not value.is_finite() or value < 0:
            raise BadVariable(f"{name} must be a number of credits, not {self.raw(name)!r}.")
        return value

    def secret(self, name: str) -> str | None:
        value = self.raw(name)
        if value and not is_secret(value):
            raise BadVariable(f"{name} must be at least 16 bytes in base64, perhaps after `whsec_`.")
        return value or None

    def drops(self, name: str) -> tuple[FileDrop, ...]:
        found = read_drops(self.raw(name))
        if isinstance(found, str):
            raise BadVariable(f"{name} is no list of places with their workflows: {found}")
        return found

    def analytics(self, name: str) -> str:
        value = self.raw(name)
        kind, _, rest = value.partition(":")
        if value != "none" and not (kind in ("file", "sqs", "events") and rest):
            raise BadVariable(f"{name} must be none, file:PATH, sqs:QUEUE or events:BUS, not {value!r}.")
        return value
