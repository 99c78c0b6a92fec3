"""RFC 6901 pointers: the address of a member inside a document."""

from collections.abc import Iterable


def below(base: str, part: str | int) -> str:
    """The pointer of the member or item `part` of what `base` points at."""
    if isinstance(part, int):
        return f"{base}/{part}"
    if "~" in part or "/" in part:
        part = part.replace("~", "~0").replace("/", "~1")
    return f"{base}/{part}"


def pointer_of(base: str, parts: Iterable[str | int]) -> str:
    for part in parts:
        base = below(base, part)
    return base
