"""Twenty thousand inputs that are almost right, thrown at the API and the bus; and the fuzzer itself.

LUCIUS_SOAK=1 throws a million, from a seed that LUCIUS_SEED may name.
"""

import json
import os
import random
from collections import Counter

import msgspec
import pytest
import structlog
from tests.sizes import SOAKING, size

from lucius_lab.fuzz import run as fuzzer
from lucius_lab.fuzz.cases import BUS, Case, envelope, reply_to
from lucius_lab.fuzz.oracle import fault_of, fault_of_reply
from lucius_lab.fuzz.run import FuzzRound, fuzz, main, report, shrunk
from lucius_lab.fuzz.server import FuzzAnswer, FuzzServer, Headers, quiet
from lucius_lab.fuzz.values import Pairs, Raw, bent, body_of, encoded

COUNT = size(20_000, 1_000_000)
SEED = int(os.environ.get("LUCIUS_SEED", "20261115"))


@pytest.fixture(autouse=True)
def _quiet() -> object:
    before = structlog.get_config()
    quiet()
    yield
    structlog.configure(**before)


@pytest.mark.timeout(7_200 if SOAKING else 300)
async def test_whatever_is_thrown_is_taken_or_refused_and_nothing_else() -> None:
    print(f"seed {SEED}")
    summary = await fuzz(COUNT, SEED)
    assert summary.violation is None, report(summary.violation)
    assert summary.count == COUNT == sum(summary.outcomes.values())
    # It got past the first door: all of these were met, and more than once.
    met = Counter(summary.outcomes)
    for outcome in (
        *("submit 202", "batch 200", "plan 200", "lease 200", "callback result 200", "bus applied"),
        *("submit 422 INVALID_PAYLOAD", "submit 422 REF_NOT_ALLOWED", "submit 422 IDEMPOTENCY_KEY_REUSED"),
        *("callback ack 409 STALE_ATTEMPT", "callback ack 401 UNAUTHENTICATED", "callback ack 403 FORBIDDEN"),
        *("submit 413 BODY_TOO_LARGE", "bus poison", "bus unknown_job", "bus duplicate", "bus stale"),
    ):
        assert met[outcome] > 1, outcome


async def test_the_same_seed_gives_the_same_inputs() -> None:
    drawn = []
    for _ in range(2):
        async with FuzzRound(5) as played:
            drawn.append(list(played.cases(200)))
    assert drawn[0] == drawn[1]
    async with FuzzRound(6) as played:
        assert list(played.cases(200)) != drawn[0]


async def test_good_replies_get_through_between_poison() -> None:
    async with FuzzRound(3) as played:
        # The last two were leased last and are current.
        directive = played.stage.directives[-1]
        good = [encoded(reply_to(directive, kind)) for kind in ("ack", "progress", "result")]
        for body in good:
            for poison in (b"", b"{", b"\xff", b"null", b"[]", encoded(Raw("NaN")), b'{"type":"ACK"}'):
                assert await played.throw(Case(kind=BUS, body=poison)) is None
            assert await played.throw(Case(kind=BUS, body=body)) is None
    assert played.outcomes == {"bus poison": 21, "bus applied": 3}


def test_every_kind_of_spoiled_document_is_drawn() -> None:
    chance = random.Random(1)
    bodies = [body_of(envelope(number), chance) for number in range(8_000)]
    kinds = Counter(_kind(body) for body in bodies)
    assert min(kinds[kind] for kind in ("JSON", "not JSON", "not UTF-8", "empty")) > 10, kinds
    for trace in (b"NaN", b"\\ud800", b"\\u0000", b"1e309", b"[" * 60, b"\x1f\x8b"):
        assert any(trace in body for body in bodies), trace


def _kind(body: bytes) -> str:
    if not body:
        return "empty"
    try:
        msgspec.json.decode(body)
    except UnicodeDecodeError:
        return "not UTF-8"
    except (msgspec.MsgspecError, RecursionError):
        return "not JSON"
    return "JSON"


def test_raw_text_and_doubled_members_are_written_as_they_are() -> None:
    document = {"a": Raw("NaN"), "b": Pairs([("x", 1), ("x", [None, "é"])])}
    assert encoded(document) == b'{"a":NaN,"b":{"x":1,"x":[null,"\\u00e9"]}}'
    original = envelope(1)
    kept = encoded(original)
    for seed in range(200):
        bent(original, random.Random(seed))
    assert encoded(original) == kept, "bending must leave the original alone"


PROBLEM = {"type": "t", "title": "t", "status": 422, "code": "INVALID_ENVELOPE", "detail": "d"}
GOOD = {"content-type": "application/problem+json"}


@pytest.mark.parametrize(
    ("status", "headers", "document", "written", "fault"),
    [
        (422, GOOD, PROBLEM, 0, None),
        (422, GOOD, PROBLEM, 1, "INVALID_ENVELOPE wrote 1 rows"),
        (500, GOOD, PROBLEM, 0, "the status is 500"),
        (307, {}, {}, 0, "the status is 307"),
        (400, GOOD, PROBLEM, 0, "the status is 400, the document says 422"),
        (422, {"content-type": "application/json"}, PROBLEM, 0, "a refusal of the type application/json"),
        (422, GOOD, {**PROBLEM, "code": "NEW"}, 0, "the code NEW with the status 422"),
        (422, GOOD, {"detail": "d"}, 0, "the refusal is no problem document"),
        (202, {"location": "/v1/jobs/j"}, {"jobId": "j", "duplicate": False}, 3, None),
        (
            202,
            {"location": "/v1/jobs/j"},
            {"jobId": "j", "duplicate": False},
            0,
            "duplicate: False, and 0 rows",
        ),
        (
            202,
            {},
            {"jobId": "j", "duplicate": False},
            3,
            "an acceptance without 202 and the place of its job",
        ),
    ],
)
def test_the_oracle_sees_what_is_wrong(
    status: int, headers: dict[str, str], document: object, written: int, fault: str | None
) -> None:
    answer = FuzzAnswer(status=status, headers=headers, body=json.dumps(document).encode())
    found = fault_of(Case(kind="submit"), answer, written)
    assert found is None if fault is None else found is not None and found.startswith(fault)


@pytest.mark.parametrize(
    ("outcomes", "reasons", "written", "good"),
    [
        ({"applied": 1}, [], 5, True),
        ({"poison": 1}, ["POISON: no type"], 0, True),
        ({"poison": 1}, ["POISON: no type"], 1, False),
        ({"poison": 1}, [], 0, False),
        ({"failed": 1}, [], 0, False),
        ({"applied": 2}, [], 5, False),
    ],
)
def test_the_oracle_of_the_bus_sees_it_too(
    outcomes: dict[str, int], reasons: list[str], written: int, good: bool
) -> None:
    assert (fault_of_reply(outcomes, reasons, written) is None) is good


class Broken(FuzzServer):
    """A deployment that falls over a word."""

    async def request(
        self, method: str, path: str, *, headers: Headers = (), body: bytes = b"", query: bytes = b""
    ) -> FuzzAnswer:
        if b"bad" in body:
            raise RuntimeError("fell over")
        return await super().request(method, path, headers=headers, body=body, query=query)


async def test_what_breaks_a_rule_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzer, "FuzzServer", Broken)
    monkeypatch.setattr(fuzzer, "SHRINK_TRIES_MAX", 30)
    body = json.dumps({**envelope(1), "payload": {"n": 1, "word": "bad"}}).encode()
    case = Case(kind="submit", path="/v1/orchestrate", headers=((b"a", b"b"),), body=body)
    violation = await shrunk("fell over", case, 1, 7)
    assert violation.alone
    assert b"bad" in violation.case.body
    assert len(violation.case.body) < len(body) / 2
    assert violation.case.headers == ()
    assert "--seed 1 --count 8" in report(violation)


def test_the_command_prints_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "50", "--seed", "9", "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (document["seed"], document["count"], document["violation"]) == (9, 50, None)
    assert sum(document["outcomes"].values()) == 50
    assert "50 of 50" in printed.err


def test_the_command_fails_where_a_rule_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzzer, "fault_of", lambda case, answer, written: "never good enough")
    monkeypatch.setattr(fuzzer, "SHRINK_TRIES_MAX", 5)
    assert main(["--count", "50", "--seed", "9"]) == 1
    assert "never good enough" in capsys.readouterr().out
