"""The bell: whoever waits hears it, or learns in time that it did not ring."""

import asyncio

import pytest

from lucius.bus.bell import Bell

LONG_SECONDS = 60.0


async def test_who_comes_late_hears_that_it_rang() -> None:
    bell = Bell()
    bell.ring()
    assert await bell.wait(LONG_SECONDS)
    assert await bell.wait(), "it stays rung"


async def test_who_waits_hears_it() -> None:
    bell = Bell()
    waiting = asyncio.create_task(bell.wait(LONG_SECONDS))
    await asyncio.sleep(0)
    assert not waiting.done()
    bell.ring()
    bell.ring()
    assert await waiting


async def test_who_waits_in_vain_learns_it_and_may_wait_again() -> None:
    bell = Bell()
    assert not await bell.wait(0.001)
    waiting = asyncio.create_task(bell.wait())
    await asyncio.sleep(0)
    bell.ring()
    assert await waiting


async def test_a_muted_bell_has_not_rung() -> None:
    bell = Bell()
    bell.ring()
    bell.mute()
    assert not await bell.wait(0.001)


async def test_a_wait_may_be_given_up() -> None:
    bell = Bell()
    waiting = asyncio.create_task(bell.wait(LONG_SECONDS))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    bell.ring()
    assert await bell.wait(LONG_SECONDS)
