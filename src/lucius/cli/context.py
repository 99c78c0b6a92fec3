"""Where a client command sits: the API to ask, the streams to write, the clock to read.

In: the environment and the process's streams, once per command. Out: answers, or the end of the command
with the right words on stderr and the right exit code. This is the client's assembly: clocks and
streams enter here and nowhere else.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Final, NoReturn, TextIO

import typer

from lucius.cli.exits import EXIT_BROKEN_PIPE
from lucius.cli.http import EXIT_ENDED_BADLY, Api, ApiAnswer, ApiFault
from lucius.cli.profiles import chosen_target, config_path
from lucius.cli.render import Doc, Headings, TextLayout, compact, fact_lines, plain, set_table, trouble_of

DEFAULT_URL: Final = "http://127.0.0.1:8420"
# The profile that the command line names. One command line is one context.
PROFILE_ASKED: Final[ContextVar[str | None]] = ContextVar("profile", default=None)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print what the API said, as compact JSON.")]
KeyOption = Annotated[
    str | None, typer.Option("--key", help="Idempotency key: the same key never makes two jobs.")
]


class Output:
    """The two streams. Data goes to stdout, everything said about it to stderr."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self._passing = False

    def passing(self, text: str) -> None:
        """Shows how far it is, on a terminal only; the next text takes its place, an empty one its leave."""
        if sys.stderr.isatty() and (text or self._passing):
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
            self._passing = bool(text)

    def data(self, text: str) -> None:
        try:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            _leave_pipe(sys.stdout)
        except (OSError, AttributeError) as fault:
            self._not_written(fault, text)

    def json(self, body: bytes) -> None:
        """One document on one line, as UTF-8 whatever the locale: JSON has no other encoding."""
        try:
            sys.stdout.flush()
            sys.stdout.buffer.write(compact(body) + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            _leave_pipe(sys.stdout)
        except (OSError, AttributeError) as fault:
            self._not_written(fault, compact(body).decode())

    def _not_written(self, fault: Exception, text: str) -> NoReturn:
        """A disk that is full, or a stdout that was closed: what was to be said is said where it can be."""
        why = getattr(fault, "strerror", None) or "it is closed"
        self.say(f"error: Cannot write to stdout: {why}. It would have said:\n{text}")
        if sys.stdout is not None:
            _give_up(sys.stdout)
        raise typer.Exit(1)

    def say(self, text: str) -> None:
        try:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
        except BrokenPipeError:
            _leave_pipe(sys.stderr)

    def table(self, headings: Headings, rows: list[tuple[object, ...]]) -> None:
        self.data(set_table(headings, rows, self.layout()))

    def facts(self, *facts: tuple[str, object]) -> None:
        self.data(fact_lines(facts))

    def layout(self) -> TextLayout:
        if not sys.stdout.isatty():
            return TextLayout()
        return TextLayout(columns=shutil.get_terminal_size().columns, colour=colour_wanted(sys.stdout))


class CommandContext:
    def __init__(
        self, *, api: Api, out: Output, now_ms: Callable[[], int], pause: Callable[[float], None]
    ) -> None:
        self.api = api
        self.out = out
        self.now_ms = now_ms
        self.pause = pause

    def need(self, answer: ApiAnswer | ApiFault) -> ApiAnswer:
        """The answer; a fault ends the command."""
        if isinstance(answer, ApiFault):
            self.stop(answer)
        return answer

    def stop(self, fault: ApiFault) -> NoReturn:
        if self.out.as_json and fault.body is not None:
            self.out.json(fault.body)
        self.out.say(fault_text(fault))
        raise typer.Exit(fault.exit_code)

    def ended(self, job: Doc) -> None:
        """The exit code of a command that waited for a job's end."""
        if job.get("state") != "SUCCEEDED":
            self.out.say(ending_text(job))
            raise typer.Exit(EXIT_ENDED_BADLY)


@contextmanager
def context(*, as_json: bool) -> Iterator[CommandContext]:
    """A context for one command; its connection is closed at the end."""
    out = Output(as_json=as_json)
    target = chosen_target(os.environ, PROFILE_ASKED.get(), path=own_config_path(), warn=out.say)
    if isinstance(target, str):
        raise typer.BadParameter(target)
    api = Api(target, say=out.say)
    try:
        yield CommandContext(
            api=api,
            out=out,
            now_ms=lambda: time.time_ns() // 1_000_000,
            pause=time.sleep,
        )
    finally:
        api.close()


def own_config_path() -> Path:
    return config_path(os.environ, Path.home())


def colour_wanted(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def checked_key(key: str | None) -> str | None:
    """An idempotency key as a header can carry it."""
    from lucius.client.target import header_safe

    if key is not None and (not key.strip() or not header_safe(key)):
        raise typer.BadParameter("--key takes printable ASCII characters.")
    return key


def fault_text(fault: ApiFault) -> str:
    head = f"{fault.code}: {fault.message}" if fault.code else fault.message
    lines = [f"error: {plain(head)}"]
    lines += [f"  {plain(error.pointer or '/')}: {plain(error.message)}" for error in fault.errors]
    if fault.hint:
        lines.append(f"  {plain(fault.hint)}")
    return "\n".join(lines)


def ending_text(job: Doc) -> str:
    job_id, state = plain(job.get("jobId")), plain(job.get("state"))
    trouble = trouble_of(job, "error_code", "error_message")
    head = f"{job_id} {state}: {trouble}" if trouble else f"{job_id} {state}"
    return f"{head}\n  See `lucius jobs events {job_id}`; try again with `lucius jobs rerun {job_id}`."


def _leave_pipe(stream: TextIO) -> NoReturn:
    """The reader is gone: say nothing."""
    _give_up(stream)
    raise typer.Exit(EXIT_BROKEN_PIPE)


def _give_up(stream: TextIO) -> None:
    """Gives the interpreter a stream that it can flush at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
