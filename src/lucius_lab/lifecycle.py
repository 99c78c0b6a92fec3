"""Draws docs/reference/lifecycle.md from the tables of the machine.

In: the tables in `core.states` and the meanings below. Out: one Markdown page, the same for the same tables.
Knows nothing of jobs that run. `python -m lucius_lab.lifecycle [FILE]` writes the page.
"""

import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from lucius.core.states import (
    EVIDENCE,
    JOB_TABLES,
    JOB_TERMINAL,
    STEP_TABLES,
    STEP_TERMINAL,
    Engine,
    Fact,
    JobState,
    StepState,
)

State = TypeVar("State", bound=StrEnum)
Moves = Mapping[Fact, Mapping[State, tuple[State, ...]]]

PAGE_DEFAULT: Final = Path("docs/reference/lifecycle.md")

FACT_MEANINGS: Final[Mapping[Fact, str]] = {
    Fact.JOB_CREATED: "The job, its steps and its first intention to send are in the ledger.",
    Fact.ATTEMPT_BEGUN: "A step has a new attempt, a new lease and a directive that waits to be sent.",
    Fact.DIRECTIVE_PUBLISHED: "The directive left for its service; the clock of the ACK runs.",
    Fact.PUBLISH_HURRIED: "An operator made the outbox row due now instead of waiting out its backoff.",
    Fact.PUBLISH_FAILED: "The bus did not take the directive; the same attempt is sent again later.",
    Fact.STEP_ACKED: "The service picked the attempt up, or sent what implies it; the lease runs.",
    Fact.STEP_PROGRESSED: "The service reported progress and so renewed its lease.",
    Fact.STEP_SUCCEEDED: "The service finished the step and named its result.",
    Fact.STEP_RETRYING: "The attempt failed, was not acknowledged or lost its lease; another will follow.",
    Fact.STEP_FAILED: "The step failed for good: a final failure, or no attempts left.",
    Fact.STEP_CANCELLED: "The step ended, or never began, because its job is cancelled.",
    Fact.JOB_SUCCEEDED: "The last step succeeded.",
    Fact.JOB_FAILED: "A step failed for good, a directive could not be sent, or the job outlived its limit.",
    Fact.JOB_CANCELLING: "A client cancelled the job while a step was under way; that step may end first.",
    Fact.JOB_CANCELLED: "The job is cancelled and no step of it is under way.",
    Fact.JOB_PAUSING: "A client paused the job while a step was under way; nothing new begins after it.",
    Fact.JOB_PAUSED: "The job is paused and no step of it is under way.",
    Fact.JOB_RESUMED: "A client resumed the job; it goes on where the pause found it.",
    Fact.SLA_ESCALATED: "The job has been open for too long; operators are told, the job goes on.",
    Fact.REPLY_DUPLICATE: "Evidence: a reply of this kind was applied to this attempt before.",
    Fact.REPLY_LATE: "Evidence: a reply came after its step or its job had ended.",
    Fact.REPLY_STALE: "Evidence: a reply spoke for an attempt or a lease that is no longer the current one.",
    Fact.REPLY_REFUSED: "Evidence: a reply named another tenant than the job's; what it said is not kept.",
}

INTRO: Final = """\
# The life of a job

This page is drawn from the tables in `src/lucius/core/states.py`; `make docs` draws it again. The first two
parts show the outbox engine, the third what is different on the temporal engine.

A job is a row of steps that run one after the other. Whatever happens is recorded as an event, and the type
of an event is a *fact*. A fact may move the step it speaks of and the job around it. The tables below list
every move there is: a fact that has no entry for the present state is refused, and nothing is written.

Terminal states never change. What arrives for a job that has ended is kept as evidence and moves nothing. A
reply that overtakes another is recorded together with what it implies: a RESULT without an ACK gives
`STEP_ACKED`, then `STEP_SUCCEEDED`. So the diagrams need no shortcuts.
"""


TEMPORAL_INTRO: Final = """\
The same facts in the same order, without the passing state `DISPATCHING`: a step whose attempt has begun is
`INITIATED` at once, whether its directive has been published or not, and its job stays `QUEUED` until the
first ACK. The intention to send is kept all the same, and a step is under way only once its directive was
published: before that a cancel takes effect at once, and a pause holds the directive back. The tables leave
out the rows that are those above without `DISPATCHING`.
"""


def page() -> str:
    """The whole of docs/reference/lifecycle.md."""
    job_moves, step_moves = JOB_TABLES[Engine.OUTBOX], _step_moves(Engine.OUTBOX)
    parts = [
        INTRO,
        "## The job\n",
        "The diagram shows the facts that change the state; the table adds those that leave it as it is.\n",
        diagram(job_moves, JobState, JOB_TERMINAL),
        "A resume has several targets; the event names the one the pause came from.\n",
        table(job_moves, JobState),
        "## The step\n",
        diagram(step_moves, StepState, STEP_TERMINAL),
        "Facts without a row here speak of the job alone.\n",
        table(step_moves, StepState),
        *_temporal_parts(),
        "## The facts\n",
        meanings(),
    ]
    return "\n".join(parts)


def _temporal_parts() -> list[str]:
    job_moves, step_moves = JOB_TABLES[Engine.TEMPORAL], _step_moves(Engine.TEMPORAL)
    return [
        "## On the temporal engine\n",
        TEMPORAL_INTRO,
        "### The job on the temporal engine\n",
        diagram(job_moves, JobState, JOB_TERMINAL),
        table(_differing(job_moves, JOB_TABLES[Engine.OUTBOX]), JobState),
        "### The step on the temporal engine\n",
        diagram(step_moves, StepState, STEP_TERMINAL),
        table(_differing(step_moves, _step_moves(Engine.OUTBOX)), StepState),
    ]


def _step_moves(engine: Engine) -> Moves[StepState]:
    return {
        fact: {source: (target,) for source, target in moves.items()}
        for fact, moves in STEP_TABLES[engine].items()
    }


def _differing(moves: Moves[State], others: Moves[State]) -> Moves[State]:
    """Rows that say something else of a state that both engines have."""
    return {
        fact: row
        for fact, row in moves.items()
        if row != {source: to for source, to in others[fact].items() if source != StepState.DISPATCHING}
    }


def diagram(moves: Moves[State], states: type[State], terminal: frozenset[State]) -> str:
    """A Mermaid state diagram: one arrow for each pair of states, labelled with the facts that take it."""
    first = next(iter(states))
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first} : {Fact.JOB_CREATED}"]
    for source in states:
        for target in states:
            facts = [fact for fact in Fact if target in moves.get(fact, {}).get(source, ())]
            if facts and source != target:
                lines.append(f"    {source} --> {target} : {'<br/>'.join(facts)}")
    lines += [f"    {state} --> [*]" for state in states if state in terminal]
    return "\n".join([*lines, "```", ""])


def table(moves: Moves[State], states: type[State]) -> str:
    """A Markdown table: one row for each fact, where it moves from and to, and where it changes nothing."""
    lines = ["| fact | from → to | stays in |", "|---|---|---|"]
    for fact in Fact:
        if fact not in moves:
            continue
        row = moves[fact]
        # States that go to the same place share one line of the cell.
        going: dict[tuple[State, ...], list[State]] = {}
        for source in states:
            if source in row and row[source] != (source,):
                going.setdefault(row[source], []).append(source)
        cell = "<br/>".join(f"{_names(sources)} → {_names(targets)}" for targets, sources in going.items())
        staying = [source for source in states if row.get(source) == (source,)]
        everywhere = len(staying) == len(states)
        lines.append(
            f"| `{fact}` | {cell or '–'} | {'every state' if everywhere else _names(staying) or '–'} |"
        )
    return "\n".join([*lines, ""])


def meanings() -> str:
    lines = [f"- `{fact}`: {FACT_MEANINGS[fact]}" for fact in Fact]
    evidence = _names([fact for fact in Fact if fact in EVIDENCE])
    return "\n".join(
        [*lines, "", f"Evidence ({evidence}) is bounded: past the limit it is only counted.", ""]
    )


def _names(members: Iterable[StrEnum]) -> str:
    return ", ".join(f"`{member}`" for member in members)


def main(arguments: list[str]) -> int:
    target = Path(arguments[0]) if arguments else PAGE_DEFAULT
    if not target.parent.is_dir():
        sys.stderr.write(
            f"lifecycle: there is no folder {target.parent}; run this from the top of the project\n"
        )
        return 2
    target.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
