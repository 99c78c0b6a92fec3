"""A job's rows and events without what two runs of the same script may differ in.

In: a job's record and its events. Out: plain values that compare equal when the same things happened, as they
must on both engines (I9). Ids, leases and times become placeholders that keep who is who and whether there is
one. What only one engine has is left out: its name, `DISPATCHING`, outbox rows, and where the job stands in
the due index.
"""

from collections.abc import Sequence

import msgspec

from lucius.core.model import Event, JobRecord, Json
from lucius.core.states import JobState, StepState

_LEFT_OUT = frozenset({"engine", "version", "due_at_ms"})
_CHANCE = frozenset({"correlation_id", "traceparent", "idempotency_hash", "fingerprint"})
_STATES = {
    "job": {JobState.DISPATCHING.value: JobState.QUEUED.value},
    "step": {StepState.DISPATCHING.value: StepState.INITIATED.value},
}


class NormalForm(msgspec.Struct, frozen=True, kw_only=True):
    job: dict[str, Json]
    steps: tuple[dict[str, Json], ...]
    events: tuple[dict[str, Json], ...]


def normalised(record: JobRecord, events: Sequence[Event]) -> NormalForm:
    names = _Names(record, events)
    return NormalForm(
        job=names.of_row(record.job, "job"),
        steps=tuple(names.of_row(step, "step") for step in record.steps),
        events=tuple(names.of_row(event, "event") for event in events),
    )


class _Names:
    """Which placeholder stands for which id: in the order in which they come up."""

    def __init__(self, record: JobRecord, events: Sequence[Event]) -> None:
        self._ids = {record.job.job_id: "<job>"}
        if record.job.rerun_of is not None:
            self._ids[record.job.rerun_of] = "<job before>"
        leases = [event.data.get("lease_id") for event in events]
        for lease_id in (*leases, *(step.lease_id for step in record.steps)):
            if lease_id is not None and lease_id not in self._ids:
                self._ids[lease_id] = f"<lease {len(self._ids)}>"
        # The longest first: one id may be the beginning of another.
        self._found = sorted(self._ids.items(), key=lambda named: -len(named[0]))

    def of_row(self, row: msgspec.Struct, kind: str) -> dict[str, Json]:
        # Field by field: on their own, rows leave out what has its default value.
        plain = {name: msgspec.to_builtins(getattr(row, name)) for name in row.__struct_fields__}
        states = _STATES.get(kind, {})
        shown = {name: self._of(name, value) for name, value in plain.items() if name not in _LEFT_OUT}
        for name in ("state", "resume_to"):
            if name in shown:
                shown[name] = states.get(shown[name], shown[name])
        if kind == "event" and "to" in shown.get("data", {}):
            shown["data"]["to"] = _STATES["job"].get(shown["data"]["to"], shown["data"]["to"])
        return shown

    def _of(self, name: str, value: Json) -> Json:
        if value is None:
            return None
        if name.endswith("at_ms") or name == "timestamp":
            return "<time>"
        if name in ("paused_total_ms", "open_ms"):
            return "<span>"
        if name in _CHANCE:
            return f"<{name}>"
        if isinstance(value, dict):
            kept = {inner: held for inner, held in value.items() if inner not in _LEFT_OUT}
            return {inner: self._of(inner, held) for inner, held in kept.items()}
        if isinstance(value, list | tuple):
            return [self._of("", item) for item in value]
        return self._of_text(value) if isinstance(value, str) else value

    def _of_text(self, text: str) -> str:
        """Ids are found inside of texts too: a workspace is named after its job."""
        for known, placeholder in self._found:
            if known in text:
                text = text.replace(known, placeholder)
        return text
