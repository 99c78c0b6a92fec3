"""What happened to an attempt, in a line or two, as evidence."""

from lucius.certify.book import Attempt, Heard

LINES_MAX = 12


def story(attempt: Attempt) -> tuple[str, ...]:
    """Times count from the moment the service was handed the directive."""
    if not attempt.handed:
        return (f"{attempt.name}: never taken",)
    begun = attempt.handed[0]
    lines = [(at, "the same again" if copy else "handed out") for copy, at in enumerate(attempt.handed)]
    lines += [(heard.at, _said(heard)) for heard in attempt.heard]
    lines.sort(key=lambda line: line[0])
    shown = lines if len(lines) <= LINES_MAX else [*lines[: LINES_MAX // 2], *lines[-LINES_MAX // 2 :]]
    left_out = len(lines) - len(shown)
    told = [f"{at - begun:.3f} s {text}" for at, text in shown]
    if left_out:
        told.insert(LINES_MAX // 2, f"… {left_out} more …")
    return (f"{attempt.name}: {'; '.join(told)}",)


def _said(heard: Heard) -> str:
    text = heard.kind
    if heard.kind == "RESULT":
        text = f"RESULT {heard.status}"
        if heard.error_code is not None:
            text += f" {heard.error_code}"
    if heard.kind == "PROGRESS":
        text = f"PROGRESS {heard.message.get('progress')}"
    return f"{text} (answer: {heard.answered})"
