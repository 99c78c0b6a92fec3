"""The wake-up event: a waiter sees it, or learns in time that it was not set."""

import asyncio

import pytest

from lucius.bus.wake import WakeEvent

LONG_SECONDS = 60.0


async def test_who_comes_late_hears_that_it_rang() -> None:
    wake = WakeEvent()
    wake.set()
    assert await wake.wait(LONG_SECONDS)
    assert await wake.wait(), "it stays rung"


async def test_who_waits_hears_it() -> None:
    wake = WakeEvent()
    waiting = asyncio.create_task(wake.wait(LONG_SECONDS))
    await asyncio.sleep(0)
    assert not waiting.done()
    wake.set()
    wake.set()
    assert await waiting


async def test_who_waits_in_vain_learns_it_and_may_wait_again() -> None:
    wake = WakeEvent()
    assert not await wake.wait(0.001)
    waiting = asyncio.create_task(wake.wait())
    await asyncio.sleep(0)
    wake.set()
    assert await waiting


async def test_a_cleared_event_is_not_set() -> None:
    wake = WakeEvent()
    wake.set()
    wake.clear()
    assert not await wake.wait(0.001)


async def test_a_wait_may_be_given_up() -> None:
    wake = WakeEvent()
    waiting = asyncio.create_task(wake.wait(LONG_SECONDS))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    wake.set()
    assert await wake.wait(LONG_SECONDS)
