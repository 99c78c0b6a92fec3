"""What is kept of a failure: a short code and a short message without personal data.

In: codes and texts from steps and from exceptions. Out: the same, made safe to store for as long as the job
is kept and to show to every caller who may see it. The text of an unexpected exception is never kept: it may
quote a customer's data. What a step says on purpose is kept without addresses, numbers and credentials.
"""

import re
from typing import Final

import msgspec

from lucius.contracts.credentials import BLANK, blank_credentials

CODE_CHARACTERS_MAX: Final = 64
MESSAGE_CHARACTERS_MAX: Final = 200
_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_PERSONAL: Final = re.compile(
    r"[^\s@<>\"']+@[^\s@<>\"']+"  # an address of mail, or a user at a host
    r"|(?:[a-z][a-z0-9+.-]*://|\\\\|(?<![\w.])~?/)[^\s\"']+"  # a URI or a path: both are named after people
    r"|\+?[0-9](?:[ ().-]{0,2}[0-9]){5,}"  # a phone, a card, an account, an IP address, a date of birth
    r"|\b(?:[0-9a-f]{1,4}:){3,}[0-9a-f:]+"  # an IPv6 address
    r"|\"[^\"]{3,}\"|'[^']{3,}'",  # what is quoted is a customer's data
    re.IGNORECASE,
)


class AttemptFailure(msgspec.Struct, frozen=True):
    """Why an attempt ended. `final`: another attempt would fail in the same way."""

    code: str
    message: str
    final: bool = False


class StepFailed(Exception):
    """Raised by a step: the attempt failed, for this reason. `final=True` allows no further attempt."""

    def __init__(self, code: str, message: str = "", *, final: bool = False) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.final = final


class NotYet(Exception):
    """Raised by a step that waits for something: the job is given back and looked at again later. Does not
    count as an attempt."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"again in {seconds:g} s")
        self.seconds = seconds


def failure(code: str, message: str, *, final: bool = False, secrets: tuple[str, ...] = ()) -> AttemptFailure:
    """The failure as it may be stored. `secrets`: texts that must not stand in it, such as the user's id."""
    safe_code = code if _CODE.fullmatch(code) else "STEP_FAILED"
    return AttemptFailure(safe_code, safe_text(message, secrets=secrets), final)


def safe_text(message: str, *, secrets: tuple[str, ...] = ()) -> str:
    text = " ".join(message[: 4 * MESSAGE_CHARACTERS_MAX].split())
    for secret in secrets:
        if len(secret) >= 3:
            text = text.replace(secret, BLANK)
    text = _PERSONAL.sub(BLANK, blank_credentials(text))
    text = "".join(character for character in text if character.isprintable())
    return text if len(text) <= MESSAGE_CHARACTERS_MAX else f"{text[: MESSAGE_CHARACTERS_MAX - 1]}…"
