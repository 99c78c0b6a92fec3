"""What every balance must do: exact to the last place, once, however often and by however many it is
asked."""

import asyncio
from decimal import Decimal

from lucius.lifebook.credits import Balance, Balances


async def test_a_hold_is_set_aside_once(balances: Balances) -> None:
    await balances.grant("ws", Decimal("10"))
    assert await balances.hold("ws", "j:0", Decimal("2.5"))
    assert await balances.hold("ws", "j:0", Decimal("2.5"))
    assert await balances.balance("ws") == Balance(
        available=Decimal("7.5"), held=Decimal("2.5"), spent=Decimal(0)
    )


async def test_what_is_too_much_is_refused(balances: Balances) -> None:
    assert not await balances.hold("ws", "j:0", Decimal("0.000001"))
    await balances.grant("ws", Decimal("1"))
    assert not await balances.hold("ws", "j:0", Decimal("1.000000001"))
    assert await balances.hold("ws", "j:0", Decimal("1"))


async def test_the_rest_is_released_once(balances: Balances) -> None:
    await balances.grant("ws", Decimal("10"))
    await balances.hold("ws", "j:0", Decimal("2"))
    for _ in range(3):
        await balances.settle("ws", "j:0", Decimal("0.7"), ttl_at=1_900_000_000)
    assert await balances.balance("ws") == Balance(
        available=Decimal("8.7"), held=Decimal(0), spent=Decimal("1.3")
    )
    assert not await balances.hold("ws", "j:0", Decimal("2"))


async def test_a_hold_that_was_settled_before_it_came_never_comes(balances: Balances) -> None:
    await balances.grant("ws", Decimal("10"))
    await balances.settle("ws", "j:0", Decimal("2"), ttl_at=1_900_000_000)
    assert not await balances.hold("ws", "j:0", Decimal("2"))
    assert await balances.balance("ws") == Balance(available=Decimal("10"), held=Decimal(0), spent=Decimal(0))


async def test_many_at_once_never_overdraw(balances: Balances) -> None:
    await balances.grant("ws", Decimal("1"))
    held = await asyncio.gather(*(balances.hold("ws", f"j{n}:0", Decimal("0.3")) for n in range(8)))
    assert sum(held) == 3
    await asyncio.gather(
        *(balances.settle("ws", f"j{n}:0", Decimal("0.1")) for n in range(8) for _ in range(2) if held[n])
    )
    assert await balances.balance("ws") == Balance(
        available=Decimal("0.4"), held=Decimal(0), spent=Decimal("0.6")
    )
