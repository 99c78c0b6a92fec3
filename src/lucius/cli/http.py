"""The public API as the client commands see it.

In: a method, a path, perhaps a body. Out: an `Answer` (what the server said, bytes kept as they came)
or a `Fault` (why there is no answer to use, with the exit code it deserves). Knows HTTP and problem
documents; knows nothing of terminals, and prints nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import msgspec

if TYPE_CHECKING:  # the import costs a fifth of a second, which `lucius lane` need not pay
    import httpx2

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_ENDED_BADLY: Final = 3
EXIT_UNREACHABLE: Final = 4

CONNECT_TIMEOUT_SECONDS: Final = 5.0
READ_TIMEOUT_SECONDS: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
WAIT_SECONDS_MAX: Final = 60

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
START_HINT: Final = "Is Lucius running? Start it with `lucius dev`, or set LUCIUS_URL to where it is."
ALIEN_HINT: Final = "Does LUCIUS_URL point at Lucius, or at a proxy in front of it?"

# What to do next, for the problem codes where there is something to do.
HINTS: Final[Mapping[str, str]] = {
    "UNAUTHENTICATED": "Set LUCIUS_API_KEY to a key that this server knows.",
    "FORBIDDEN": "The key lacks the role or the tenant for this.",
    "JOB_NOT_FOUND": "`lucius jobs list` shows the jobs that you may see.",
    "UNKNOWN_REQUEST_TYPE": "`lucius protocols list` shows the request types there are.",
    "INVALID_PAYLOAD": "`lucius protocols show PROTOCOL_ID` shows the schema of each step's payload.",
    "REF_NOT_ALLOWED": (
        "Files must lie below the server's data folder (`lucius dev`: .lucius) or LUCIUS_REF_FILE_ROOTS."
    ),
    "DOC_ID_REQUIRED": "Name the document with --doc-id, or leave BURST.",
    "IDEMPOTENCY_KEY_REUSED": "Take a new key for a new command.",
    "JOB_TERMINAL": "The job has ended; `lucius jobs rerun JOB_ID` starts a new one from it.",
    "JOB_NOT_TERMINAL": "Wait for its end with `lucius jobs watch JOB_ID`, or cancel it first.",
    "JOB_CANCELLING": "A cancelled job cannot be held or resumed; wait for its end, then rerun it.",
    "NOTHING_TO_RERUN": "Every step succeeded; name the step to repeat with --from-step.",
    "BODY_TOO_LARGE": "Put the document behind input_ref and keep the envelope small.",
}
NOT_ALLOWED: Final = frozenset({401, 403})
GATEWAY: Final = frozenset({502, 503, 504})


class FieldFault(msgspec.Struct, frozen=True):
    pointer: str
    message: str


class Problem(msgspec.Struct, frozen=True):
    """The members of an RFC 9457 document that the client reads; `code` is what makes it Lucius's own."""

    code: str
    title: str = ""
    detail: str = ""
    errors: list[FieldFault] = []


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    body: bytes
    doc: dict[str, Any]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no answer. `body` is the problem document, where the server sent one; a `passing` fault
    may be gone a moment later."""

    exit_code: int
    message: str
    code: str | None = None
    errors: tuple[FieldFault, ...] = ()
    hint: str | None = None
    body: bytes | None = None
    passing: bool = False


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where the API is and how to introduce oneself. Parsed once from the environment."""

    url: str
    api_key: str | None = None

    @property
    def loopback(self) -> bool:
        return urlsplit(self.url).hostname in LOOPBACK


def target_of(url: str, api_key: str | None) -> Target | str:
    """The target, or what is wrong with the two settings. Neither text echoes the key."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError:
        return "LUCIUS_URL is not a URL."
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "LUCIUS_URL must look like http://127.0.0.1:8420."
    if parts.username is not None or parts.password is not None:
        return "LUCIUS_URL must not carry a name or password; use LUCIUS_API_KEY."
    if parts.query or parts.fragment:
        return "LUCIUS_URL must not carry a query or a fragment."
    key = (api_key or "").strip()
    if not header_safe(key):
        return "LUCIUS_API_KEY holds characters that no key has."
    return Target(url=url.strip().rstrip("/"), api_key=key or None)


def header_safe(text: str) -> bool:
    return text.isascii() and (text == "" or text.isprintable())


def job_path(job_id: str, rest: str = "") -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}{rest}"


class Api:
    """One connection to one Lucius, opened at the first call."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._client: httpx2.Client | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def get(
        self, path: str, params: Mapping[str, str] | None = None, *, wait_seconds: int = 0
    ) -> Answer | Fault:
        asked = dict(params or {})
        if wait_seconds:
            asked["wait"] = str(wait_seconds)
        return self._call("GET", path, params=asked, wait_seconds=wait_seconds)

    def post(self, path: str, body: bytes | None = None, *, key: str | None = None) -> Answer | Fault:
        return self._call("POST", path, body=body, key=key)

    def _open(self) -> "httpx2.Client":
        import httpx2

        if self._client is None:
            self._client = httpx2.Client(
                headers={"Accept": "application/json"}
                | ({"Authorization": f"Bearer {self._target.api_key}"} if self._target.api_key else {}),
                timeout=httpx2.Timeout(READ_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS),
                # A proxy from the environment cannot see this machine's own loopback.
                trust_env=not self._target.loopback,
            )
        return self._client

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        key: str | None = None,
        wait_seconds: int = 0,
    ) -> Answer | Fault:
        import httpx2

        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key is not None:
            headers["Idempotency-Key"] = key
        timeout = httpx2.Timeout(READ_TIMEOUT_SECONDS + wait_seconds, connect=CONNECT_TIMEOUT_SECONDS)
        try:
            with self._open().stream(
                method,
                self._target.url + path,
                params=dict(params) if params else None,
                content=body,
                headers=headers,
                timeout=timeout,
            ) as response:
                content = _read(response)
                return _judge(response.status_code, content, response.headers.get("retry-after"))
        except httpx2.ConnectError as error:
            return self._unreachable(f"Cannot connect to {self._target.url}: {_reason(error)}.")
        except httpx2.TimeoutException:
            return self._unreachable(f"{self._target.url} did not answer in time.")
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            return self._unreachable(f"The connection to {self._target.url} failed: {_reason(error)}.")

    def _unreachable(self, message: str) -> Fault:
        hint = START_HINT if self._target.loopback else "Check LUCIUS_URL and the network in between."
        return Fault(exit_code=EXIT_UNREACHABLE, message=message, hint=hint, passing=True)


def _read(response: "httpx2.Response") -> bytes | None:
    """The whole body; None when it is larger than any answer of Lucius."""
    content = bytearray()
    for chunk in response.iter_bytes():
        content += chunk
        if len(content) > ANSWER_BYTES_MAX:
            return None
    return bytes(content)


def _reason(error: Exception) -> str:
    text = str(error).strip().rstrip(".")
    return text.splitlines()[0] if text else type(error).__name__


def _judge(status: int, content: bytes | None, retry_after: str | None) -> Answer | Fault:
    if content is None:
        return Fault(exit_code=EXIT_FAILED, message=f"The answer is larger than {ANSWER_BYTES_MAX} bytes.")
    if 200 <= status < 300:
        try:
            doc = msgspec.json.decode(content, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            message = f"The answer ({status}) is not a JSON object."
            return Fault(exit_code=EXIT_UNREACHABLE, message=message, hint=ALIEN_HINT)
        return Answer(status=status, body=content, doc=doc)
    try:
        problem = msgspec.json.decode(content, type=Problem)
    except (msgspec.DecodeError, RecursionError):
        return _alien(status)
    return Fault(
        exit_code=EXIT_UNREACHABLE if status in NOT_ALLOWED else EXIT_FAILED,
        message=problem.detail or problem.title or f"status {status}",
        code=problem.code,
        errors=tuple(problem.errors),
        hint=f"Try again in {retry_after} s." if retry_after else HINTS.get(problem.code),
        body=content,
        passing=status in GATEWAY,
    )


def _alien(status: int) -> Fault:
    """An answer that no Lucius gives: something else stands at that address, or in between."""
    reach = status in NOT_ALLOWED or status in GATEWAY or 300 <= status < 400
    return Fault(
        exit_code=EXIT_UNREACHABLE if reach else EXIT_FAILED,
        message=f"The server answered {status} without saying why.",
        hint=ALIEN_HINT,
        passing=status in GATEWAY,
    )
