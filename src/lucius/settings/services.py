"""Reads the settings of the reference services from the environment.

Apart from `reading`, because it loads the services: only processes that run them do that.
"""

from collections.abc import Mapping

from lucius.services.settings import EXTRACTIVE, SIS_MODELS, ServiceSettings
from lucius.settings.declaration import BadSetting
from lucius.settings.table import ReferenceServices

_URL = ReferenceServices.sis_url
_MODEL = ReferenceServices.sis_model
_KEY = ReferenceServices.sis_api_key


def read_service_settings(env: Mapping[str, str]) -> ServiceSettings:
    """Raises `BadSetting`."""
    url = _URL.read(env)
    model = _model_here(env) if url is None else _model_there(env)
    return ServiceSettings(
        sis_url=url,
        sis_model=model,
        sis_api_key=_KEY.read(env),
        embedding_model=ReferenceServices.embedding_model.read(env),
        sis_timeout_ms=ReferenceServices.sis_timeout.read(env),
    )


def _model_here(env: Mapping[str, str]) -> str:
    model = _MODEL.text(env).lower() or EXTRACTIVE
    if model not in SIS_MODELS:
        raise BadSetting(f"{_MODEL.name} must be {' or '.join(SIS_MODELS)} without {_URL.name}")
    if _KEY.text(env):
        raise BadSetting(f"{_KEY.name} needs {_URL.name}, to which it belongs")
    return model


def _model_there(env: Mapping[str, str]) -> str:
    model = _MODEL.read(env)
    if model is None:
        raise BadSetting(f"{_URL.name} needs {_MODEL.name}, the name of a model there")
    return model
