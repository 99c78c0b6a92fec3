"""What a handler is given, and what a handler is.

In: a directive, the workspace, a way to report. Out: bytes read, artifacts written, progress reported.
The workspace's faults leave here as `Retryable` or `Final`, so a handler needs no error handling of its own
for the usual cases.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, overload

import msgspec

from lucius.core.usage import REPORT_NAMES_MAX, is_usage_name, number_problem
from lucius.sdk.directive import Directive, Json, Upstream, uri_of
from lucius.sdk.errors import Errors, Final, Retryable, Stopped, well_formed
from lucius.sdk.payloads import ReadPayload, payload_reader, untyped
from lucius.sdk.ports import Workspace

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Payload = TypeVar("Payload", default=dict[str, Any])
else:
    from typing import TypeVar

    Payload = TypeVar("Payload")

Report = Callable[["Task[Any]"], Awaitable[None]]


class Task(Generic[Payload]):
    """One directive being worked on. `Task[Page]` is one whose payload is a `Page`, where the service says so
    (`payload=Page`); a bare `Task` has a dict."""

    __slots__ = (
        "_confirm",
        "_report",
        "_workspace",
        "directive",
        "heartbeat_seconds",
        "note",
        "payload",
        "percent",
        "reported",
        "sent_at",
        "stop_requested",
        "usage",
        "written",
    )

    def __init__(
        self,
        directive: Directive,
        workspace: Workspace,
        report: Report,
        *,
        heartbeat_seconds: float,
        confirm: Report | None = None,
    ) -> None:
        """`confirm`: asks whether the attempt is still current, if the last answer is older than a
        heartbeat."""
        self._confirm = confirm
        self.directive = directive
        self.payload: Payload = untyped(directive.payload)  # type: ignore[assignment]  # until it was read
        self._workspace = workspace
        self._report = report
        self.heartbeat_seconds = heartbeat_seconds
        self.percent = 0
        self.note = ""
        self.reported = False
        self.sent_at: float | None = None  # on the runner's clock: the last sign of life
        # True once the attempt no longer counts; work in a thread may look at it between two pieces.
        self.stop_requested = False
        self.written: list[str] = []  # the URIs of its artifacts, in their order
        self.usage: dict[str, int | float] = {}

    def used(self, name: str, number: float) -> None:
        """Adds to what this attempt used (pages, tokens, money); told with its RESULT, also where it fails.
        Raises `ValueError` for what cannot be told."""
        total = self.usage.get(name, 0) + number
        problem = number_problem(total)
        if not is_usage_name(name):
            problem = "needs a name of up to 64 letters, digits, dots, dashes and underscores"
        elif name not in self.usage and len(self.usage) >= REPORT_NAMES_MAX:
            problem = f"is one name more than the {REPORT_NAMES_MAX} that an attempt may report"
        if problem is not None:
            raise ValueError(f"usage {name!r} {problem}")
        self.usage[name] = total

    @property
    def upstream(self) -> tuple[Upstream, ...]:
        return self.directive.upstream

    @property
    def input_uri(self) -> str:
        uri = uri_of(self.directive.input_ref)
        if uri is None:
            raise Final("INPUT_NOT_FOUND", "input_ref has no uri")
        return uri

    async def progress(self, percent: int, note: str = "") -> None:
        """Reports how far the work is. Raises `Stopped` when the attempt no longer counts."""
        self.percent = max(0, min(100, int(percent)))
        self.note = well_formed(note)
        await self._report(self)
        self.raise_if_stopped()

    def raise_if_stopped(self) -> None:
        if self.stop_requested:
            raise Stopped

    async def read(self, uri: str) -> bytes:
        try:
            return await self._workspace.read(uri)
        except FileNotFoundError:
            raise Final("INPUT_NOT_FOUND", "nothing lies at the input's uri") from None
        except PermissionError as fault:
            raise Final("INPUT_NOT_ALLOWED", str(fault)) from None
        except OSError as fault:
            raise Retryable("INPUT_UNAVAILABLE", str(fault)) from None
        except ValueError as fault:
            raise Final("INPUT_TOO_LARGE", str(fault)) from None

    async def write_artifact(self, name: str, data: bytes | str) -> str:
        """Keeps `data` as this attempt's own, and answers with its URI. A text is written as UTF-8. The
        RESULT names all that were written."""
        directive, data = self.directive, _as_bytes(data)
        try:
            uri = self._workspace.artifact_uri(
                uri_of(directive.workspace_ref) or "", directive.step_type, directive.attempt_no, name
            )
            await self._workspace.write_new(uri, data)
        except FileExistsError:
            # An earlier run of this very attempt wrote something else; the next attempt has its own folder.
            raise Retryable("ARTIFACT_CONFLICT", f"{name} of this attempt holds other bytes") from None
        except PermissionError as fault:
            raise Final("WORKSPACE_NOT_ALLOWED", str(fault)) from None
        except OSError as fault:
            raise Retryable("WORKSPACE_UNAVAILABLE", str(fault)) from None
        except ValueError as fault:
            raise Final("ARTIFACT_TOO_LARGE", str(fault)) from None
        if uri not in self.written:
            self.written.append(uri)
        return uri

    async def write_output(self, data: bytes | str) -> None:
        """Writes the job's output, replacing what an earlier step left there. A text is written as UTF-8.
        Raises `Stopped` when this attempt no longer counts: another attempt may own the output by now."""
        uri, data = uri_of(self.directive.output_ref), _as_bytes(data)
        if uri is None:
            return
        if self._confirm is not None:
            await self._confirm(self)
        self.raise_if_stopped()
        try:
            await self._workspace.write(uri, data)
        except PermissionError as fault:
            raise Final("OUTPUT_NOT_ALLOWED", str(fault)) from None
        except OSError as fault:
            raise Retryable("OUTPUT_UNAVAILABLE", str(fault)) from None
        except ValueError as fault:
            raise Final("OUTPUT_TOO_LARGE", str(fault)) from None


def _as_bytes(data: bytes | str) -> bytes:
    """Nothing else is taken: to a library below, a name would be a file to copy."""
    if isinstance(data, str):
        return data.encode("utf-8", "replace")
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"bytes or a text can be written, not {type(data).__name__}")
    return bytes(data)


Made = dict[str, Json] | None
Handler = Callable[[Task[Any]], Awaitable[Made]]
Ready = Callable[[], Awaitable[str | None]]


class Service(msgspec.Struct, frozen=True):
    """A name that directives are addressed to, and the function that does the work.

    The function returns the reference of what it made (`{"uri": …}`), or None. `read_payload` makes of a
    payload what the function is given. `errors` says what its exceptions mean. `ready` answers with what
    keeps it from working now, or None.
    """

    name: str
    handler: Handler
    read_payload: ReadPayload | None = None
    errors: Errors = {}
    ready: Ready | None = None


@overload
def service(
    name: str, *, payload: Mapping[str, Json] | None = None, errors: Errors = ..., ready: Ready | None = None
) -> Callable[[Callable[[Task], Awaitable[Made]]], Service]: ...


@overload
def service(
    name: str, *, payload: type[Payload], errors: Errors = ..., ready: Ready | None = None
) -> Callable[[Callable[[Task[Payload]], Awaitable[Made]]], Service]: ...


def service(
    name: str, *, payload: Any = None, errors: Errors | None = None, ready: Ready | None = None
) -> Callable[[Any], Service]:
    """`@service("ocr")` above a handler makes it a `Service`.

    `payload`: a pydantic model, a msgspec Struct, or a JSON Schema that payloads must keep. `errors`: what
    exceptions mean, as in `{TimeoutError: Retryable("UPSTREAM_TIMEOUT")}`. `ready`: asked by `/readyz`.
    """
    read = None if payload is None else payload_reader(payload)

    def wrap(handler: Handler) -> Service:
        return Service(name, handler, read, dict(errors or {}), ready)

    return wrap
