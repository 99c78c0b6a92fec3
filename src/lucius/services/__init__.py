"""Reference platform services: OCR, EMBEDDING and SIS, written with the sdk.

In: a task whose references name a document or what the step before made of it. Out: an artifact of the
attempt in the workspace, the same bytes at `output_ref`, and the artifact's reference.

A service cannot know whether its step is the last one, so each writes `output_ref`; the last writer is the
last step. Real work on small machines, without models or networks: text layers and Tesseract, hashed word
features, extracted sentences. Knows nothing of jobs beyond the one directive it holds.
"""

from typing import Final

from lucius.sdk import Handler
from lucius.services.embedding import embedding
from lucius.services.ocr import make_ocr
from lucius.services.sis import sis

REFERENCE_SERVICES: Final[dict[str, Handler]] = {
    "ocr": make_ocr(),
    "embedding": embedding,
    "sis": sis,
}

__all__ = ["REFERENCE_SERVICES"]
