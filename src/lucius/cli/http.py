"""The Python client as the commands use it: answers and faults as values.

In: a method, a path, perhaps a body. Out: an `ApiAnswer` (what the server said, bytes kept as they came)
or a `ApiFault` (why there is no answer to use, with the exit code it deserves and what to do next). The
client does the talking; nothing here prints.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import msgspec

if TYPE_CHECKING:  # the import costs a fifth of a second, which `lucius lane` need not pay
    from lucius.client import LuciusError
    from lucius.client.blocking import Lucius
    from lucius.client.target import ApiTarget

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_ENDED_BADLY: Final = 3
EXIT_UNREACHABLE: Final = 4

WAIT_SECONDS_MAX: Final = 60
# A person waits at the terminal: a short wait is silent, a longer one is reported.
PATIENCE_SECONDS_MAX: Final = 5.0
RETRIES_MAX: Final = 4

START_HINT: Final = "Is Lucius running? Start it with `lucius dev`, or set LUCIUS_URL to where it is."
# How a server that speaks TLS, and most others that do not speak HTTP, take a plain request.
SILENT: Final = "without sending a response"
PLAIN_HINT: Final = (
    "The server does not answer plain HTTP: if it has a certificate, LUCIUS_URL must begin with https://."
)
ALIEN_HINT: Final = "Does LUCIUS_URL point at Lucius, or at a proxy in front of it?"
NETWORK_HINT: Final = "Check LUCIUS_URL (or the profile) and the network in between."

# By what is said of a connection that failed over https.
CLIENT_CERTIFICATE_HINT: Final = (
    "The server may ask for a client's certificate: set LUCIUS_TLS_CLIENT_CERTIFICATE and "
    "LUCIUS_TLS_CLIENT_KEY to one that its CA of clients has signed."
)
TLS_HINTS: Final[Mapping[str, str]] = {
    "CERTIFICATE_VERIFY_FAILED": (
        "Set LUCIUS_TLS_CA to the file of the CA that signed the server's certificate, and call the server "
        "by a name that is in it."
    ),
    "WRONG_VERSION_NUMBER": "The server speaks plain HTTP: does LUCIUS_URL begin with https:// by mistake?",
    "ALERT": CLIENT_CERTIFICATE_HINT,
}

# What to do next, for the problem codes where there is something to do.
HINTS: Final[Mapping[str, str]] = {
    "UNAUTHENTICATED": (
        "Set LUCIUS_API_KEY to a key that this server knows, or name a --profile. "
        "On the server's machine `lucius keys create … --data DIR` makes one."
    ),
    "FORBIDDEN": "The key lacks the role or the tenant for this; `lucius keys create` makes one that has it.",
    "MALFORMED_JSON": "Check the file with a JSON tool; NaN and Infinity are not JSON.",
    "INVALID_ENVELOPE": "`lucius submit --help` shows each member as an option.",
    "UNSUPPORTED_SCHEMA_VERSION": 'Set schema_version to "1".',
    "INVALID_REQUEST": "Each command's --help names the values that its options take.",
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
    "UNSUPPORTED_ENCODING": "Have whatever compresses bodies on the way to the server leave them plain.",
    "BUDGET_EXCEEDED": "`lucius usage` shows what was used; the operator sets the budget.",
    "TENANT_LIMIT": "`lucius jobs list --state QUEUED` shows what is in flight; wait for some of it to end.",
    "SYSTEM_SATURATED": "Try again in a moment.",
    "INTERNAL": "The server's log has the reason; `/readyz` says which dependency is not well.",
}
BULK_PATH: Final = "/v1/jobs:bulk"
# Bodies that are not well formed have the code of an envelope, and none of its members.
OTHER_BODIES: Final[Mapping[str, str]] = {
    BULK_PATH: "`lucius jobs list --help` shows what the values of a filter look like.",
    "/v1/schedules": "A schedule names schedule_id, command, and one of cron, every, at.",
}
BASE_HINT: Final = (
    "Does LUCIUS_URL end in a path? Only the path that a proxy in front of Lucius takes off belongs there."
)
# By the address that led nowhere.
NOT_FOUND_HINTS: Final[Mapping[str, str]] = {
    "/v1/protocols/": "`lucius protocols list` shows the protocols there are.",
    "/v1/admin/keys/": "`lucius keys list` shows the keys there are.",
    "/v1/schedules/": "`lucius schedules list` shows the schedules there are.",
    "/v1/admin/dlq/": "`lucius dlq list` shows the jobs that can be redriven.",
}
# Fields that are no part of an envelope, whose code is the same.
FIELD_HINTS: Final[Mapping[str, str]] = {
    "/from_step": "`lucius jobs show JOB_ID` lists the steps.",
    "/stepId": "`lucius jobs explain JOB_ID` names what can be adopted.",
    "/seq": "`lucius jobs explain JOB_ID` names what can be adopted.",
}
NOT_ALLOWED: Final = frozenset({401, 403})
GATEWAY: Final = frozenset({502, 503, 504})


class ProblemField(msgspec.Struct, frozen=True):
    pointer: str
    message: str


class ApiAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    body: bytes
    doc: dict[str, Any]


class ApiFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no answer. `body` is the problem document, where the server sent one; a `passing` fault
    may be gone a moment later."""

    exit_code: int
    message: str
    code: str | None = None
    errors: tuple[ProblemField, ...] = ()
    hint: str | None = None
    body: bytes | None = None
    passing: bool = False


def job_path(job_id: str, rest: str = "") -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}{rest}"


class Api:
    """The client of one Lucius, opened at the first call."""

    def __init__(self, target: "ApiTarget", *, say: Callable[[str], None] | None = None) -> None:
        self._target = target
        self._say = say
        self._lucius: Lucius | None = None

    @property
    def url(self) -> str:
        return self._target.url

    def close(self) -> None:
        if self._lucius is not None:
            self._lucius.close()

    def get(
        self, path: str, params: Mapping[str, str] | None = None, *, wait_seconds: int = 0
    ) -> ApiAnswer | ApiFault:
        asked = dict(params or {})
        if wait_seconds:
            asked["wait"] = str(wait_seconds)
        return self._call("GET", path, params=asked, wait_seconds=wait_seconds)

    def post(
        self, path: str, body: bytes | None = None, *, key: str | None = None, repeatable: bool | None = None
    ) -> ApiAnswer | ApiFault:
        """`repeatable`: that it arrives twice does no harm. By default, a call with a key is."""
        return self._call("POST", path, body=body, key=key, repeatable=repeatable)

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        key: str | None = None,
        wait_seconds: int = 0,
        repeatable: bool | None = None,
    ) -> ApiAnswer | ApiFault:
        from lucius.client import LuciusError
        from lucius.tls import BadTls

        try:
            answer = self._open().request(
                method,
                path,
                params=params,
                body=body,
                idempotency_key=key,
                wait_seconds=wait_seconds,
                repeatable=repeatable,
            )
        except LuciusError as error:
            return self._fault(error, path)
        except BadTls as fault:
            return ApiFault(exit_code=EXIT_USAGE, message=f"{fault}.")
        return ApiAnswer(status=answer.status, body=answer.body, doc=answer.doc)

    def _open(self) -> "Lucius":
        if self._lucius is None:
            from lucius.client import RetryPolicy
            from lucius.client.blocking import Lucius

            self._lucius = Lucius(
                self._target.url,
                # Not None: the choice is made, and the environment has no further say in it.
                self._target.api_key or "",
                # A server that is not there is reported at once; a command that follows a job waits for
                # longer.
                retry=RetryPolicy(
                    retries_max=RETRIES_MAX, total_seconds_max=PATIENCE_SECONDS_MAX, unreachable=False
                ),
                on_retry=self._report_retry,
            )
        return self._lucius

    def _report_retry(self, error: "LuciusError", pause_seconds: float) -> None:
        if self._say is not None:
            self._say(f"{error.code or error.status}: trying again in {pause_seconds:.1f} s.")

    def _fault(self, error: "LuciusError", path: str) -> ApiFault:
        from lucius.client import Unreachable

        if isinstance(error, Unreachable) and error.status is None:
            hint = START_HINT if self._target.loopback else NETWORK_HINT
            if SILENT in error.message and self._target.url.startswith("http:"):
                hint = PLAIN_HINT
            if self._target.url.startswith("https:"):
                hint = next((said for sign, said in TLS_HINTS.items() if sign in error.message), hint)
            return ApiFault(exit_code=EXIT_UNREACHABLE, message=error.message, hint=hint, passing=True)
        if error.code is None:
            return _alien(error)
        again = error.retry_after_seconds
        next_step = _next_step(error, path) if again is None else f"Try again in {again} s."
        if error.code == "NOT_FOUND" and next_step is None and urlsplit(self._target.url).path.strip("/"):
            next_step = BASE_HINT
        return ApiFault(
            exit_code=EXIT_UNREACHABLE if error.status in NOT_ALLOWED else EXIT_FAILED,
            message=error.message,
            code=error.code,
            errors=tuple(ProblemField(fault.pointer, fault.message) for fault in error.errors),
            hint=next_step,
            body=error.body,
            passing=error.status in GATEWAY,
        )


def _next_step(error: "LuciusError", path: str) -> str | None:
    by_path = next((hint for at, hint in NOT_FOUND_HINTS.items() if path.startswith(at)), None)
    if error.code == "NOT_FOUND" or (error.code == "JOB_NOT_FOUND" and by_path is not None):
        return by_path
    if error.code == "INVALID_ENVELOPE" and path in OTHER_BODIES:
        return OTHER_BODIES[path]
    hints = [FIELD_HINTS[fault.pointer] for fault in error.errors if fault.pointer in FIELD_HINTS]
    return hints[0] if hints else HINTS.get(error.code or "")


def _alien(error: "LuciusError") -> ApiFault:
    """An answer that no Lucius gives: something else stands at that address, or in between."""
    status = error.status or 0
    reach = status in NOT_ALLOWED or status in GATEWAY or 200 <= status < 400
    return ApiFault(
        exit_code=EXIT_UNREACHABLE if reach else EXIT_FAILED,
        message=error.message,
        hint=ALIEN_HINT,
        passing=status in GATEWAY,
    )
