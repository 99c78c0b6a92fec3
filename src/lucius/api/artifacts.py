"""What jobs read and wrote, to be looked at: names, and one document or page at a time.

In: a job, and an address that it names or that lies in its workspace; no other is opened for any caller.
Out: a text, a picture or a page of a PDF, as bytes that a browser cannot take for anything else. Off where a
setting says so; unless one does, wherever callers need a credential.
"""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from lucius.api.artifact_reader import ArtifactReader, UnknownArtifact
from lucius.api.jobs import find_job
from lucius.api.parameters import refuse, stray, whole_number
from lucius.api.problems import answer
from lucius.api.routing import Call, Result
from lucius.core.model import JobRecord, Json
from lucius.core.refusal import Code, Refused
from lucius.workspace.port import (
    ArtifactNotAllowed,
    ArtifactNotFound,
    ArtifactTooLarge,
    WorkspaceUnavailable,
)

NAMES_MAX: Final = 200
PAGE_NO_MAX: Final = 5_000
AGAIN_SECONDS: Final = 2
_OFF: Final = Refused(
    Code.FORBIDDEN, "artifacts are not given out here: LUCIUS_ARTIFACTS=on says that they may be"
)
_NOT_OURS: Final = refuse("uri", "names nothing that belongs to this job")
_HEADERS: Final = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Content-Disposition": "attachment",  # opened by itself it is a file, never a page of this host
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


async def list_artifacts(call: Call) -> Result:
    refused = stray(call.request)
    if refused is not None:
        return refused
    found = await _allowed(call)
    if isinstance(found, Refused):
        return found
    reader, record = found
    items = _named(record)
    known, more = {str(item["uri"]) for item in items}, False
    async with call.deps.artifact_turns:
        for folder in _workspaces(record):
            try:
                names = await reader.names_below(folder, NAMES_MAX + 1)
            except ArtifactNotFound:
                continue  # nothing was written yet
            except (ArtifactNotAllowed, WorkspaceUnavailable) as fault:
                return _refused(fault)
            more = more or len(names) > NAMES_MAX
            uris = {f"{folder}/{name}": name for name in sorted(names)[:NAMES_MAX]}
            items += [
                {"uri": uri, "name": name, "what": "artifact"}
                for uri, name in uris.items()
                if uri not in known
            ]
    return answer({"items": items, "more": more})


async def preview_artifact(call: Call) -> Result:
    page_no = stray(call.request, "uri", "page") or whole_number(call.request, "page", 1, 1, PAGE_NO_MAX)
    if isinstance(page_no, Refused):
        return page_no
    found = await _allowed(call)
    if isinstance(found, Refused):
        return found
    reader, record = found
    uri = call.request.query_params.get("uri", "")
    try:
        if not _is_ours(reader, record, uri):
            return _NOT_OURS
        async with call.deps.artifact_turns:
            shown = await reader.preview(uri, page_no)
    except (
        ArtifactNotAllowed,
        ArtifactNotFound,
        ArtifactTooLarge,
        WorkspaceUnavailable,
        UnknownArtifact,
    ) as fault:
        return _refused(fault)
    headers = {**_HEADERS, "Lucius-Artifact-Bytes": str(shown.size_bytes)}
    if shown.pages is not None:
        headers["Lucius-Artifact-Pages"] = str(shown.pages)
    if shown.cut:
        headers["Lucius-Artifact-Cut"] = "true"
    return Response(shown.data, media_type=shown.media_type, headers=headers)


async def _allowed(call: Call) -> tuple[ArtifactReader, JobRecord] | Refused:
    loaded = await find_job(call)
    if isinstance(loaded, Refused):
        return loaded
    reader = call.deps.artifacts
    if reader is None or not call.deps.installation.artifacts:
        return _OFF
    return reader, loaded.record


def _workspaces(record: JobRecord) -> list[str]:
    uris = dict.fromkeys(_uri(step.workspace_ref) for step in record.steps)
    return [uri.rstrip("/") for uri in uris if uri]


def _named(record: JobRecord) -> list[Json]:
    """What the command and the answers of the services name."""
    found: dict[str, Json] = {}
    first = record.steps[0] if record.steps else None
    if first is not None and (uri := _uri(first.input_ref)):
        found[uri] = {"uri": uri, "name": _last(uri), "what": "input"}
    for step in record.steps:
        uri = _uri(step.result_ref)
        if uri:
            found[uri] = {"uri": uri, "name": _last(uri), "what": f"result of {step.step_id}"}
    return list(found.values())


def _is_ours(reader: ArtifactReader, record: JobRecord, uri: str) -> bool:
    """The input was judged when the command came. Other addresses were said by services, and count only where
    they lie in the job's own workspace."""
    if record.steps and uri == _uri(record.steps[0].input_ref):
        return True
    return any(reader.is_below(uri, folder) for folder in _workspaces(record))


def _uri(ref: Mapping[str, Json] | None) -> str:
    uri = None if ref is None else ref.get("uri")
    return uri if isinstance(uri, str) else ""


def _last(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2]


def _refused(fault: Exception) -> Refused:
    match fault:
        case ArtifactNotFound():
            return Refused(Code.NOT_FOUND, "nothing lies there, or no longer")
        case ArtifactTooLarge():
            return Refused(Code.BODY_TOO_LARGE, str(fault))
        case WorkspaceUnavailable():
            text = "the store of the workspace does not answer, or does not know this process"
            return Refused(Code.SYSTEM_SATURATED, text, retry_after_seconds=AGAIN_SECONDS)
        case UnknownArtifact():
            return refuse("uri", str(fault))
    return refuse("uri", "names a place that this process does not read")
