"""Faults on purpose: each strikes where it is told to, and jobs end well all the same."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sdk.test_sdk_runner import Log, MemoryTransport, directive, made, running, until

from lucius.sdk import ReplyAnswer, Task, parse_directive
from lucius.sdk.chaos import ChaosRates, ChaosTransport
from lucius.sdk.messages import ack
from lucius.settings import BadSetting, read_settings

Message = dict[str, Any]


def chaotic(transport: MemoryTransport, rates: ChaosRates, *chances: float, **more: Any) -> ChaosTransport:
    drawn: Iterator[float] = iter(chances)
    return ChaosTransport(transport, rates, chance=lambda: next(drawn), **{"log": Log(), **more})


async def replied(transport: ChaosTransport) -> ReplyAnswer:
    named = parse_directive(directive())
    assert named is not None
    return await transport.reply(named, ack(named, 1))


async def leased(transport: ChaosTransport) -> list[str]:
    found = await transport.lease(max_directives=9, wait_seconds=0.01)
    return [message["jobId"] for message in found]


async def test_directives_are_lost_and_come_twice() -> None:
    log = Log()
    inner = MemoryTransport(directive(1), directive(2), directive(3))
    rates = ChaosRates(drop=0.5, duplicate=0.5)
    #                                    1: dropped, 2: kept, twice, 3: kept, once
    transport = chaotic(inner, rates, 0.49, 0.5, 0.0, 0.9, 0.5, log=log)
    assert await leased(transport) == ["job_2", "job_2", "job_3"]
    assert [(event, fields["fault"], fields["jobId"]) for event, fields in log.lines] == [
        ("chaos", "drop", "job_1"),
        ("chaos", "duplicate", "job_2"),
    ]


async def test_a_lost_reply_counts_as_sent() -> None:
    inner = MemoryTransport()
    assert await replied(chaotic(inner, ChaosRates(drop=0.5), 0.1)) == ReplyAnswer("sent")
    assert inner.replies == []


async def test_a_repeated_reply_gets_the_answer_of_the_first() -> None:
    class Counts(MemoryTransport):
        async def reply(self, to: Any, message: Message) -> ReplyAnswer:
            await super().reply(to, message)
            return ReplyAnswer("applied" if len(self.replies) == 1 else "stale")

    inner = Counts()
    assert await replied(chaotic(inner, ChaosRates(duplicate=1.0), 0.0)) == ReplyAnswer("applied")
    assert len(inner.replies) == 2


async def test_a_reply_is_held() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    await replied(chaotic(MemoryTransport(), ChaosRates(delay_ms_max=4_000), 0.25, sleep=sleep))
    assert slept == [1.0]


@pytest.mark.parametrize(("chances", "sent"), [((0.0,), 0), ((0.9, 0.0), 1)])
async def test_the_process_ends_before_a_reply_or_after(chances: tuple[float, ...], sent: int) -> None:
    class Killed(Exception):
        pass

    def crash() -> None:
        raise Killed

    inner = MemoryTransport()
    with pytest.raises(Killed):
        await replied(chaotic(inner, ChaosRates(crash=0.5), *chances, crash=crash))
    assert len(inner.replies) == sent


def test_a_crash_is_as_hard_as_a_kill() -> None:
    program = (
        "import asyncio; from tests.sdk.test_sdk_chaos import *\n"
        "asyncio.run(replied(ChaosTransport(MemoryTransport(), ChaosRates(crash=1.0), chance=lambda: 0.0)))"
    )
    folder = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL


@given(number=st.integers(1, 20))
async def test_without_rates_nothing_strikes(number: int) -> None:
    inner = MemoryTransport(*(directive(each) for each in range(number)))
    transport = chaotic(inner, ChaosRates())
    found = await transport.lease(max_directives=99, wait_seconds=0.01)
    assert len(found) == number
    assert not ChaosRates().any


async def test_copies_are_one_piece_of_work() -> None:
    done: list[str] = []

    async def work(task: Task) -> Message:
        done.append(task.directive.job_id)
        return await made(task)

    inner = MemoryTransport(*(directive(each) for each in range(5)))
    drawn = (0.9 if each % 3 else 0.1 for each in count())
    transport = ChaosTransport(inner, ChaosRates(duplicate=0.5), chance=lambda: next(drawn), log=Log())
    async with running(transport, work):  # type: ignore[arg-type]  # as a runner sees it, it is a transport
        await until(lambda: len({it["jobId"] for it in inner.of("RESULT")}) == 5)
    assert sorted(done) == [f"job_{each}" for each in range(5)]


def test_rates_are_read_from_the_environment() -> None:
    env = {"LUCIUS_CHAOS_DELAY": "250ms", "LUCIUS_CHAOS_DROP": "5%", "LUCIUS_CHAOS_CRASH": "0.01"}
    assert read_settings(env).chaos == ChaosRates(delay_ms_max=250, drop=0.05, crash=0.01)
    assert not read_settings({}).chaos.any


@pytest.mark.parametrize("text", ["2", "-0.1", "101%", "5%%", "nan", "often", "%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="LUCIUS_CHAOS_DROP must be a share from 0 to 1"):
        read_settings({"LUCIUS_CHAOS_DROP": text})
