"""Ids as people give them: whole, or a beginning that only one thing has.

In: what was given, and a call to make with it. Out: the answer of that call. A whole id costs one call; only
where it leads nowhere is it taken for a beginning, looked up, and the call made again.
"""

from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import quote

import msgspec
import typer

from lucius.cli.context import CommandContext, fault_text
from lucius.cli.http import EXIT_UNREACHABLE, EXIT_USAGE, ApiAnswer, ApiFault
from lucius.cli.render import docs_in, plain

BEGINNING_LENGTH_MIN: Final = 4
SHOWN_MAX: Final = 5
JOBS_LOOKED_AT: Final = 50
JOB_PREFIX: Final = "job_"

Answered = ApiAnswer | ApiFault
Ask = Callable[[str], Answered]


class IdSpace(msgspec.Struct, frozen=True, kw_only=True):
    """Where ids of a kind are listed, under which name, and what is said of one that leads nowhere."""

    path: str
    member: str
    code: str = "NOT_FOUND"
    prefix: str = ""
    searched: bool = False
    length_min: int = BEGINNING_LENGTH_MIN


JOBS: Final = IdSpace(path="/v1/jobs", member="jobId", code="JOB_NOT_FOUND", prefix=JOB_PREFIX, searched=True)
SCHEDULES: Final = IdSpace(path="/v1/schedules", member="schedule_id")
PROTOCOLS: Final = IdSpace(path="/v1/protocols", member="protocol_id", length_min=1)
KEYS: Final = IdSpace(path="/v1/admin/keys", member="keyId")


def by_id(at: CommandContext, space: IdSpace, given: str, ask: Ask) -> Answered:
    answer = ask(given)
    if not isinstance(answer, ApiFault) or answer.code != space.code:
        return answer
    found = _beginning_of(at, space, given)
    if isinstance(found, ApiFault):
        return found
    return answer if found is None else ask(found)


def by_job(at: CommandContext, given: str, ask: Ask) -> Answered:
    return by_id(at, JOBS, given, ask)


def each_job(at: CommandContext, given: Sequence[str], ask: Ask, show: Callable[[ApiAnswer], None]) -> None:
    """Asks for one job after the other. One that cannot be had does not keep the others from it; the exit
    code is that of the first fault."""
    exit_code = 0
    for job_id in given:
        answer = by_job(at, job_id, ask)
        if isinstance(answer, ApiAnswer):
            show(answer)
            continue
        if len(given) == 1 or answer.exit_code == EXIT_UNREACHABLE:
            at.stop(answer)
        if at.out.as_json and answer.body is not None:
            at.out.json(answer.body)
        at.out.say(f"{plain(job_id)}: {fault_text(answer)}")
        exit_code = exit_code or answer.exit_code
    if exit_code:
        raise typer.Exit(exit_code)


def _beginning_of(at: CommandContext, space: IdSpace, given: str) -> str | ApiFault | None:
    """The one id that begins so; None: there is none, or it cannot be told."""
    start = given.strip().lower()
    bare = start.removeprefix(space.prefix)
    if len(bare) < space.length_min:
        return None
    params = {"q": bare, "limit": str(JOBS_LOOKED_AT)} if space.searched else {}
    listed = at.api.get(space.path, params)
    if isinstance(listed, ApiFault):
        return None
    ids = [str(item.get(space.member)) for item in docs_in(listed.doc.get("items"))]
    fitting = sorted({each for each in ids if each.removeprefix(space.prefix).startswith(bare)})
    if len(fitting) == 1 and listed.doc.get("partial") is not True:
        return fitting[0]
    if not fitting:
        return None
    shown = ", ".join(plain(each) for each in fitting[:SHOWN_MAX])
    more = f" and {len(fitting) - SHOWN_MAX} more" if len(fitting) > SHOWN_MAX else ""
    return ApiFault(
        exit_code=EXIT_USAGE,
        message=f"{plain(given)} is the beginning of {shown}{more}: give more of it.",
    )


def path_of(space: IdSpace, found: str, rest: str = "") -> str:
    return f"{space.path}/{quote(found, safe='')}{rest}"
