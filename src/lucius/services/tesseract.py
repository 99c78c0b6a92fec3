"""Text from pictures, through the `tesseract` program.

In: a picture and a language. Out: its text; `Final` where there is none to be had.
The program gets the picture on its standard input, one thread, and bounded time and memory.
How large the picture is, once unpacked, is read in its first bytes, before the program sees it.
"""

import asyncio
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from math import ceil
from typing import Final as Constant

from lucius.sdk import Final
from lucius.services.child_environment import child_environment
from lucius.services.pictures import picture_size
from lucius.services.work_process import SLOW_SECONDS, TIME_EXCEEDED, death, slow_down

PROGRAM = "tesseract"
TIMEOUT_SECONDS = 120.0
MEMORY_BYTES_MAX = 768 * 1024**2
# A page of A4 at 600 dots per inch has 35 million.
PIXELS_MAX = 36_000_000

try:
    import resource
except ImportError:  # not on every system
    resource = None  # type: ignore[assignment]

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
    size = picture_size(picture)
    if size is not None and size[0] * size[1] > PIXELS_MAX:
        what = f"a picture of {size[0]} x {size[1]} pixels; at most {PIXELS_MAX} in all are read"
        raise Final("DOCUMENT_TOO_LARGE", what)
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
            env={**child_environment(), "OMP_THREAD_LIMIT": "1"},
            start_new_session=True,  # Ctrl-C is for us: what is under way is finished
        )
    except (FileNotFoundError, PermissionError):
        raise Final(
            "OCR_UNAVAILABLE",
            "this picture needs the tesseract program, which is not installed (Debian package tesseract-ocr)",
        ) from None
    slow = asyncio.get_running_loop().call_later(SLOW_SECONDS, slow_down, process.pid)
    try:
        _bound(process.pid, timeout_seconds)  # before it has anything to work on
        async with asyncio.timeout(timeout_seconds):
            found, said = await process.communicate(picture)
    except TimeoutError:
        raise Final(TIME_EXCEEDED, f"no text after {timeout_seconds:g} seconds") from None
    finally:
        slow.cancel()
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == 0:
        return found.decode("utf-8", errors="replace").replace("\f", "\n")
    if process.returncode is None or process.returncode < 0 or b"bad_alloc" in said:
        raise death(process.returncode if (process.returncode or 0) < 0 else -signal.SIGABRT)
    if b"Error opening data file" in said:
        package = "tesseract-ocr-" + language.replace("_", "-")
        raise Final("OCR_UNAVAILABLE", f"tesseract lacks the language {language} (Debian package {package})")
    raise Final("UNREADABLE_DOCUMENT", "the picture is damaged or of a kind that tesseract cannot read")


def _bound(pid: int, seconds_max: float) -> None:
    """Where the system can bound another process."""
    if resource is None or not hasattr(resource, "prlimit"):
        return
    seconds = ceil(seconds_max) + 1
    with suppress(OSError):  # it ended already, which its caller finds out
        resource.prlimit(pid, resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        resource.prlimit(pid, resource.RLIMIT_CPU, (seconds, seconds))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
