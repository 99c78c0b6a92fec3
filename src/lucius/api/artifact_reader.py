"""The port to what jobs read and wrote: what the API needs to show it."""

from typing import Protocol

import msgspec


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """`size_bytes`: of the artifact. `pages`: of a PDF. `cut`: whether only its beginning is here."""

    media_type: str
    data: bytes
    size_bytes: int
    pages: int | None = None
    cut: bool = False


class UnknownArtifact(ValueError):
    """Of no kind that is shown. Its text says why."""


class ArtifactReader(Protocol):
    """Raises faults of the workspace, and `UnknownArtifact`."""

    async def names_below(self, folder_uri: str, names_max: int) -> list[str]: ...

    def is_below(self, uri: str, folder_uri: str) -> bool: ...

    async def preview(self, uri: str, page_no: int) -> Preview:
        """`page_no`: of a PDF, from 1."""
        ...
