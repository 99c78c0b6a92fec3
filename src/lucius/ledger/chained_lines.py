"""A file of JSON lines in which each line vouches for all before it.

In: documents, one after the other. Out: lines `{"body":…,"sha256":"…"}`; or the documents of such a file, and
the number of the first line that is not what was written.

The sum of a line is SHA-256 over the sum of the line before (64 zeros before the first) and the bytes of
`body` as they stand in the file. So a byte that was changed, and a line that was left out, put in or moved,
is found at its line, with any program that has SHA-256. It keeps damage out, and forgers only where the last
sum is known from elsewhere.
"""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Final

FIRST_SUM: Final = "0" * 64
LINE_BYTES_MAX: Final = 268_435_456
_HEAD: Final = b'{"body":'
_MIDDLE: Final = b',"sha256":"'
_TAIL: Final = b'"}\n'
_END_LENGTH: Final = len(_MIDDLE) + len(FIRST_SUM) + len(_TAIL)


class BadLine(Exception):
    """A line that is not what was written."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"line {number:,}: {reason}")
        self.number = number
        self.reason = reason


def sum_of_line(before: str, body: bytes) -> str:
    return sha256(before.encode() + body).hexdigest()


class ChainWriter:
    """A new file, for its owner alone. It has its name once it is complete."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError`."""
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file = os.fdopen(descriptor, "wb")
        self.last_sum = FIRST_SUM
        self.lines = 0

    def write(self, body: bytes) -> None:
        self.last_sum = sum_of_line(self.last_sum, body)
        self._file.write(b"".join((_HEAD, body, _MIDDLE, self.last_sum.encode(), _TAIL)))
        self.lines += 1

    def finish(self) -> None:
        """Durable on return, under its own name, which nothing had."""
        self._file.flush()
        os.fsync(self._file.fileno())
        os.link(self._draft, self._path)
        descriptor = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def __enter__(self) -> "ChainWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._draft.unlink(missing_ok=True)


class ChainReader:
    """The bodies of a file's lines, each checked before it is given."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last_sum = FIRST_SUM
        self.lines = 0

    def __iter__(self) -> Iterator[bytes]:
        """Raises `BadLine` and `OSError`."""
        with self._path.open("rb") as file:
            while line := file.readline(LINE_BYTES_MAX):
                yield self._checked(line)

    def _checked(self, line: bytes) -> bytes:
        number = self.lines + 1
        end = len(line) - _END_LENGTH
        framed = end >= len(_HEAD) and line.startswith(_HEAD) and line.endswith(_TAIL)
        if not framed or line[end : end + len(_MIDDLE)] != _MIDDLE:
            reason = "it was cut off" if not line.endswith(b"\n") else "it is no line of an export"
            raise BadLine(number, reason)
        body = line[len(_HEAD) : end]
        expected = sum_of_line(self.last_sum, body)
        if line[end + len(_MIDDLE) : -len(_TAIL)] != expected.encode():
            raise BadLine(number, "its sum does not match: it, or the order of the lines, was changed")
        self.last_sum, self.lines = expected, number
        return body
