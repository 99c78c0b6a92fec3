"""Sample documents that a job of this installation can read.

In: which kind. Out: the address of a small document of that kind, written where workspaces lie when it is
first asked for; None where nothing can be written there.
"""

from typing import Final

import structlog

from lucius.workspace import Workspace

NAMES: Final = {"pdf": "sample.pdf", "text": "sample.txt"}

log = structlog.get_logger("lucius.samples")


class SampleDocuments:
    def __init__(self, workspace: Workspace, folder_uri: str) -> None:
        self._workspace = workspace
        self._folder = folder_uri.rstrip("/")
        self._written: set[str] = set()

    async def document_uri(self, kind: str) -> str | None:
        """`kind`: `pdf` or `text`."""
        uri = f"{self._folder}/{NAMES[kind]}"
        if kind in self._written:
            return uri
        # Few processes are asked for one, and it comes with all that the reference services need.
        from lucius.services.sample import sample_document, sample_text

        data = sample_document() if kind == "pdf" else sample_text().encode()
        try:
            await self._workspace.write(uri, data)
        except (OSError, ValueError) as fault:
            log.warning("sample_not_written", error=type(fault).__name__)
            return None
        self._written.add(kind)
        return uri

    def output_uri(self, name: str) -> str:
        return f"{self._folder}/{name}"
