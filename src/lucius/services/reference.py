"""The reference services, put together as the settings say.

In: settings. Out: a handler for each name. What a setting asks for and this machine lacks is refused here, at
start, rather than found out by the first job.
"""

from typing import Final

from lucius.sdk import Handler
from lucius.services.answers import Answerer
from lucius.services.chat import ChatEndpoint
from lucius.services.embedding import make_embedding
from lucius.services.local_model import LocalModel, local_model_fault
from lucius.services.minilm import ModelUnavailable, model_folder
from lucius.services.ocr import make_ocr
from lucius.services.settings import LOCAL, MINILM, BadServiceSetting, ServiceSettings
from lucius.services.sis import make_sis


def reference_services(settings: ServiceSettings) -> dict[str, Handler]:
    """Raises `BadServiceSetting`."""
    if settings.embedding_model == MINILM:
        try:
            model_folder()
        except ModelUnavailable as fault:
            raise BadServiceSetting(f"LUCIUS_EMBEDDING_MODEL={MINILM} cannot be used: {fault}") from None
    return {
        "ocr": make_ocr(),
        "embedding": make_embedding(model=settings.embedding_model),
        "sis": make_sis(_answerer(settings)),
    }


def _answerer(settings: ServiceSettings) -> Answerer | None:
    """None: sentences of the document answer."""
    timeout_seconds = settings.sis_timeout_ms / 1000
    if settings.sis_url is not None:
        return ChatEndpoint(
            settings.sis_url,
            model=settings.sis_model,
            api_key=settings.sis_api_key,
            timeout_seconds=timeout_seconds,
        )
    if settings.sis_model != LOCAL:
        return None
    if (fault := local_model_fault()) is not None:
        raise BadServiceSetting(f"LUCIUS_SIS_MODEL={LOCAL} cannot be used: {fault}")
    return LocalModel(timeout_seconds=timeout_seconds)


REFERENCE_SERVICES: Final[dict[str, Handler]] = reference_services(ServiceSettings())
