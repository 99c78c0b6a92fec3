"""A document as a user names it, and where a server on this machine may read it.

A server reads files below its own data folder only. A document that lies elsewhere on a machine where
`lucius dev` has its folder is copied there, by its content: the same document is the same copy, so that the
same command stays the same job.
"""

import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Final

import typer

from lucius.cli.options import DATA

FOLDER: Final = "documents"
TENANT: Final = "default"
DIGEST_LENGTH: Final = 16


def within_reach(document: str, *, copies: bool = True) -> str:
    """The document, or its copy below the data folder; without `copies`, where that would be. What is no path
    is left as it is."""
    if "://" in document or document.lstrip().startswith("{"):
        return document
    path = Path(document)
    if not path.is_file():
        raise typer.BadParameter(f"There is no document {document}.")
    if not DATA.is_dir() or path.resolve().is_relative_to(DATA.resolve()):
        return document
    try:
        return str(_copied(path, copies=copies))
    except OSError as fault:
        raise typer.BadParameter(f"{document} cannot be copied to {DATA}: {fault.strerror}.") from None


def result_beside(document: str, request_type: str) -> str:
    """Where the result goes unless the user says otherwise."""
    if document.lstrip().startswith("{"):
        raise typer.BadParameter("Where the result goes must be said with --output.")
    return f"{document}.{request_type.lower()}.result"


def _copied(path: Path, *, copies: bool) -> Path:
    with path.open("rb") as source:
        digest = sha256()
        while block := source.read(1 << 20):
            digest.update(block)
    folder = DATA / FOLDER / digest.hexdigest()[:DIGEST_LENGTH]
    copy = folder / path.name
    if copies and not copy.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{path.name}.{os.getpid()}"
        shutil.copyfile(path, draft)
        draft.replace(copy)
    return copy
