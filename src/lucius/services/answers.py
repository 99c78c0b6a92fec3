"""What answers a prompt from passages elsewhere than in the document itself, and what it gives back."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from lucius.sdk import Task
from lucius.services.passages import Passage
from lucius.services.prompts import Prompt


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """A text; or, where a shape was asked for, the value that fits it."""

    text: str = ""
    data: Any = UNSET


class Answerer(Protocol):
    @property
    def model(self) -> str: ...

    @property
    def asks_without_passages(self) -> bool:
        """Whether it wants the opening of a document in which nothing seems near to the prompt."""
        ...

    async def answer(self, task: Task, prompt: Prompt, passages: Sequence[Passage]) -> Answered:
        """`Retryable` or `Final` where there is no answer to be had. Must end in bounded time."""
        ...
