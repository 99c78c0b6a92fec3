"""Documents that are almost right: a valid one, bent in a few places.

In: a JSON document and a source of chance. Out: bytes. Most bends keep the structure, so that what is bent is
seen by the rule that it breaks and not by the first one; some spoil the bytes themselves. The same chance
gives the same bytes.
"""

import gzip
import json
import random
from collections.abc import Callable
from typing import Any, Final

Json = Any

# Mostly one: what is wrong in two places is refused for the first.
BENDS: Final = (1, 1, 1, 1, 2, 3)
LONG_LENGTHS: Final = (63, 64, 127, 128, 129, 255, 256, 257, 1_000, 2_048, 2_049, 4_096, 8_192, 40_000)
DEPTHS: Final = (2, 10, 62, 63, 64, 65, 100, 900, 5_000)
# Longer than any envelope may be.
HUGE_LENGTH: Final = 300_000


class Raw(str):
    """Text that goes into the document as it is, JSON or not."""

    __slots__ = ()


class Pairs(list[tuple[str, Json]]):
    """An object whose members may come twice."""


def encoded(value: Json) -> bytes:
    """JSON, but for what is raw. Lone surrogates are written as escapes."""
    return "".join(_written(value)).encode("utf-8", "surrogatepass")


def _written(value: Json) -> list[str]:
    if isinstance(value, Raw):
        return [str(value)]
    if isinstance(value, dict | Pairs):
        parts = ["{"]
        members = value.items() if isinstance(value, dict) else value
        for index, (name, member) in enumerate(members):
            parts += ["," if index else "", json.dumps(name), ":", *_written(member)]
        return [*parts, "}"]
    if isinstance(value, list):
        parts = ["["]
        for index, item in enumerate(value):
            parts += ["," if index else "", *_written(item)]
        return [*parts, "]"]
    return [json.dumps(value)]


TEXTS: Final = (
    "",
    " ",
    "\t\n",
    "null",
    "true",
    "0",
    ".",
    "..",
    "../../etc/passwd",
    "a/b\\c?d#e",
    "\x00",
    "a\x00b",
    "\x7f\x85\x9f",
    "line\r\nbreak: x",
    "\u00a0\u2003",
    "\u200b\u200d\ufeff",
    "\u202etxet",
    "\u2028\u2029",
    "\ud800",
    "\udfff\ud800",
    "ﬁ ß İ ı ſ",
    "e\u0301\u0301\u0301",
    "日本語",
    "\U0001f600\U0001f468\u200d\U0001f469",
    "\U0010ffff\uffff",
    "%00%2e%2e",
    "${jndi:x}",
    "' OR 1=1 --",
    "<script>",
    "__proto__",
    "-1",
    "1e400",
    "s3://bucket/key",
    "S3://user:secret@bucket/key",
    "https://example.com/x?sig=abc",
    "https://127.0.0.1/x",
    "http://[::1",
    "https://ex ample/",
    "file:///etc/passwd",
    "s3://bucket/../other",
    "s3:///",
    "javascript:alert(1)",
    "OCR",
    "OCR→EMBEDDING",
    "OCR->EMBEDDING",
    "ocr",
    "BURST",
    "SAFE",
    "DEFAULT",
    "1.9999999999",
    "2",
    "step_01",
    "step_99",
    "RESULT",
    "SUCCEEDED",
    "FAILED",
    "FAILED_FINAL",
    "RETRYABLE",
    "2026-01-02T03:04:05Z",
    "9999-99-99T99:99:99Z",
    "00-00000000000000000000000000000000-0000000000000000-00",
)
NUMBERS: Final = (
    *("0", "-0", "-1", "1", "2", "16", "99", "100", "101", "500"),
    *("1.0", "1.5", "-0.0", "1e0", "1E2", "1e-400", "5e-324", "1e308", "1e309", "-1e999", "1e99999999999"),
    *("9007199254740993", "18446744073709551616", "-9223372036854775809"),
    *("1" + "0" * 400, "1" + "0" * 4_299, "1" + "0" * 4_300, "9" * 20_000, "0." + "0" * 400 + "1"),
)
NOT_JSON: Final = (
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "nan",
        "undefined",
        "None",
        "True",
        "TRUE",
        "'x'",
        "01",
        "+1",
        ".5",
        "1.",
    ),
    *("0x10", "1_000", "--1", "", " ", ",", "{", "}", "[", "]", '"', "{,}", "[1,]", '{"a":1,}', "{a:1}"),
    *('"\\ud800"', '"\\udc00\\ud800"', '"\\u00"', '"\\x41"', '"\n"', '"\x00"', "//x", "/**/1", "\ud800"),
)
NAMES: Final = (
    *("tenant_id", "request_type", "payload", "input_ref", "output_ref", "uri", "mode", "doc_id", "status"),
    *("idempotency_key", "callback_urls", "completed", "correlation_id", "traceparent", "schema_version"),
    *("type", "jobId", "stepId", "attempt_no", "lease_id", "timestamp", "progress", "note", "error", "code"),
    *("message", "failure_class", "service", "max", "wait_seconds", "lanes", "commands", "from_step", "seq"),
    *("ocr", "embedding", "sis", "language", "password", "api_key", "token", "", " ", "__class__", "a/b~c"),
    *("\x00", "\ud800", "x" * 300, "Tenant_Id", "tenant_id "),
)


def text(chance: random.Random) -> str | Raw:
    roll = chance.random()
    if roll < 0.7:
        return chance.choice(TEXTS)
    if roll < 0.9:
        letter = chance.choice(("x", "é", "\U0001f600", " ", "\x01", "/", "."))
        return letter * chance.choice(LONG_LENGTHS)
    if roll < 0.995:
        return "".join(chr(chance.randrange(0x3000)) for _ in range(chance.randrange(1, 12)))
    return "x" * HUGE_LENGTH


def nested(chance: random.Random) -> Raw:
    depth = chance.choice(DEPTHS)
    opened, closed = chance.choice((("[", "]"), ('{"a":', "}"), ('[{"":', "}]")))
    whole = chance.random() < 0.9
    return Raw(opened * depth + "1" + (closed * depth if whole else ""))


def value(chance: random.Random) -> Json:
    """Anything, most of it wrong in most places."""
    kinds: tuple[Callable[[], Json], ...] = (
        lambda: text(chance),
        lambda: Raw(chance.choice(NUMBERS)),
        lambda: chance.choice((None, True, False)),
        lambda: chance.choice(({}, [], [None], {"": None}, {"uri": 1}, [[]], {"uri": "s3://a/b"})),
        lambda: Raw(chance.choice(NOT_JSON)),
        lambda: nested(chance),
        lambda: {chance.choice(NAMES): value(chance) for _ in range(chance.randrange(4))},
        lambda: [value(chance) for _ in range(chance.randrange(3))],
    )
    return chance.choices(kinds, weights=(8, 5, 5, 4, 2, 1, 2, 1))[0]()


def bent(document: Json, chance: random.Random) -> Json:
    """The document with one to a few places changed."""
    for _ in range(chance.choice(BENDS)):
        document = _bend(document, chance)
    return document


def _bend(node: Json, chance: random.Random) -> Json:
    """Goes down to a place that chance picks, and changes it; what is not on the way is left as it is."""
    inside = isinstance(node, dict | Pairs | list) and len(node) > 0
    if not inside or chance.random() < 0.15:
        return _changed(node, chance)
    if isinstance(node, dict):
        # Members with members of their own count more often: there is more to bend in them.
        weights = [1 + 2 * isinstance(member, dict | list) for member in node.values()]
        name = chance.choices(list(node), weights)[0]
        if chance.random() < 0.35:
            return _changed_members(node, name, chance)
        return {**node, name: _bend(node[name], chance)}
    if isinstance(node, Pairs):
        return node
    index = chance.randrange(len(node))
    if chance.random() < 0.3:
        return node[:index] + node[index + 1 :] if chance.random() < 0.5 else [*node, *node[:3]]
    return [*node[:index], _bend(node[index], chance), *node[index + 1 :]]


def _changed_members(node: dict[str, Json], name: str, chance: random.Random) -> Json:
    match chance.randrange(5):
        case 0:
            return {key: member for key, member in node.items() if key != name}
        case 1:
            return {**node, chance.choice(NAMES): value(chance)}
        case 2:
            return {chance.choice(NAMES) if key == name else key: member for key, member in node.items()}
        case 3:
            again = node[name] if chance.random() < 0.5 else value(chance)
            return Pairs([*node.items(), (name, again)])
        case _:
            return {**node, name: None}


def _changed(node: Json, chance: random.Random) -> Json:
    match chance.randrange(8):
        case 0:
            return [node]
        case 1:
            return {chance.choice(NAMES): node}
        case 2 if isinstance(node, str) and not isinstance(node, Raw):
            return _respelled(node, chance)
        case 3 if isinstance(node, str) and not isinstance(node, Raw):
            return node + str(text(chance))
        case _:
            return value(chance)


def _respelled(text_: str, chance: random.Random) -> str:
    spell = chance.choice(
        (str.upper, str.lower, str.swapcase, str.strip, lambda t: f" {t}\t", lambda t: t[::-1])
    )
    return spell(text_)


def spoiled(raw: bytes, chance: random.Random) -> bytes:
    """The bytes with their form broken: cut, flipped, in another encoding, with something before or after."""
    at = chance.randrange(len(raw) + 1)
    other: tuple[Callable[[], bytes], ...] = (
        lambda: raw[:at],
        lambda: raw[at:],
        lambda: raw[:at] + chance.randbytes(chance.randint(1, 8)) + raw[at:],
        lambda: raw[:at] + chance.randbytes(1) + raw[at + 1 :],
        lambda: raw[:at] + raw[at + chance.randint(1, 6) :],
        lambda: chance.randbytes(chance.randrange(64)),
        lambda: b"",
        lambda: chance.choice((b" ", b"\n\r\t ", b"\x00", b"\xef\xbb\xbf", b"\xff\xfe")),
        lambda: b"\xef\xbb\xbf" + raw,
        lambda: raw.decode("utf-8", "replace").encode(
            chance.choice(("utf-16", "utf-16-le", "utf-32", "utf-7"))
        ),
        lambda: raw.decode("utf-8", "replace").encode("latin-1", "replace"),
        lambda: gzip.compress(raw, mtime=0),
        lambda: raw + chance.choice((b"x", b"{}", b"\x00", raw, b",", b"//")),
        lambda: b"\n " + raw + b" \r\n",
        lambda: raw + b" " * HUGE_LENGTH if chance.random() < 0.05 else raw + b" ",
    )
    return chance.choice(other)()


def body_of(document: Json, chance: random.Random) -> bytes:
    """The document on the wire: now and then as it is, mostly bent, sometimes spoiled as well."""
    roll = chance.random()
    if roll < 0.12:
        return encoded(document)
    raw = encoded(bent(document, chance) if roll < 0.85 else document)
    return spoiled(raw, chance) if roll > 0.75 else raw
