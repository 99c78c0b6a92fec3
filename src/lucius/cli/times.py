"""Times as people give them: an instant, or how long ago."""

import re
from typing import Annotated, Final

import typer

from lucius.contracts.times import parse_rfc3339

_is_ago: Final = re.compile(r"[0-9]{1,6}[smhd]", re.ASCII).fullmatch


def since_given(given: str | None) -> str | None:
    """The time as the API takes it: it knows both forms, and its clock counts."""
    if given is not None and parse_rfc3339(given) is None and _is_ago(given) is None:
        raise typer.BadParameter(
            f"{given} is no time: give how long ago (90s, 15m, 1h, 7d) or an RFC 3339 time such as "
            "2026-01-31T12:00:00Z."
        )
    return given


AbsoluteFlag = Annotated[
    bool, typer.Option("--absolute", help="Times as RFC 3339 instants, not as how long ago.")
]
