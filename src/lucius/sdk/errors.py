"""How a handler says that it failed.

`Retryable` and `Final` are raised by handlers; `Stopped` is raised into them. Any other exception is a fault
of the handler: the step is retried under the code UNEXPECTED, and only the kind and place of the exception
are told, because its text could hold anything.
"""

from pathlib import PurePath

CODE_CHARS_MAX = 64
MESSAGE_CHARS_MAX = 500

UNEXPECTED = "UNEXPECTED"
STOPPED = "STOPPED"
SHUTDOWN = "SHUTDOWN"
INVALID_OUTPUT = "INVALID_OUTPUT"


class _Failure(Exception):
    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code[:CODE_CHARS_MAX]
        self.message = bounded(message)


class Retryable(_Failure):
    """This attempt failed; another may succeed."""


class Final(_Failure):
    """No attempt can succeed."""


class Stopped(Exception):
    """The orchestrator no longer wants this attempt."""


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
