"""Protocol documents: what is read, and how a bad one is told."""

from typing import Any

import pytest

from lucius.core.model import ProtocolSpec, StepPolicy
from lucius.registry.documents import load_document, parse_protocol

FULL = """
protocol_id: ocr_embedding_sis_v1
request_types: [OCR_EMBEDDING_SIS, "OCR→EMBEDDING→SIS"]
steps:
  - step_type: OCR
    service: ocr
    payload_key: ocr
    payload_schema: {type: object, properties: {language: {type: string}}}
    defaults: {language: en}
    max_attempts: 5
    ack_timeout: 10s
    lease: 15m
    max_duration: 24h
    backoff: {publish: [30s, 2m, 10m], ack: [0], result: [500ms, 1.5]}
"""
DEFAULTS = StepPolicy(max_attempts=7, dispatch_timeout_ms=5, publish_attempts_max=3)


def step(**changes: Any) -> dict[str, Any]:
    doc: dict[str, Any] = {"step_type": "OCR", "service": "ocr", "payload_key": "ocr"}
    doc.update(changes)
    return {name: value for name, value in doc.items() if value is not ...}


def protocol(*steps: Any, **changes: Any) -> dict[str, Any]:
    return {"protocol_id": "p_v1", "request_types": ["P"], "steps": list(steps) or [step()], **changes}


def parsed(doc: Any) -> ProtocolSpec:
    spec = parse_protocol(doc, defaults=DEFAULTS)
    assert isinstance(spec, ProtocolSpec), spec
    return spec


def test_a_full_document() -> None:
    doc, problem = load_document(FULL.encode(), is_json=False)
    assert problem is None
    spec = parsed(doc)
    assert spec.protocol_id == "ocr_embedding_sis_v1"
    assert spec.request_types == ("OCR_EMBEDDING_SIS", "OCR→EMBEDDING→SIS")
    (only,) = spec.steps
    assert (only.step_type, only.service, only.payload_key) == ("OCR", "ocr", "ocr")
    assert only.defaults == {"language": "en"}
    assert only.policy == StepPolicy(
        max_attempts=5,
        ack_timeout_ms=10_000,
        lease_ms=900_000,
        max_duration_ms=86_400_000,
        backoff_publish_ms=(30_000, 120_000, 600_000),
        backoff_ack_ms=(0,),
        backoff_result_ms=(500, 1500),
        dispatch_timeout_ms=5,
        publish_attempts_max=3,
    )


def test_a_short_document_takes_the_defaults() -> None:
    assert parsed(protocol(step(payload_key=...))).steps[0].policy == DEFAULTS
    assert parsed(protocol(step(payload_key=...))).steps[0].payload_key is None


def test_of_several_steps_each_owns_the_member_named_as_its_type() -> None:
    doc = """
protocol_id: read_v1
request_types: [READ]
steps:
  - {step_type: OCR, service: ocr}
  - {step_type: Sum_Up, service: sum}
"""
    loaded, problem = load_document(doc.encode(), is_json=False)
    assert problem is None
    assert [step.payload_key for step in parsed(loaded).steps] == ["ocr", "sum_up"]


def test_a_long_lease_stretches_the_default_duration() -> None:
    assert parsed(protocol(step(lease="48h"))).steps[0].policy.max_duration_ms == 172_800_000


def test_two_steps_may_own_the_same_member() -> None:
    assert len(parsed(protocol(step(), step())).steps) == 2


@pytest.mark.parametrize(
    ("doc", "pointer"),
    [
        (protocol(step(max_atempts=3)), "/steps/0/max_atempts"),
        (protocol(version=2), "/version"),
        (protocol(protocol_id=None), "/protocol_id"),
        (protocol(protocol_id="a b"), "/protocol_id"),
        (protocol(protocol_id="x" * 65), "/protocol_id"),
        (protocol(protocol_id=1), "/protocol_id"),
        (protocol(request_types=[]), "/request_types"),
        (protocol(request_types="OCR"), "/request_types"),
        (protocol(request_types=["A", " "]), "/request_types/1"),
        (protocol(request_types=["A", "A "]), "/request_types/1"),
        (protocol(request_types=[1]), "/request_types/0"),
        (protocol(steps=[]), "/steps"),
        (protocol(steps={}), "/steps"),
        (protocol(*[step()] * 33), "/steps"),
        (protocol("OCR"), "/steps/0"),
        (protocol(step(payload_key="")), "/steps/0/payload_key"),
        (protocol(step(step_type=...)), "/steps/0/step_type"),
        (protocol(step(step_type="a/b")), "/steps/0/step_type"),
        (protocol(step(step_type="_OCR")), "/steps/0/step_type"),
        (protocol(step(step_type="..")), "/steps/0/step_type"),
        (protocol(step(service="OCR")), "/steps/0/service"),
        (protocol(step(service="-x")), "/steps/0/service"),
        (protocol(step(service="x" * 64)), "/steps/0/service"),
        (protocol(step(max_attempts=0)), "/steps/0/max_attempts"),
        (protocol(step(max_attempts=101)), "/steps/0/max_attempts"),
        (protocol(step(max_attempts=True)), "/steps/0/max_attempts"),
        (protocol(step(max_attempts="3")), "/steps/0/max_attempts"),
        (protocol(step(lease="soon")), "/steps/0/lease"),
        (protocol(step(lease=0)), "/steps/0/lease"),
        (protocol(step(ack_timeout=-1)), "/steps/0/ack_timeout"),
        (protocol(step(max_duration="1m")), "/steps/0/max_duration"),
        (protocol(step(backoff=[1])), "/steps/0/backoff"),
        (protocol(step(backoff={"ack": []})), "/steps/0/backoff/ack"),
        (protocol(step(backoff={"ack": 5})), "/steps/0/backoff/ack"),
        (protocol(step(backoff={"ack": ["1m", "x"]})), "/steps/0/backoff/ack/1"),
        (protocol(step(backoff={"retry": ["1m"]})), "/steps/0/backoff/retry"),
        (protocol(step(payload_schema=[])), "/steps/0/payload_schema"),
        (protocol(step(payload_schema={"type": "nonsense"})), "/steps/0/payload_schema"),
        (protocol(step(payload_schema={"pattern": "("})), "/steps/0/payload_schema"),
        (protocol(step(payload_schema={"$ref": "https://x.example/s"})), "/steps/0/payload_schema"),
        (protocol(step(payload_schema={"$ref": "#/$defs/none"})), "/steps/0/payload_schema"),
        (protocol(step(defaults=5)), "/steps/0/defaults"),
    ],
)
def test_each_problem_names_its_member(doc: Any, pointer: str) -> None:
    problems = parse_protocol(doc, defaults=DEFAULTS)
    assert isinstance(problems, tuple)
    assert [text.partition(": ")[0] for text in problems] == [pointer]


@pytest.mark.parametrize("value", ["36500d", 0.0001, 10**30, 0, "soon"])
@pytest.mark.parametrize("name", ["lease", "ack_timeout", "max_duration"])
def test_spans_are_told_their_bounds(name: str, value: object) -> None:
    problems = parse_protocol(protocol(step(**{name: value})), defaults=DEFAULTS)
    wanted = "must be a span from 1ms to 3650d, such as 30, 500ms, 30s, 15m or 2h"
    assert problems == (f"/steps/0/{name}: {wanted}",)


def test_pauses_are_told_their_bound() -> None:
    problems = parse_protocol(protocol(step(backoff={"ack": ["0", "36500d"]})), defaults=DEFAULTS)
    wanted = "must be a span of at most 3650d, such as 0, 500ms, 30s, 15m or 2h"
    assert problems == (f"/steps/0/backoff/ack/1: {wanted}",)


OBJECT = {"type": "object", "required": ["language"], "additionalProperties": False}
PAGES = {
    **OBJECT,
    "properties": {
        "language": {"type": "string", "minLength": 2},
        "dpi": {"anyOf": [{"type": "integer", "minimum": 72}, {"const": "auto"}]},
        "layout": {**OBJECT, "properties": {"language": {}, "columns": {"$ref": "#/$defs/few"}}},
        "areas": {"type": "array", "items": {"required": ["width"]}},
        "mode": {"enum": ["fast", "exact"]},
        "pages": {"type": "integer"},
    },
    "$defs": {"few": {"maximum": 4}},
    "if": {"properties": {"mode": {"const": "fast"}}},
    "then": {"properties": {"pages": {"maximum": 10}}},
    "oneOf": [{"required": ["mode"]}, {"required": ["areas"]}],
}


@pytest.mark.parametrize(
    ("defaults", "pointers"),
    [
        ({"language": 5}, ["/language"]),
        ({"language": "x", "mode": "slow"}, ["/language", "/mode"]),
        ({"dpi": 50}, ["/dpi"]),
        ({"colour": True}, ["/colour"]),
        ({"layout": {"columns": 5}}, ["/layout/columns"]),
        ({"layout": {"rows": 5}}, ["/layout/rows"]),
        ({"layout": "wide"}, ["/layout"]),
        ({"areas": [{"width": 1}, {}]}, ["/areas/1/width"]),
        ({"pages": {}}, ["/pages"]),
    ],
)
def test_defaults_that_break_their_own_schema(defaults: dict[str, Any], pointers: list[str]) -> None:
    bad = step(payload_schema=PAGES, defaults=defaults)
    problems = parse_protocol(protocol(step(), bad), defaults=DEFAULTS)
    assert isinstance(problems, tuple)
    assert sorted(text.partition(": ")[0] for text in problems) == [
        f"/steps/1/defaults{at}" for at in pointers
    ]
    assert all("payload_schema" in text for text in problems)


def test_defaults_hold_no_credentials() -> None:
    bad = step(defaults={"api_key": "sk-1", "layout": {"rows": [{"password": "hunter2"}]}, "max_tokens": 5})
    problems = parse_protocol(protocol(step(), bad), defaults=DEFAULTS)
    assert isinstance(problems, tuple)
    places = ["/steps/1/defaults/api_key", "/steps/1/defaults/layout/rows/0/password"]
    assert sorted(text.partition(": ")[0] for text in problems) == places
    assert "hunter2" not in str(problems)


@pytest.mark.parametrize(
    "defaults",
    [
        {},
        {"dpi": "auto"},  # the language is for the command to say
        {"layout": {"columns": 4}},
        {"language": None, "colour": None},  # absent, as everywhere in a payload
        {"pages": 50},  # too many for the mode that counts until a command names another
        {"mode": "fast", "areas": []},  # nobody can mend it, but nothing here says which of them is wrong
    ],
)
def test_defaults_may_leave_to_the_command_what_it_has_to_say(defaults: dict[str, Any]) -> None:
    assert parsed(protocol(step(payload_schema=PAGES, defaults=defaults))).steps[0].defaults == defaults


def test_defaults_are_held_against_no_schema_that_is_for_something_else() -> None:
    assert parsed(protocol(step(payload_schema={"type": "array"}))).steps[0].defaults == {}
    problems = parse_protocol(
        protocol(step(payload_schema={"type": "none"}, defaults={"a": 1})), defaults=DEFAULTS
    )
    assert isinstance(problems, tuple)
    assert [text.partition(": ")[0] for text in problems] == ["/steps/0/payload_schema"]


def test_every_problem_is_told_at_once() -> None:
    problems = parse_protocol(
        protocol(step(service="!", lease="x"), extra=1, protocol_id=""), defaults=DEFAULTS
    )
    assert isinstance(problems, tuple)
    assert len(problems) == 4


@pytest.mark.parametrize("doc", [None, [], "x", 5])
def test_a_document_is_an_object(doc: Any) -> None:
    assert isinstance(parse_protocol(doc, defaults=DEFAULTS), tuple)


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("raw", "is_json", "word"),
    [
        (b"", False, "empty"),
        (b"# nothing\n", False, "empty"),
        (b"", True, "JSON"),
        (b"{", True, "JSON"),
        (b"a: [", False, "YAML"),
        (b"a: b: c", False, "YAML"),
        (b"\xff\xfe\xff", False, "YAML"),
        (b"a: !!python/object:os.system x", False, "YAML"),
        (b"since: 2026-01-01", False, "date"),
        (b"on: 1", False, "quotes"),
        (b"a: .nan", False, "NaN"),
        (b"a: .inf", False, "NaN"),
        (BOMB.encode(), False, "more than"),
        (b"a: &a [*a]", False, "more than"),
        (b"a: {b: 1, c: 2, b: 3}", False, "'b' is there 2 times"),
        (b'{"a": [{"b": 1, "b": 1}]}', True, "'b' is there 2 times"),
        (b"#" * 300_000, False, "larger"),
        (b"[" * 5000, True, "deep"),
        (b"[" * 5000, False, "deep"),
    ],
)
def test_unreadable_documents(raw: bytes, is_json: bool, word: str) -> None:
    _doc, problem = load_document(raw, is_json=is_json)
    assert problem is not None
    assert word in problem


def test_what_is_merged_may_be_replaced() -> None:
    raw = b"x: &x {a: 1, b: 2}\ny: &y {<<: *x, b: 3}\nz: {<<: *y, a: 4}"
    doc, problem = load_document(raw, is_json=False)
    assert (doc["z"], problem) == ({"a": 4, "b": 3}, None)


def test_json_is_read_too() -> None:
    doc, problem = load_document(b'{"protocol_id": "x"}', is_json=True)
    assert problem is None
    assert doc == {"protocol_id": "x"}
