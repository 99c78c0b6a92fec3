"""The port of the workspace: its verbs, its faults, and where an artifact lies.

The faults descend from Python's own (`FileNotFoundError`, `PermissionError`, `FileExistsError`, `ValueError`,
`OSError`), so that a caller which only knows the verbs can still distinguish them. Their texts never repeat
what a storage service said: such texts may carry signed URLs.
"""

import re
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

NAME_CHARS_MAX = 512
ROOT_SCHEMES = ("file", "s3", "gs", "az", "abfs", "abfss", "https", "http")

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_STEP_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class ArtifactNotFound(FileNotFoundError):
    """Nothing lies at this URI."""


class ArtifactNotAllowed(PermissionError):
    """The URI is malformed, or names a place outside the allowed ones or one that no store serves."""


class ArtifactExists(FileExistsError):
    """Something else was written at this URI before."""


class WorkspaceUnavailable(OSError):
    """The store behind the URI cannot be used now: down, or no credentials."""


class ArtifactTooLarge(ValueError):
    """More bytes than the workspace takes."""


class Workspace(Protocol):
    """`write_new` creates, and is content with the same bytes; `write` replaces. Both are all or nothing."""

    def artifact_uri(self, workspace_uri: str, step_type: str, attempt_no: int, name: str) -> str: ...

    async def read(self, uri: str) -> bytes: ...

    async def write_new(self, uri: str, data: bytes) -> None: ...

    async def write(self, uri: str, data: bytes) -> None: ...


def artifact_uri(workspace_uri: str, step_type: str, attempt_no: int, name: str) -> str:
    """Where an attempt keeps `name`. The attempt is in the path: a late one never meets its successor."""
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise ArtifactNotAllowed("an artifact's name is made of letters, digits, '.', '_', '-' and '/'")
    if not _STEP_TYPE.fullmatch(step_type) or attempt_no < 1:
        raise ArtifactNotAllowed("a step type or attempt number that cannot be part of a path")
    return f"{workspace_uri.rstrip('/')}/{step_type.lower()}/{attempt_no}/{name}"


def root_of(text: str) -> str | None:
    """A URI below which workspaces may lie; None if nothing could be written below it."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    named = parts.path.startswith("/") if parts.scheme == "file" else bool(parts.hostname)
    plain = not (parts.query or parts.fragment or parts.password)
    return text if parts.scheme in ROOT_SCHEMES and named and plain else None


def local_folder(uri: str) -> Path | None:
    """The folder that a `file` URI names; None for any other."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
