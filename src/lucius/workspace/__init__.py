"""Artifacts by reference.

In: a URI, and bytes to keep. Out: the bytes at a URI, or one of the faults of `port`. Knows where a job's
artifacts lie and which addresses may be touched; knows nothing of jobs, ledgers or messages.

`objects` reads and writes by URI: files below allowed roots, and blobs through `blob`. `own_files` names the
files of Lucius itself, which no URI may reach.
"""

from lucius.workspace.blob import BlobAccount, BlobToken, TokenSource, blob_account_of
from lucius.workspace.objects import ObjectWorkspace
from lucius.workspace.port import (
    ArtifactExists,
    ArtifactNotAllowed,
    ArtifactNotFound,
    ArtifactTooLarge,
    Workspace,
    WorkspaceUnavailable,
    artifact_uri,
    local_folder,
    root_of,
)

__all__ = [
    "ArtifactExists",
    "ArtifactNotAllowed",
    "ArtifactNotFound",
    "ArtifactTooLarge",
    "BlobAccount",
    "BlobToken",
    "ObjectWorkspace",
    "TokenSource",
    "Workspace",
    "WorkspaceUnavailable",
    "artifact_uri",
    "blob_account_of",
    "local_folder",
    "root_of",
]
