"""What the reference services are set to, as values; `lucius.settings` reads them from the environment.

The key to a model's endpoint is in here; nothing that is shown or logged may hold it.
"""

from typing import Final

import msgspec

HASHING: Final = "hashing"
MINILM: Final = "minilm"

EXTRACTIVE: Final = "extractive"
LOCAL: Final = "local"
SIS_MODELS: Final = (EXTRACTIVE, LOCAL)
SIS_TIMEOUT_MS: Final = 60_000


class BadServiceSetting(Exception):
    """A variable asks for something that this machine lacks. The text names it and never repeats a secret."""


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    embedding_model: str = HASHING
    sis_model: str = EXTRACTIVE
    """One of `SIS_MODELS`; with `sis_url` the name of a model there."""
    sis_url: str | None = None
    sis_api_key: str | None = None
    sis_timeout_ms: int = SIS_TIMEOUT_MS

    def __repr__(self) -> str:
        return f"ServiceSettings(embedding_model={self.embedding_model}, sis_model={self.sis_model})"
