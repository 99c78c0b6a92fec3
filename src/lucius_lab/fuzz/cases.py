"""The inputs of the fuzzer: requests and bus messages, each of them almost right.

In: a server with a few jobs, and a random source. Out: cases, each complete in itself. A server of
the same seed has the same stage, so a case that was written down can be thrown again.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from lucius.contracts.keys import Role
from lucius_lab.fuzz.server import FuzzAnswer, FuzzServer
from lucius_lab.fuzz.values import NAMES, NUMBERS, body_of, encoded, text, value

Json = Any

STAGED_JOBS: Final = 12
AFTER_BACKOFF_MS: Final = 31_000
BUS: Final = "bus"
REPLY_KINDS: Final = ("ack", "progress", "result")
CONTENT_TYPES: Final = (
    *(b"application/json", b"application/json; charset=utf-8", b"application/json; charset=utf-16"),
    *(
        b"text/plain",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"",
        b"\xff/;",
    ),
)
MORE_HEADERS: Final = (b"idempotency-key", b"traceparent", b"x-correlation-id", b"last-event-id", b"accept")
# None of them is a wait that would be granted.
WAITS: Final = ("0", "0.0", "-1", "60.1", "61", "nan", "inf", "1e999", "x", "", " ", "0x1", "1,5", "9" * 400)
ENCODINGS: Final = (b"gzip", b"deflate", b"br", b"identity", b"\x00")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One request; or one reply on the bus, of which only the body counts."""

    kind: str
    method: str = "POST"
    path: str = ""
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""

    def shown(self) -> dict[str, Json]:
        """For people and for JSON: bytes as text in which nothing is lost."""
        return {
            "kind": self.kind,
            "method": self.method,
            "path": self.path.encode("unicode_escape").decode("ascii"),
            "query": _shown(self.query),
            "headers": [[_shown(name), _shown(given)] for name, given in self.headers],
            "body": _shown(self.body),
        }


def _shown(raw: bytes) -> str:
    return raw.decode("latin-1").encode("unicode_escape").decode("ascii")


class FuzzTargets(msgspec.Struct, frozen=True, kw_only=True):
    """What a fuzzer needs to know of its server: a credential, and attempts to answer for."""

    key: str
    jobs: tuple[str, ...]
    directives: tuple[dict[str, Json], ...]


def envelope(number: int, **changes: Json) -> dict[str, Json]:
    document: dict[str, Json] = {
        "tenant_id": ("acme", "Globex ", "ümlaut")[number % 3],
        "request_type": ("OCR", "OCR_EMBEDDING", "OCR_EMBEDDING_SIS")[number % 3],
        "input_ref": {"uri": f"s3://in/{number}.pdf", "etag": "x"},
        "output_ref": {"uri": f"s3://out/{number}.json"},
        "payload": ({}, {"n": number}, {"n": number, "sis": {"prompt": "?"}})[number % 3],
        "schema_version": "1",
    }
    return document | changes


async def staged(deployment: FuzzServer) -> FuzzTargets:
    """Jobs in several states: waiting, handed out, picked up, tried again, ended."""
    key = await deployment.key(*Role)
    jobs = []
    for number in range(STAGED_JOBS):
        answer = await deployment.call("POST", "/v1/orchestrate", key, envelope(-1 - number))
        jobs.append(_good(answer, 202)["jobId"])
    directives = await _leased(deployment, key, STAGED_JOBS - 2)
    for number, directive in enumerate(directives[:6]):
        kind = ("ack", "result", "result")[number % 3]
        more = {"status": "FAILED_RETRY" if number < 3 else "SUCCEEDED"} if kind == "result" else {}
        reply = reply_to(directive, kind) | more
        _good(await deployment.call("POST", f"/v1/callbacks/{kind}", directive["callback_token"], reply), 200)
    deployment.now_at_ms += AFTER_BACKOFF_MS
    await deployment.sweeper.sweep()
    directives += await _leased(deployment, key, 2)
    _good(await deployment.call("POST", f"/v1/jobs/{jobs[-1]}:pause", key), 202)
    _good(await deployment.call("POST", f"/v1/jobs/{jobs[-2]}:cancel", key), 202)
    return FuzzTargets(key=key, jobs=tuple(jobs), directives=tuple(directives))


async def _leased(deployment: FuzzServer, key: str, most: int) -> list[dict[str, Json]]:
    answer = await deployment.call("POST", "/v1/directives:lease", key, {"service": "ocr", "max": most})
    directives: list[dict[str, Json]] = _good(answer, 200)["directives"]
    return directives


def _good(answer: FuzzAnswer, status: int) -> Any:
    if answer.status != status:
        raise ValueError(f"the stage could not be set: {answer.status} {answer.body[:500]!r}")
    return answer.json()


def reply_to(directive: Mapping[str, Json], kind: str) -> dict[str, Json]:
    same = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
    message: dict[str, Json] = {name: directive[name] for name in same}
    message |= {"type": kind.upper(), "timestamp": "2027-01-15T08:00:00Z"}
    if kind == "progress":
        message |= {"progress": 40, "note": "half way"}
    if kind == "result":
        message |= {"status": "SUCCEEDED", "output_ref": {"uri": "s3://out/x"}, "error": None}
    return message


class Cases:
    """Draws cases, one after the other."""

    def __init__(self, stage: FuzzTargets, chance: random.Random) -> None:
        self._stage = stage
        self._chance = chance
        self._number = 0
        self._key = b"Bearer " + stage.key.encode()

    def next(self) -> Case:
        self._number += 1
        kinds: tuple[Callable[[], Case], ...] = (
            self._submit,
            self._batch,
            self._plan,
            self._callback,
            self._lease,
            self._rerun,
            self._adopt,
            self._new_key,
            self._control,
            self._read,
            self._bus,
        )
        return self._chance.choices(kinds, weights=(30, 7, 5, 22, 8, 4, 3, 2, 2, 7, 10))[0]()

    # Commands

    def _envelope(self) -> dict[str, Json]:
        chance = self._chance
        # Some numbers come again, so that duplicates and reused keys are met as well.
        document = envelope(chance.randrange(self._number + 1))
        optional: dict[str, Json] = {
            "mode": chance.choice(("DEFAULT", "BURST", "SAFE")),
            "doc_id": f"doc {self._number}",
            "idempotency_key": f"key {chance.randrange(self._number + 1)}",
            "correlation_id": "a correlation",
            "traceparent": f"00-{self._number:032x}-{self._number:016x}-01",
            "callback_urls": {"completed": "https://example.com/done"},
        }
        for name, given in optional.items():
            if chance.random() < 0.25:
                document[name] = given
        return document

    def _submit(self) -> Case:
        path = "/v1/commands" if self._chance.random() < 0.1 else "/v1/orchestrate"
        return self._case("submit", path, body_of(self._envelope(), self._chance))

    def _plan(self) -> Case:
        return self._case("plan", "/v1/orchestrate:plan", body_of(self._envelope(), self._chance))

    def _batch(self) -> Case:
        chance = self._chance
        envelopes = [self._envelope() for _ in range(chance.randrange(5))]
        if chance.random() < 0.02:
            envelopes = [{}] * chance.choice((499, 500, 501))
        # Bent one by one, or else most batches would be refused as a whole.
        raws = [body_of(each, chance) if chance.random() < 0.4 else encoded(each) for each in envelopes]
        body = b'{"commands":[' + b",".join(raws) + b"]}"
        if chance.random() < 0.2:
            body = body_of({"commands": envelopes}, chance)
        return self._case("batch", "/v1/orchestrate:batch", body)

    # Work

    def _directive(self) -> dict[str, Json]:
        return self._chance.choice(self._stage.directives)

    def _reply(self, kind: str) -> dict[str, Json]:
        message = reply_to(self._directive(), kind)
        if kind == "result":
            message["status"] = self._chance.choice(("SUCCEEDED", "FAILED_RETRY", "FAILED_FINAL"))
        return message

    def _callback(self) -> Case:
        chance = self._chance
        kind = chance.choice(REPLY_KINDS)
        directive = self._directive()
        message = reply_to(directive, kind if chance.random() < 0.9 else chance.choice(REPLY_KINDS))
        if kind == "result":
            message["status"] = chance.choice(("SUCCEEDED", "FAILED_RETRY", "FAILED_FINAL"))
        if chance.random() < 0.1:
            message = self._reply(kind)  # most likely for another attempt than the token's
        token = self._token(directive["callback_token"])
        return self._case(f"callback {kind}", f"/v1/callbacks/{kind}", body_of(message, chance), token)

    def _token(self, token: str) -> bytes:
        chance = self._chance
        if chance.random() < 0.8:
            return b"Bearer " + token.encode()
        at = chance.randrange(len(token))
        head, claims, signature = token.split(".")
        other = self._directive()["callback_token"]
        return chance.choice(
            (
                f"Bearer {token[:at]}",
                f"Bearer {token[:at]}{chance.choice('Aa0-_.=')}{token[at + 1 :]}",
                f"Bearer {head}.{claims}.",
                f"Bearer {head}.{other.split('.')[1]}.{signature}",
                f"bearer  {token} ",
                f"Basic {token}",
                f"Bearer {self._stage.key}",
                f"Bearer {token}{token}",
                "Bearer \xff\xfe",
                "Bearer",
                "",
                "Bearer " + "x" * 20_000,
            )
        ).encode("latin-1")

    def _lease(self) -> Case:
        chance = self._chance
        wish: dict[str, Json] = {"service": chance.choice(("ocr", "embedding", "unserved"))}
        optional = {"max": 1, "wait_seconds": chance.choice((0, 0.5, 30)), "lanes": [0, 15]}
        wish.update({name: given for name, given in optional.items() if chance.random() < 0.5})
        return self._case("lease", "/v1/directives:lease", body_of(wish, chance))

    def _bus(self) -> Case:
        body = body_of(self._reply(self._chance.choice(REPLY_KINDS)), self._chance)
        return Case(kind=BUS, body=body)

    # Control

    def _job(self) -> str:
        chance = self._chance
        job_id = chance.choice(self._stage.jobs)
        if chance.random() < 0.7:
            return job_id
        # What a server passes on: decoded, and never with a lone surrogate.
        odd = str(text(chance))[:3_000].encode("utf-8", "ignore").decode()
        return chance.choice((odd, job_id + odd, job_id.upper(), f"{job_id}:cancel", "job_0"))

    def _rerun(self) -> Case:
        wish = self._chance.choice(({}, {"from_step": "step_01"}, {"from_step": "step_02"}))
        verb = self._chance.choice((f"/v1/jobs/{self._job()}:rerun", f"/v1/admin/dlq/{self._job()}:redrive"))
        return self._case("rerun", verb, body_of(wish, self._chance))

    def _adopt(self) -> Case:
        wish = {"stepId": "step_01", "seq": self._chance.randrange(1, 12)}
        return self._case("adopt", f"/v1/jobs/{self._job()}:adopt", body_of(wish, self._chance))

    def _new_key(self) -> Case:
        wish = {"name": "a key", "tenants": ["acme"], "roles": ["read"], "services": ["ocr"]}
        return self._case("key", "/v1/admin/keys", body_of(wish, self._chance))

    def _control(self) -> Case:
        verb = self._chance.choice(("cancel", "pause", "resume", "nothing"))
        body = b"" if self._chance.random() < 0.5 else body_of({}, self._chance)
        return self._case("control", f"/v1/jobs/{self._job()}:{verb}", body)

    # Reading

    def _read(self) -> Case:
        chance, job = self._chance, self._job()
        path = chance.choice(
            (
                "/v1/jobs",
                f"/v1/jobs/{job}",
                f"/v1/jobs/{job}/steps",
                f"/v1/jobs/{job}/events",
                f"/v1/jobs/{job}:explain",
                f"/v1/protocols/{job}",
                "/v1/protocols",
                "/v1/admin/dlq",
                "/v1/admin/keys",
                "/v1/admin/webhooks/dead",
                "/v1/callbacks/attempt",
                f"/{job}",
            )
        )
        wanted = ("tenant_id", "state", "request_type", "created_after", "created_before", "cursor", "limit")
        parts = []
        for _ in range(chance.randrange(4)):
            name = chance.choice((*wanted, "wait", "after", *NAMES[:3]))
            given = chance.choice((str(text(chance)), chance.choice(NUMBERS), "acme", "QUEUED", "1"))[:2_000]
            given = chance.choice(WAITS) if name == "wait" else given
            parts.append(f"{name}={quote(given.encode('utf-8', 'surrogatepass'))}")
        query = "&".join(parts).encode()
        if chance.random() < 0.1:
            query = query + chance.choice((b"%", b"%zz", b"\xff", b"&&=", b";", b"limit=1&limit=x"))
        return self._case(
            "read", path, b"", method=chance.choice(("GET", "GET", "GET", "HEAD", "PUT")), query=query
        )

    def _case(
        self,
        kind: str,
        path: str,
        body: bytes,
        credential: bytes | None = None,
        *,
        method: str = "POST",
        query: bytes = b"",
    ) -> Case:
        chance = self._chance
        headers = [(b"authorization", self._key if credential is None else credential)]
        headers.append(
            (b"content-type", CONTENT_TYPES[0] if chance.random() < 0.8 else chance.choice(CONTENT_TYPES))
        )
        if chance.random() < 0.05:
            headers.append((b"content-encoding", chance.choice(ENCODINGS)))
        headers += [(name, _header_text(chance)) for name in MORE_HEADERS if chance.random() < 0.06]
        if chance.random() < 0.01:
            headers.append(headers[0])
        return Case(kind=kind, method=method, path=path, query=query, headers=tuple(headers), body=body)


def _header_text(chance: random.Random) -> bytes:
    """What a server lets through in a header: no line breaks, no NUL."""
    drawn = str(value(chance)) if chance.random() < 0.3 else str(text(chance))
    raw = drawn[:1_000].encode("utf-8", "replace")
    return raw.translate(None, b"\r\n\x00") if chance.random() < 0.8 else b"key 1"
