"""The stage on which rules are played: directives go out, replies come in, the service dies and comes back.

In: the way to the service, samples, patience. Out: attempts whose replies can be awaited. Every rule gets
jobs of its own, so that none depends on what another has done.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Protocol

import msgspec

from lucius.certify.process import ServiceProcess
from lucius.certify.transcript import ObservedAttempt, ObservedReply, Transcript
from lucius.certify.values import Carrier, CertifyTimeouts, Json, Sample, SampleSet
from lucius.contracts.times import rfc3339
from lucius.core.routing import lane_of, reply_topic

SYSTEM = "certify"
STEP = "step_01"
TEXT = "The certificate asks politely.\n"
SETTLE_ACKS = 2  # in the time of so many of its ACKs a service would have spoken
SETTLE_SECONDS_MAX = 2.0
UNPOLLED_SECONDS_MAX = 5.0


class ServiceSide(Protocol):
    """How directives reach the service."""

    async def send(self, attempt: ObservedAttempt) -> None: ...

    async def send_poison(self, message: Json) -> None: ...


class PolledSide(ServiceSide, Protocol):
    """Where the service comes and asks, one can see whether it does."""

    async def withdraw(self) -> None: ...

    async def end_polls(self) -> None: ...

    async def until_polled(self, seconds: float) -> bool: ...

    async def until_unpolled(self, seconds: float) -> bool: ...

    async def until_taken(self, seconds: float) -> bool: ...


class CertifySubject(msgspec.Struct, frozen=True, kw_only=True):
    """What the certificate is about."""

    service: str
    step_type: str
    carrier: Carrier
    samples: SampleSet
    timeouts: CertifyTimeouts
    base_url: str  # where the certifier answers
    folder: Path  # inputs, workspaces and outputs lie below it


class ServiceTestbed:
    def __init__(
        self,
        asked: CertifySubject,
        transcript: Transcript,
        side: ServiceSide,
        *,
        polled: PolledSide | None,
        process: ServiceProcess | None,
        now_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        """`polled`: the HTTP side again, if the service polls it for its work."""
        self.asked = asked
        self.timeouts = asked.timeouts
        self.transcript = transcript
        self.process = process
        self._side = side
        self._polled = polled
        self._now_ms = now_ms
        self._new_id = new_id
        self._jobs = count(1)
        self._watching: asyncio.Task[None] | None = None
        transcript.gone = self._gone

    @property
    def over_http(self) -> bool:
        return self.asked.carrier is Carrier.HTTP

    # -- work ----------------------------------------------------------------------------------------------

    async def dispatch(
        self,
        name: str,
        *,
        after: ObservedAttempt | None = None,
        copies: int = 1,
        more: dict[str, Json] | None = None,
        clocked: bool = True,
        prepare: Callable[[ObservedAttempt], None] = lambda _: None,
        tenant: str | None = None,
    ) -> ObservedAttempt:
        """Sends the directive of a new job; with `after`, of the next attempt of the same step."""
        sample = self.asked.samples.named(name)
        if sample is None:
            raise LookupError(f"there is no sample {name}")
        directive = self._directive(sample, after, tenant)
        attempt = self.transcript.open({**directive, **(more or {})}, clocked=clocked)
        prepare(attempt)
        for _ in range(copies):
            await self._side.send(attempt)
        return attempt

    async def send(self, attempt: ObservedAttempt) -> None:
        """Sends the very same directive once more."""
        await self._side.send(attempt)

    async def again(self, attempt: ObservedAttempt) -> None:
        """The same, and sees to it that it is taken where that can be seen."""
        await self._side.send(attempt)
        await self.until_taken()

    async def until_taken(self) -> bool:
        if self._polled is None:
            return True
        return await self._polled.until_taken(self.timeouts.work_seconds)

    async def poison(self, message: Json) -> None:
        await self._side.send_poison(message)

    async def free(self, attempt: ObservedAttempt) -> ObservedReply | None:
        """Calls the work off, so that the service is free for the next rule; answers with its RESULT."""
        attempt.stop = True
        return await self.result(attempt)

    async def result(self, attempt: ObservedAttempt, seconds: float | None = None) -> ObservedReply | None:
        """Waits for the RESULT, by default for `work_seconds`."""
        timeouts = self.timeouts
        return await attempt.result(
            timeouts.work_seconds if seconds is None else seconds, silence_seconds=timeouts.silence_seconds
        )

    async def settle(self, seconds: float | None = None) -> None:
        """A silence, after which nothing more is expected; longer for a service whose ACKs take long."""
        if seconds is None:
            slow = min(SETTLE_ACKS * self._slowest_ack(), SETTLE_SECONDS_MAX)
            seconds = max(self.timeouts.settle_seconds, slow)
        await asyncio.sleep(seconds)

    def _slowest_ack(self) -> float:
        """Of what was handed out while nothing else kept the service busy, in seconds."""
        clocked = [it for it in self.transcript.attempts.values() if it.clocked and it.handed]
        return max((it.of("ACK")[0].at - it.handed[0] for it in clocked if it.of("ACK")), default=0.0)

    # -- the service ---------------------------------------------------------------------------------------

    async def arrive(self, seconds: float) -> str | None:
        """Waits until the service asks for work, or works. Why it cannot be said that it is there."""
        waiting = asyncio.create_task(self._arrived(seconds))
        watched: set[asyncio.Task[bool]] = {waiting}
        if self.process is not None:
            watched.add(asyncio.create_task(self.process.ended(seconds)))
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        for task in watched:
            task.cancel()
        await asyncio.wait(watched)
        if not waiting.cancelled() and waiting.result():
            return None
        if self.process is not None and not self.process.running:
            return f"the service ended with {self.process.returncode}: {self.process.said}"
        what = "asked for work" if self.over_http else "took up a directive"
        return f"the service {self.asked.service} never {what} within {seconds:g} s"

    async def _arrived(self, seconds: float) -> bool:
        if self._polled is not None:
            return await self._polled.until_polled(seconds)
        first = await self.dispatch("ok", clocked=False)
        return await first.first("ACK", "PROGRESS", "RESULT", seconds=seconds) is not None

    async def polls_called_off(self) -> None:
        """Waits until the service, which was told to end, could cancel its polls."""
        await self.settle()
        if self._polled is not None:
            await self._polled.until_unpolled(UNPOLLED_SECONDS_MAX)

    async def crash(self) -> str | None:
        """Kills the service and starts it anew. Why it did not come back."""
        if self.process is None:
            return "there is no command that starts the service"
        await self.process.kill()
        if self._polled is not None:
            await self._polled.end_polls()
        return await self.restart()

    async def restart(self) -> str | None:
        if self.process is None:
            return "there is no command that starts the service"
        await self.begin()
        return await self.arrive(self.timeouts.start_seconds)

    async def begin(self) -> None:
        """Starts the service, if this run starts it. Calls that wait for its messages are notified of its
        end."""
        if self.process is None:
            return
        await self.process.start()
        self._watching = asyncio.create_task(self._watch(self.process))

    async def _watch(self, process: ServiceProcess) -> None:
        await process.ended(None)
        await self.transcript.notify()

    def _gone(self) -> bool:
        return self.process is not None and not self.process.running

    async def withdraw(self) -> None:
        if self._polled is not None:
            await self._polled.withdraw()

    # -- directives ----------------------------------------------------------------------------------------

    def _directive(
        self, sample: Sample, after: ObservedAttempt | None, tenant: str | None
    ) -> dict[str, Json]:
        attempt_no = 1 if after is None else after.directive["attempt_no"] + 1
        job_id = f"job_{self._new_id()}" if after is None else after.directive["jobId"]
        tenant = tenant or f"certify-{next(self._jobs)}"
        if after is not None:
            tenant = after.directive["tenant_id"]
        base = f"{self.asked.base_url}/v1/callbacks"
        folder = self.asked.folder / SYSTEM / str(tenant) / job_id
        lane = lane_of(str(tenant))
        return {
            "type": "DIRECTIVE",
            "jobId": job_id,
            "tenant_id": tenant,
            "stepId": STEP,
            "protocol_id": "certify_v1",
            "step_type": self.asked.step_type,
            "service": self.asked.service,
            "attempt_no": attempt_no,
            "lease_id": self._new_id(),
            "input_ref": sample.input_ref or {"uri": self._input(sample, folder)},
            "workspace_ref": sample.workspace_ref or {"uri": f"{(folder / 'workspace').as_uri()}/"},
            "output_ref": sample.output_ref or {"uri": (folder / "output").as_uri()},
            "payload": sample.payload,
            "mode": "DEFAULT",
            "lane": lane,
            "routing_key_used": tenant,
            "correlation_id": f"corr-{self._new_id()}",
            "traceparent": f"00-{_hex(self._new_id(), 32)}-{_hex(self._new_id(), 16)}-01",
            "upstream": sample.upstream,
            "reply_topic": reply_topic(lane),
            "callback_urls": {kind: f"{base}/{kind}" for kind in ("ack", "result", "progress")},
            "callback_token": self._new_id(),
            "lease_expires_at": rfc3339(self._now_ms() + round(self.timeouts.ack_seconds * 1000)),
            "lease_seconds": self.timeouts.lease_seconds,
        }

    def _input(self, sample: Sample, folder: Path) -> str:
        """A file of the job's own, so that no service meets another job's leavings."""
        (folder / "workspace").mkdir(parents=True, exist_ok=True)
        source = None if sample.input_file is None else Path(sample.input_file)
        path = folder / (source.name if source is not None else "input.txt")
        if source is not None:
            _link(source.resolve(), path)
        else:
            path.write_text(TEXT if sample.input_text is None else sample.input_text, encoding="utf-8")
        return path.as_uri()


def _link(source: Path, path: Path) -> None:
    """A long document is not copied for every job; where disks differ, it is."""
    try:
        path.hardlink_to(source)
    except FileExistsError:
        return  # the next attempt of the same job
    except OSError:
        path.write_bytes(source.read_bytes())


def _hex(text: str, length: int) -> str:
    """Digits for a trace, from an id; never all zero."""
    digits = "".join(f"{byte:02x}" for byte in text.encode()[-length // 2 :])
    return digits.rjust(length, "1")[-length:]
