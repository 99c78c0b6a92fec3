"""Faults on purpose, between a service and the orchestrator: delays, losses, repeats and crashes.

In: a transport, how often each fault shall strike, chance. Out: a transport. For tests of a deployment: jobs
must end well all the same, because ACK timeouts, leases and attempts cover each of these faults.
"""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from lucius.sdk.directive import Directive, Json
from lucius.sdk.ports import Log, ReplyAnswer, Transport

_LOST = ReplyAnswer("sent")
"""The service believes that it was heard."""


class ChaosRates(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of messages, from 0 to 1. A message is a directive or a reply."""

    delay_ms_max: int = 0
    """Each reply is held for a time from 0 to this."""
    drop: float = 0.0
    duplicate: float = 0.0
    crash: float = 0.0
    """Of replies: the process ends before or after one, as with `kill -9`."""

    @property
    def any(self) -> bool:
        return bool(self.delay_ms_max or self.drop or self.duplicate or self.crash)


class ChaosTransport:
    """What is dropped on the way to the service was handed out, and on the way back counts as sent."""

    def __init__(
        self,
        transport: Transport,
        rates: ChaosRates,
        *,
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        crash: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGKILL),
        log: Log | None = None,
    ) -> None:
        self._transport = transport
        self._rates = rates
        self._chance = chance
        self._sleep = sleep
        self._crash = crash
        self._log: Log = log if log is not None else structlog.get_logger("lucius.sdk")

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        leased = await self._transport.lease(max_directives=max_directives, wait_seconds=wait_seconds)
        kept: list[dict[str, Json]] = []
        for message in leased:
            if self._strikes("drop", self._rates.drop, message):
                continue
            kept.append(message)
            if self._strikes("duplicate", self._rates.duplicate, message):
                kept.append(message)
        return kept

    async def reply(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer:
        if self._rates.delay_ms_max:
            await self._sleep(self._chance() * self._rates.delay_ms_max / 1000)
        self._maybe_crash("before", message)
        if self._strikes("drop", self._rates.drop, message):
            return _LOST
        answer = await self._transport.reply(directive, message)
        if self._strikes("duplicate", self._rates.duplicate, message):
            await self._transport.reply(directive, message)
        self._maybe_crash("after", message)
        return answer

    def _maybe_crash(self, place: str, message: dict[str, Json]) -> None:
        if self._strikes(f"crash_{place}", self._rates.crash / 2, message):
            self._crash()

    def _strikes(self, fault: str, share: float, message: dict[str, Json]) -> bool:
        if not share or self._chance() >= share:
            return False
        names = {name: message.get(name) for name in ("type", "jobId", "stepId", "attempt_no", "lease_id")}
        self._log.warning("chaos", fault=fault, **names)
        return True
