"""The process in which documents are worked on: a small one may unfold into more than any machine has.

In, on standard input: pieces of work, each with its name, its arguments and a body. Out, on standard output:
what was made of each. It has a bounded memory from its start and a bounded time for each piece. It keeps what
a task left only until that task ends, and ends with its standard input, so that it never outlives its parent.
Knows the pure parts of the services and nothing of jobs, workspaces or networks.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from lucius.sdk.errors import Failure, kind_and_place
from lucius.services.work_frames import FRAME_BYTES_MAX, HEAD, Failed, take_frame
from lucius.services.work_pieces import DocumentWork

try:
    import resource
except ImportError:  # not on every system
    resource = None  # type: ignore[assignment]

MEMORY_UNKNOWN_BYTES: Final = 512 * 1024**2
_PAGE_BYTES: Final = 4096 if resource is None else resource.getpagesize()


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    work: str
    seconds_max: int
    arguments: dict[str, Any]


def main(memory_bytes_max: int) -> None:
    _bound_memory(memory_bytes_max)
    work = DocumentWork()
    while (frame := take_frame(sys.stdin.buffer, FRAME_BYTES_MAX)) is not None:
        asked = msgspec.json.decode(frame[0], type=_Asked)
        body = frame[1]
        del frame
        if asked.work == "rest":
            work = DocumentWork()
            _say({"made": {"bytes": _used_bytes()}})
            continue
        _bound_time(asked.seconds_max)
        try:
            piece: Callable[..., tuple[dict[str, Any], bytes]] = work.pieces[asked.work]
            made, out = piece(body, **asked.arguments)
        except MemoryError:
            work = DocumentWork()
            _say({"failed": Failed(code="WORK_OUT_OF_MEMORY", message="")})
        except Failure as failure:
            _say({"failed": Failed(code=failure.code, message=failure.message)})
        except Exception as fault:
            _say({"failed": Failed(code=None, message=kind_and_place(fault))})
        else:
            _say({"made": made}, out)


def _say(said: dict[str, Any], body: bytes = b"") -> None:
    head = msgspec.json.encode(said)
    sys.stdout.buffer.write(HEAD.pack(len(head), len(body)))
    sys.stdout.buffer.write(head)
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()


def _statm(place: int) -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[place]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def _used_bytes() -> int:
    return _statm(1) or 0


def _bound_memory(bytes_max: int) -> None:
    """Above what the interpreter and our own code take, where the system can."""
    if resource is not None:
        limit = (_statm(0) or MEMORY_UNKNOWN_BYTES) + bytes_max
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _bound_time(seconds_max: int) -> None:
    """Of the processor, for the piece at hand."""
    if resource is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        until = int(used.ru_utime + used.ru_stime) + seconds_max + 1
        resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main(int(sys.argv[1]))
