"""Reference platform services: OCR, EMBEDDING and SIS, written with the sdk.

In: a task whose references name a document or what the step before made of it. Out: an artifact of the
attempt in the workspace, the same bytes at `output_ref`, and the artifact's reference.

A service cannot know whether its step is the last one, so each writes `output_ref`; the last writer is the
last step. Real work on small machines, without models or networks unless the settings ask for them: text
layers and Tesseract, hashed word features, extracted sentences. Knows nothing of jobs beyond the one
directive it holds. Documents of clients are worked on in processes of bounded memory and time
(`work_process`, and `pdf_child` for PDFs), never in that of the service.
"""

from lucius.services.reference import REFERENCE_SERVICES, reference_services
from lucius.services.settings import BadServiceSetting
from lucius.services.work_process import work_processes

__all__ = ["REFERENCE_SERVICES", "BadServiceSetting", "reference_services", "work_processes"]
