"""Artifacts, described."""

from typing import Final

from lucius.api.artifacts import PAGE_NO_MAX
from lucius.api.described.groups import Operation, OperationGroup, ResponseDescription, query
from lucius.contracts.schemas import TEXT, Schema, named, opened
from lucius.core.refusal import Code

_URI: Final = "file:///srv/lucius/workspace/system/acme/job_01k5z3w8e6t9r4c2m7x1q0hv5b/ocr/1/output.txt"
_SCHEMAS: Final[dict[str, Schema]] = {
    "ArtifactPage": opened(
        "What a job read and wrote.",
        {
            "items": {"type": "array", "items": named("ArtifactName")},
            "more": {"type": "boolean", "description": "Whether there are more than are named."},
        },
    ),
    "ArtifactName": opened(
        "Where something lies that belongs to a job.",
        {
            "uri": TEXT,
            "name": {**TEXT, "description": "The last part of the address, or its path in the workspace."},
            "what": {**TEXT, "description": "`input`, `result of` a step, or `artifact`."},
        },
    ),
    "ArtifactPreview": {"type": "string", "format": "binary", "description": "Bytes of `Content-Type`."},
}
_OPERATIONS: Final = {
    "listArtifacts": Operation(
        summary="List a job's artifacts",
        description="The input, the results, and what else lies in the job's workspace. Where "
        "`LUCIUS_ARTIFACTS` is off, `403`.",
        answers=(ResponseDescription(description="Their names.", schema="ArtifactPage"),),
        refusals=(Code.JOB_NOT_FOUND, Code.INVALID_REQUEST, Code.SYSTEM_SATURATED),
    ),
    "previewArtifact": Operation(
        summary="Look at an artifact",
        description="A text (its first 256 KiB), a picture (PNG, JPEG, GIF, WebP), or a page of a PDF as a "
        "picture, of at most 8 MiB. The headers `Lucius-Artifact-Bytes`, `Lucius-Artifact-Pages` and "
        "`Lucius-Artifact-Cut` say more. An address that the job does not name and that does not lie in its "
        "workspace is refused.",
        parameters=("ArtifactUri", "ArtifactPageNo"),
        answers=tuple(
            ResponseDescription(
                description="The text, or the picture.",
                schema="ArtifactPreview",
                media=media,
                headers=("Lucius-Artifact-Bytes", "Lucius-Artifact-Pages", "Lucius-Artifact-Cut"),
            )
            for media in ("text/plain", "image/png", "image/jpeg", "image/gif", "image/webp")
        ),
        refusals=(
            Code.JOB_NOT_FOUND,
            Code.NOT_FOUND,
            Code.INVALID_REQUEST,
            Code.BODY_TOO_LARGE,
            Code.SYSTEM_SATURATED,
        ),
    ),
}
AREA: Final = OperationGroup(
    tag="Artifacts",
    description="What jobs read and wrote, to be looked at.",
    operations=_OPERATIONS,
    schemas=_SCHEMAS,
    examples={
        "ArtifactPage": {
            "items": [{"uri": _URI, "name": "ocr/1/output.txt", "what": "artifact"}],
            "more": False,
        },
        "ArtifactName": {"uri": _URI, "name": "ocr/1/output.txt", "what": "artifact"},
        "ArtifactPreview": "The lighthouse on Marram Point …",
    },
    parameters={
        "ArtifactUri": {**query("uri", TEXT, "Where the artifact lies."), "required": True},
        "ArtifactPageNo": query(
            "page",
            {"type": "integer", "minimum": 1, "maximum": PAGE_NO_MAX, "default": 1},
            "Which page of a PDF.",
        ),
    },
)
