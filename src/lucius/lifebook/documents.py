"""Draws docs/lifebook/reference.md from the declarations: the item, the statuses and their moves, the
settings.

In: `FIELDS`, `MOVES`, `VARIABLES`, the refusals. Out: one Markdown page, the same for the same declarations.
`python -m lucius.lifebook.documents [FILE]` writes it.
"""

import sys
from pathlib import Path
from typing import Final

from lucius.lifebook import message
from lucius.lifebook.job import FIELDS, PROJECTED, Field
from lucius.lifebook.refusals import PROBLEMS
from lucius.lifebook.schema import SWEEP_INDEX, WORKSPACE_INDEX
from lucius.lifebook.settings import VARIABLES
from lucius.lifebook.states import MEANINGS, MOVES, TERMINAL, Status, StatusMove

PAGE_DEFAULT: Final = Path("docs/lifebook/reference.md")

INTRO: Final = """\
# Lifebook: reference

Drawn from the declarations in `src/lucius/lifebook`; `make docs` draws it again.
"""


def page() -> str:
    return "\n".join(
        [
            INTRO,
            "## The item\n",
            "One item a job, under the partition key `job_id`. These are the fields of the contract:\n",
            _fields([field for field in FIELDS if field.of_contract]),
            "Lifebook adds these; a reader of the contract may ignore them:\n",
            _fields([field for field in FIELDS if not field.of_contract]),
            f"The index `{WORKSPACE_INDEX}` (`workspace_id`, `created_at`) projects "
            f"{', '.join(f'`{name}`' for name in PROJECTED)}, beside its keys. The sparse index "
            f"`{SWEEP_INDEX}` (`sweep_shard`, `sweep_at`) projects its "
            "keys alone and holds only what still "
            "has something to do.\n",
            "Two more kinds of items share the table, under keys that are no UUID: `key#…` makes an "
            "idempotency key unique, `event#…` is the analytics event of an ended job until it is sent, "
            "and as evidence until it expires with the job.\n",
            "## The message\n",
            f"Version {message.VERSION}, with exactly these members: "
            f"{', '.join(f'`{name}`' for name in message.FIELDS)}.\n",
            "## The statuses\n",
            diagram(),
            moves_table(),
            "What is not in the table is refused as `ILLEGAL_MOVE`, logged, and nothing is written.\n",
            "## Settings\n",
            "Where AWS is and who calls it is said as to any AWS SDK (`AWS_REGION`, `AWS_PROFILE`, "
            "`AWS_ENDPOINT_URL_DYNAMODB`, `AWS_ENDPOINT_URL_SQS`). The rest:\n",
            _settings(),
            "## Refusals of the API\n",
            _refusals(),
        ]
    )


def diagram() -> str:
    """A Mermaid state diagram: an arrow for each pair of statuses, labelled with the moves that take it."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Status.PENDING} : created"]
    for source in Status:
        for target in Status:
            moves = [move for move in StatusMove if MOVES[move].get(source) == target]
            if moves and source != target:
                lines.append(f"    {source} --> {target} : {'<br/>'.join(moves)}")
    lines += [f"    {status} --> [*]" for status in Status if status in TERMINAL]
    return "\n".join([*lines, "```", ""])


def moves_table() -> str:
    lines = ["| move | from → to | stays in | meaning |", "|---|---|---|---|"]
    for move in StatusMove:
        row = MOVES[move]
        going = "<br/>".join(f"`{one}` → `{other}`" for one, other in row.items() if one != other)
        staying = ", ".join(f"`{one}`" for one, other in row.items() if one == other)
        lines.append(f"| `{move}` | {going or '–'} | {staying or '–'} | {MEANINGS[move]} |")
    return "\n".join([*lines, ""])


def _fields(fields: list[Field]) -> str:
    lines = ["| field | type | | meaning |", "|---|---|---|---|"]
    for field in fields:
        presence = "optional" if field.optional else "always"
        lines += [f"| `{field.name}` | {field.kind} | {presence} | {field.meaning} |"]
    return "\n".join([*lines, ""])


def _settings() -> str:
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for variable in VARIABLES:
        default = f"`{variable.default}`" if variable.default else "–"
        lines.append(f"| `{variable.name}` | {default} | {variable.meaning} |")
    return "\n".join([*lines, ""])


def _refusals() -> str:
    lines = ["| code | status | |", "|---|---|---|"]
    lines += [f"| `{code}` | {status} | {title} |" for code, (status, title) in PROBLEMS.items()]
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> int:
    target = Path(arguments[0]) if arguments else PAGE_DEFAULT
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
