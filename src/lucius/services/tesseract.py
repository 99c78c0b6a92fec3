"""Text from pictures, through the `tesseract` program.

In: a picture and a language. Out: its text; `Final` or `Retryable` where there is none to be had.
The program is a guest: it gets the picture on its standard input, one thread, and a bounded time.
"""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Final as Constant

from lucius.sdk import Final, Retryable
from lucius.services.guests import guest_environment

PROGRAM = "tesseract"
TIMEOUT_SECONDS = 120.0

_LANGUAGES: Constant[Mapping[str, str]] = {
    "ar": "ara",
    "cs": "ces",
    "da": "dan",
    "de": "deu",
    "el": "ell",
    "en": "eng",
    "es": "spa",
    "fi": "fin",
    "fr": "fra",
    "hi": "hin",
    "hu": "hun",
    "it": "ita",
    "ja": "jpn",
    "ko": "kor",
    "nl": "nld",
    "no": "nor",
    "pl": "pol",
    "pt": "por",
    "ro": "ron",
    "ru": "rus",
    "sv": "swe",
    "tr": "tur",
    "uk": "ukr",
    "zh": "chi_sim",
}
_CODE = re.compile(r"[a-z]{3}(?:_[a-z]{2,8})?")


def language_code(language: object) -> str:
    """Tesseract's code: `en` and `en-GB` are `eng`, `en+de` is `eng+deu`; its own codes pass."""
    if not isinstance(language, str):
        raise Final("INVALID_PAYLOAD", "language must be a string such as 'en'")
    return "+".join(_one_code(part.strip().lower()) for part in language.split("+"))


def _one_code(plain: str) -> str:
    known = _LANGUAGES.get(plain) or _LANGUAGES.get(re.split("[-_]", plain)[0])
    if known is not None:
        return known
    if _CODE.fullmatch(plain):
        return plain
    raise Final("INVALID_PAYLOAD", "language is neither a two-letter code nor one of Tesseract's own")


async def text_in_picture(
    picture: bytes,
    language: str,
    *,
    dots_per_inch: int | None = None,
    program: str = PROGRAM,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "stdin",
            "stdout",
            "-l",
            language,
            *([] if dots_per_inch is None else ["--dpi", str(dots_per_inch)]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**guest_environment(), "OMP_THREAD_LIMIT": "1"},
            start_new_session=True,  # Ctrl-C is for us: what is under way is finished
        )
    except (FileNotFoundError, PermissionError):
        raise Final(
            "OCR_UNAVAILABLE",
            "this picture needs the tesseract program, which is not installed (Debian package tesseract-ocr)",
        ) from None
    try:
        async with asyncio.timeout(timeout_seconds):
            found, said = await process.communicate(picture)
    except TimeoutError:
        raise Retryable("OCR_TIMEOUT", f"no text after {timeout_seconds:g} seconds") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == 0:
        return found.decode("utf-8", errors="replace").replace("\f", "\n")
    if b"Error opening data file" in said:
        package = "tesseract-ocr-" + language.replace("_", "-")
        raise Final("OCR_UNAVAILABLE", f"tesseract lacks the language {language} (Debian package {package})")
    raise Final("UNREADABLE_DOCUMENT", "the picture is damaged or of a kind that tesseract cannot read")
