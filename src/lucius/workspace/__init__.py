"""Artifacts by reference.

In: a URI, and bytes to keep. Out: the bytes at a URI, or one of the faults of `port`.
Knows where a job's artifacts lie and which places may be touched; knows nothing of jobs, ledgers or messages.
"""

from lucius.workspace.blob import BlobAccount, Token, TokenSource, blob_account_of
from lucius.workspace.object_workspace import ObjectWorkspace
from lucius.workspace.port import (
    AlreadyThere,
    NotAllowed,
    NotThere,
    TooLarge,
    Unavailable,
    Workspace,
    artifact_uri,
    local_folder,
    root_of,
)

__all__ = [
    "AlreadyThere",
    "BlobAccount",
    "NotAllowed",
    "NotThere",
    "ObjectWorkspace",
    "Token",
    "TokenSource",
    "TooLarge",
    "Unavailable",
    "Workspace",
    "artifact_uri",
    "blob_account_of",
    "local_folder",
    "root_of",
]
