"""The listeners of commits: in this process, after the commit, and never able to stop one."""

from collections.abc import Callable, Sequence

from lucius.core.model import Event, JobRecord

CommitListener = Callable[[JobRecord | None, JobRecord, Sequence[Event]], None]
"""Called after a commit with the record before (None: created), the record after, and the events between."""


class CommitListeners:
    def __init__(self) -> None:
        self._listeners: list[CommitListener] = []

    def add(self, listener: CommitListener) -> None:
        self._listeners.append(listener)

    def notify(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        for listener in self._listeners:
            listener(before, after, events)
