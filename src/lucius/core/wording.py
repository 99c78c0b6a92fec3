"""How times, spans, attempts and errors are put into words for an operator. Times are UTC."""

from datetime import UTC, datetime

from lucius.core.model import Step

NOTE_SHOWN_MAX = 200


def attempt(step: Step, number: int) -> str:
    return f"attempt {number} of {step.policy.max_attempts}"


def trouble(code: str | None, message: str | None) -> str:
    return ": ".join(part for part in (code, message) if part) or "no reason was given"


def clock(at_ms: int, now_ms: int) -> str:
    at, now = _moment(at_ms), _moment(now_ms)
    return at.strftime("%H:%M:%S" if at.date() == now.date() else "%Y-%m-%d %H:%M:%S")


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC)


def ago(span_ms: int) -> str:
    """A span in a unit of which it has at least two."""
    seconds = max(0, span_ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def noted(note: str | None) -> str:
    """What the service said last, where one line can hold it."""
    return f": {note[:NOTE_SHOWN_MAX]}" if note and note.isprintable() else ""
