"""What the shapes share: their register, and what services do."""

from collections.abc import Awaitable, Callable

from tests.replay.temporal_house import House

from lucius.core.states import StepState
from lucius.lab.temporal_book import Book
from lucius.lab.temporal_desk import Desk, Script, succeed

SHORT_MS = 250
LONG_MS = 60_000

Shape = Callable[[House], Awaitable[Book]]
SHAPES: dict[str, Shape] = {}


def shape(play: Shape) -> Shape:
    SHAPES[play.__name__] = play
    return play


async def silence(desk: Desk, book: Book) -> None:
    pass


async def give_up(desk: Desk, book: Book) -> None:
    await desk.result(book, StepState.FAILED_RETRY)


async def in_order(desk: Desk, book: Book) -> None:
    await desk.ack(book)
    await desk.result(book, StepState.SUCCEEDED)


def first(once: Script) -> Script:
    """This for the first attempt of the job, success for those after it."""

    async def script(desk: Desk, book: Book) -> None:
        await (once if desk.calls.count("attempt") == 1 else succeed)(desk, book)

    return script
