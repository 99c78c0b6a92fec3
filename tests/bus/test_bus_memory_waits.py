"""Whoever waits at the broker in this process is woken up for what may come, and for nothing else."""

from lucius.bus.memory import MemoryBus, MemoryLimits
from lucius.bus.port import DirectiveOut
from lucius_lab.sim.loop import SimLoop

LOCK_MS = 1_000
OUT = DirectiveOut(service="ocr", lane=0, message_key="k", message_id="m", body=b"{}")


def steps_of_a_wait(*, settled: bool) -> tuple[int, int]:
    """How many steps the loop takes while somebody waits for ten locks' time, and how many messages come."""
    loop = SimLoop(1, start_ms=0)
    bus = MemoryBus(now_ms=loop.now_ms, limits=MemoryLimits(lock_ms=LOCK_MS))
    came: list[int] = []

    async def main() -> None:
        receiver = await bus.directives("ocr", 0)
        await bus.publish_directive(OUT)
        (delivery,) = await receiver.receive(messages_max=1, wait_ms=0)
        if settled:
            await receiver.complete(delivery)
        came.append(len(await receiver.receive(messages_max=1, wait_ms=10 * LOCK_MS)))

    loop.run(main(), steps_max=1_000, seconds_max=60)
    return loop.steps, came[0]


def test_nobody_wakes_up_for_a_lock_that_was_settled() -> None:
    steps, came = steps_of_a_wait(settled=True)
    assert came == 0
    assert steps == 4  # it begins; its time is up; it wakes; its end is heard of


def test_a_lock_that_runs_out_wakes_who_waits() -> None:
    _, came = steps_of_a_wait(settled=False)
    assert came == 1
