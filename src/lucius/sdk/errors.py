"""How a handler says that it failed.

`Retryable` and `Final` are raised by handlers; `Stopped` is raised into them. A service may say what other
exceptions mean (`errors`). Any that it does not name is a fault of the handler: the step is retried under the
code UNEXPECTED. Only the kind and place of an exception are reported, because its text could hold anything.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath

CODE_CHARS_MAX = 64
MESSAGE_CHARS_MAX = 500

UNEXPECTED = "UNEXPECTED"
STOPPED = "STOPPED"
SHUTDOWN = "SHUTDOWN"
INVALID_OUTPUT = "INVALID_OUTPUT"
PAYLOAD_INVALID = "PAYLOAD_INVALID"


class Failure(Exception):
    """What `Retryable` and `Final` have in common."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message)
        self.code = well_formed(code)[:CODE_CHARS_MAX]
        self.message = bounded(well_formed(message))

    def with_message(self, message: str) -> "Failure":
        return type(self)(self.code, message)


class Retryable(Failure):
    """This attempt failed; another may succeed.

    `retry_after_seconds`: when, in the place of the backoff. `slow_down`: the service is to be given less for
    a while, because what it depends on is overrun.
    """

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        retry_after_seconds: float | None = None,
        slow_down: bool = False,
    ) -> None:
        super().__init__(code, message)
        self.retry_after_seconds = retry_after_seconds
        self.slow_down = slow_down

    def with_message(self, message: str) -> "Retryable":
        return Retryable(
            self.code, message, retry_after_seconds=self.retry_after_seconds, slow_down=self.slow_down
        )


class Final(Failure):
    """No attempt can succeed."""


class Stopped(Exception):
    """The orchestrator no longer wants this attempt."""


Errors = Mapping[type[Exception], Failure]


def meaning(fault: BaseException, errors: Errors) -> Failure:
    """By the most specific class that `errors` names. A meaning without a text of its own gives the place."""
    kinds: Sequence[type] = type(fault).__mro__
    found = next((errors[kind] for kind in kinds if kind in errors), Retryable(UNEXPECTED))
    return found if found.message else found.with_message(kind_and_place(fault))


def well_formed(text: str) -> str:
    """Half a character, as the names of files may hold one, could not be sent: it is replaced."""
    return text.encode("utf-8", "replace").decode()


def bounded(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARS_MAX else message[: MESSAGE_CHARS_MAX - 1] + "…"


def kind_and_place(fault: BaseException) -> str:
    """`ValueError at report.py:12`: enough to find the line, nothing of what the exception says."""
    step = fault.__traceback__
    if step is None:
        return type(fault).__name__
    while step.tb_next is not None:
        step = step.tb_next
    file = PurePath(step.tb_frame.f_code.co_filename).name
    return bounded(f"{type(fault).__name__} at {file}:{step.tb_lineno}")
