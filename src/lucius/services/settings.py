"""The settings of the reference services, from `LUCIUS_*` variables.

In: the environment. Out: values that were checked, or `BadServiceSetting` with the variable's name. The key
to a model's endpoint is in here; nothing that is shown or logged may hold it.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lucius.core.durations import SPANS, parse_duration_ms

HASHING: Final = "hashing"
MINILM: Final = "minilm"
EMBEDDING_MODELS: Final = (HASHING, MINILM)

EXTRACTIVE: Final = "extractive"
LOCAL: Final = "local"
SIS_MODELS: Final = (EXTRACTIVE, LOCAL)
SIS_TIMEOUT_MS: Final = 60_000


class BadServiceSetting(Exception):
    """A variable holds something that cannot be used. The text names it and never repeats a secret."""


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    embedding_model: str = HASHING
    sis_model: str = EXTRACTIVE
    """One of `SIS_MODELS`; with `sis_url` the name of a model there."""
    sis_url: str | None = None
    sis_api_key: str | None = None
    sis_timeout_ms: int = SIS_TIMEOUT_MS

    def __repr__(self) -> str:
        return f"ServiceSettings(embedding_model={self.embedding_model}, sis_model={self.sis_model})"


def read_service_settings(env: Mapping[str, str]) -> ServiceSettings:
    def text(name: str) -> str:
        return env.get(name, "").strip()

    url = text("LUCIUS_SIS_URL") or None
    model = text("LUCIUS_SIS_MODEL")
    key = text("LUCIUS_SIS_API_KEY") or None
    if url is None:
        _check_without_url(model, key)
    elif not _is_endpoint(url):
        raise BadServiceSetting("LUCIUS_SIS_URL must be an http or https address such as https://host/v1")
    elif not model:
        raise BadServiceSetting("LUCIUS_SIS_URL needs LUCIUS_SIS_MODEL, the name of a model there")
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise BadServiceSetting("LUCIUS_SIS_API_KEY must be visible ASCII characters")
    embedding = text("LUCIUS_EMBEDDING_MODEL").lower() or HASHING
    if embedding not in EMBEDDING_MODELS:
        raise BadServiceSetting(f"LUCIUS_EMBEDDING_MODEL must be {' or '.join(EMBEDDING_MODELS)}")
    return ServiceSettings(
        embedding_model=embedding,
        sis_model=model if url is not None else model.lower() or EXTRACTIVE,
        sis_url=url.rstrip("/") if url is not None else None,
        sis_api_key=key,
        sis_timeout_ms=_timeout_ms(text("LUCIUS_SIS_TIMEOUT")),
    )


def _check_without_url(model: str, key: str | None) -> None:
    if model and model.lower() not in SIS_MODELS:
        raise BadServiceSetting(f"LUCIUS_SIS_MODEL must be {' or '.join(SIS_MODELS)} without LUCIUS_SIS_URL")
    if key is not None:
        raise BadServiceSetting("LUCIUS_SIS_API_KEY needs LUCIUS_SIS_URL, to which it belongs")


def _timeout_ms(text: str) -> int:
    if not text:
        return SIS_TIMEOUT_MS
    span_ms = parse_duration_ms(text)
    if span_ms is None or span_ms <= 0:
        raise BadServiceSetting(f"LUCIUS_SIS_TIMEOUT must be a time {SPANS}, such as 500ms, 30s, 15m or 2h")
    return span_ms


def _is_endpoint(url: str) -> bool:
    """A query or a user in it would be a secret in a place that is shown."""
    try:
        parsed = urlsplit(url)
        sound = parsed.scheme in ("http", "https") and bool(parsed.hostname) and (parsed.port or 1) > 0
    except ValueError:
        return False
    return sound and not (parsed.username or parsed.password or parsed.query or parsed.fragment)
