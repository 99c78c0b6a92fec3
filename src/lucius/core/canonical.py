"""One spelling of a JSON value, and the hashes made of it.

In: values as a JSON parser returns them. Out: bytes that are equal exactly when two commands mean the same.
The form is RFC 8785 with two departures: integers keep all their digits (rounding them would make different
commands collide), and members that are null are left out at every depth. Nulls in arrays stay.

Most commands hold ASCII names, no null and no float. For those a sorting C encoder gives the same bytes; the
walk that finds out costs less than the general way saves.
"""

from collections.abc import Mapping
from hashlib import sha256
from json.encoder import encode_basestring
from math import isfinite

import msgspec

from lucius.core.model import Json

_encode_sorted = msgspec.json.Encoder(order="deterministic").encode


def canonical_json(value: Json) -> bytes:
    if _is_plain(value):
        return _encode_sorted(value)
    return canonical_json_general(value)


def canonical_json_general(value: Json) -> bytes:
    """The definition of the form, for any value. `canonical_json` gives the same bytes sooner."""
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts).encode()


def fingerprint(
    *,
    tenant_norm: str,
    request_type: str,
    input_ref: Mapping[str, Json],
    output_ref: Mapping[str, Json],
    payload: Json,
    schema_version: str,
) -> str:
    """What a command asks for, as hex. Members that do not change the work asked for do not count."""
    command = {
        "input_ref": input_ref,
        "output_ref": output_ref,
        "payload": payload,
        "request_type": request_type,
        "schema_version": schema_version,
        "tenant_id": tenant_norm,
    }
    return sha256(canonical_json(command)).hexdigest()


def key_hash(tenant_norm: str, idempotency_key: str) -> str:
    return sha256(canonical_json({"idempotency_key": idempotency_key, "tenant_id": tenant_norm})).hexdigest()


def _is_plain(value: Json) -> bool:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return True
    if kind is dict:
        for name, member in value.items():
            kind = type(member)
            if kind is str or kind is int:
                if not name.isascii():
                    return False
            elif member is None or not name.isascii() or not _is_plain(member):
                return False
        return True
    if kind is list:
        return all(_is_plain(item) for item in value)
    return False


def _write(value: Json, parts: list[str]) -> None:
    if isinstance(value, str):
        parts.append(encode_basestring(value))
    elif value is None:
        parts.append("null")
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif isinstance(value, int):
        parts.append(str(value))
    elif isinstance(value, float):
        parts.append(_float_text(value))
    elif isinstance(value, Mapping):
        _write_object(value, parts)
    elif isinstance(value, list | tuple):
        _write_array(value, parts)
    else:
        raise TypeError(f"not a JSON value: {type(value).__name__}")


def _write_object(value: Mapping[str, Json], parts: list[str]) -> None:
    opening = "{"
    for name in sorted(value, key=_utf16):
        member = value[name]
        if member is None:
            continue
        parts.append(opening)
        parts.append(encode_basestring(name))
        parts.append(":")
        _write(member, parts)
        opening = ","
    parts.append("{}" if opening == "{" else "}")


def _write_array(value: list[Json] | tuple[Json, ...], parts: list[str]) -> None:
    opening = "["
    for item in value:
        parts.append(opening)
        _write(item, parts)
        opening = ","
    parts.append("[]" if opening == "[" else "]")


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be")


def _float_text(number: float) -> str:
    """As ECMAScript prints a number: the shortest digits that read back as the same double."""
    if number == 0:
        return "0"
    if not isfinite(number):
        raise ValueError("NaN and infinities have no JSON form")
    sign = "-" if number < 0 else ""
    mantissa, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    all_digits = whole + fraction
    digits = all_digits.lstrip("0")
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(whole) + int(exponent or 0) - (len(all_digits) - len(digits))
    digits = digits.rstrip("0")
    return sign + _place_point(digits, point)


def _place_point(digits: str, point: int) -> str:
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{tail}e{point - 1:+d}"
