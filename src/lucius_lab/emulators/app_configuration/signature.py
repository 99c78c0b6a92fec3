"""How requests to App Configuration are signed, and what is wrong with a signature that does not hold.

In: a request as it came and the time. Out: None, or the reason for a 401.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

SKEW_SECONDS_MAX: Final = 15 * 60
SCHEME: Final = "HMAC-SHA256"
_NEEDED: Final = ("x-ms-date", "host", "x-ms-content-sha256")


class Signatures:
    def __init__(self, key_id: str, secret_base64: str) -> None:
        self._key_id = key_id
        self._secret = base64.b64decode(secret_base64, validate=True)

    def fault(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, now_seconds: float
    ) -> str | None:
        """`target`: path and query, as they were sent."""
        scheme, _, rest = headers.get("authorization", "").partition(" ")
        if scheme != SCHEME:
            return f"the request is not signed with {SCHEME}"
        parts = dict(part.partition("=")[::2] for part in rest.split("&"))
        if parts.get("Credential") != self._key_id:
            return "the credential is not known"
        signed = parts.get("SignedHeaders", "").lower().split(";")
        if not set(_NEEDED) <= set(signed):
            return f"the signed headers must include {', '.join(_NEEDED)}"
        return (
            _date_fault(headers.get("x-ms-date", ""), now_seconds)
            or _content_fault(headers.get("x-ms-content-sha256", ""), body)
            or self._signature_fault(method, target, [headers.get(name, "") for name in signed], parts)
        )

    def _signature_fault(
        self, method: str, target: str, values: list[str], parts: Mapping[str, str]
    ) -> str | None:
        text = "\n".join((method.upper(), target, ";".join(values)))
        wanted = hmac.new(self._secret, text.encode(), hashlib.sha256).digest()
        try:
            given = base64.b64decode(parts.get("Signature", ""), validate=True)
        except binascii.Error:
            return "the signature is not base64"
        return None if hmac.compare_digest(wanted, given) else "the signature does not match"


def _date_fault(text: str, now_seconds: float) -> str | None:
    try:
        sent_seconds = _read_date(text).timestamp()
    except ValueError:
        return "the date cannot be read"
    far = abs(now_seconds - sent_seconds) > SKEW_SECONDS_MAX
    return "the date is more than 15 minutes off" if far else None


def _read_date(text: str) -> datetime:
    """As HTTP writes it, or in the library's own way: `Nov, 15 2026 13:53:54.476006 GMT`."""
    try:
        return parsedate_to_datetime(text)
    except ValueError:
        return datetime.strptime(text, "%b, %d %Y %H:%M:%S.%f GMT").replace(tzinfo=UTC)


def _content_fault(text: str, body: bytes) -> str | None:
    wanted = base64.b64encode(hashlib.sha256(body).digest()).decode()
    return None if hmac.compare_digest(wanted.encode(), text.encode()) else "the content hash does not match"
