"""What the shapes share: their register, and what services do."""

from collections.abc import Awaitable, Callable

from tests.replay.temporal_setup_replay import Deployment

from lucius.core.states import StepState
from lucius_lab.bench.stand_in_invoker import Script, StandInInvoker, succeed
from lucius_lab.bench.stand_in_ledger import StandInLedger

SHORT_MS = 250
LONG_MS = 60_000

Shape = Callable[[Deployment], Awaitable[StandInLedger]]
SHAPES: dict[str, Shape] = {}


def shape(play: Shape) -> Shape:
    SHAPES[play.__name__] = play
    return play


async def silence(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
    pass


async def give_up(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
    await invoker.result(stand_in, StepState.FAILED_RETRY)


async def in_order(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
    await invoker.ack(stand_in)
    await invoker.result(stand_in, StepState.SUCCEEDED)


def first(once: Script) -> Script:
    """This for the first attempt of the job, success for those after it."""

    async def script(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        await (once if invoker.calls.count("attempt") == 1 else succeed)(invoker, stand_in)

    return script
