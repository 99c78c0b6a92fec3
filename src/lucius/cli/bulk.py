"""One action for many jobs: those whose ids are given, or those that a filter finds, with a preview first.

In: an action, ids or `--filter NAME=VALUE`, and whether it is agreed to. Out: to how many jobs it happened.
Without `--yes` a filter changes nothing before the user has seen how many jobs it is about.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import typer

from lucius.cli.context import CommandContext
from lucius.cli.http import BULK_PATH, EXIT_FAILED, EXIT_USAGE
from lucius.cli.options import states_given
from lucius.cli.render import Doc, docs_in, plain
from lucius.cli.times import since_given

CALLS_MAX: Final = 1_000
SHOWN_MAX: Final = 5
# What a person says, and the member of the API's filter that it is.
FILTER_MEMBERS: Final[Mapping[str, str]] = {
    "tenant": "tenant_id",
    "state": "state",
    "type": "request_type",
    "service": "service",
    "code": "error_code",
    "since": "created_after",
    "until": "created_before",
    "search": "q",
}

FilterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="NAME=VALUE",
        help=f"Instead of ids: all jobs that fit. Names: {', '.join(FILTER_MEMBERS)}; may be repeated. "
        "Shows first how many jobs it is about.",
    ),
]
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="With --filter: do it without asking.")]
DryRunFlag = Annotated[bool, typer.Option("--dry-run", help="With --filter: only say how many.")]


class BulkSum(msgspec.Struct, kw_only=True):
    matched: int = 0
    affected: int = 0
    refused: int = 0
    sample: list[str] = []
    reasons: dict[str, int] = {}


def checked_targets(
    job_ids: Sequence[str] | None, filters: Sequence[str] | None, *, yes: bool = False, dry_run: bool = False
) -> dict[str, Any] | None:
    """The filter, if there is one; else the ids count."""
    if bool(job_ids) == bool(filters):
        raise typer.BadParameter("Give job ids, or --filter NAME=VALUE.")
    if not filters:
        if yes or dry_run:
            raise typer.BadParameter("--yes and --dry-run go with --filter.")
        return None
    found: dict[str, Any] = {}
    for text in filters:
        name, sign, value = text.partition("=")
        member = FILTER_MEMBERS.get(name.strip())
        if member is None or not sign or not value.strip():
            raise typer.BadParameter(
                f"--filter {text}: must be NAME=VALUE, NAME one of {', '.join(FILTER_MEMBERS)}."
            )
        if member in ("created_after", "created_before"):
            found[member] = since_given(value.strip())
        elif member == "state":
            found.setdefault(member, []).extend(states_given(value))
        elif member in found:
            raise typer.BadParameter(f"--filter {name} is there twice.")
        else:
            found[member] = value.strip()
    return found


def act_on_filter(
    at: CommandContext, action: str, wanted: dict[str, Any], *, yes: bool, dry_run: bool
) -> None:
    preview = _bulk(at, action, wanted, dry_run=True)
    _say_preview(at, action, preview)
    if dry_run or not preview.affected:
        _print(at, action, preview, dry_run=True)
        return
    if not yes:
        if not sys.stdin.isatty():
            at.out.say("Nothing was changed. Add --yes to do it.")
            raise typer.Exit(EXIT_USAGE)
        plural = "" if preview.affected == 1 else "s"
        if not typer.confirm(f"{action.capitalize()} {preview.affected} job{plural}?", err=True):
            raise typer.Exit(EXIT_FAILED)
    done = _bulk(at, action, wanted, dry_run=False)
    _print(at, action, done, dry_run=False)
    _say_refusals(at, done)
    if done.refused and not done.affected:
        raise typer.Exit(EXIT_FAILED)


def _bulk(at: CommandContext, action: str, wanted: Mapping[str, Any], *, dry_run: bool) -> BulkSum:
    """All pages of it: a call acts on a thousand jobs at most."""
    total, cursor = BulkSum(), None
    for _ in range(CALLS_MAX):
        body: dict[str, Any] = {"action": action, "filter": wanted, "dry_run": dry_run}
        if cursor is not None:
            body["cursor"] = cursor
        doc = at.need(at.api.post(BULK_PATH, msgspec.json.encode(body), repeatable=dry_run)).doc
        _count(total, doc)
        cursor = doc.get("next_cursor")
        if not isinstance(cursor, str):
            break
        at.out.passing(f"{total.matched} jobs so far…")
    at.out.passing("")
    return total


def _count(total: BulkSum, doc: Doc) -> None:
    total.matched += int(doc.get("matched") or 0)
    total.affected += int(doc.get("affected") or 0)
    total.refused += int(doc.get("refused_count") or 0)
    total.sample = total.sample or [plain(each) for each in doc.get("sample") or ()]
    for refused in docs_in(doc.get("refused")):
        code = plain(refused.get("code"))
        total.reasons[code] = total.reasons.get(code, 0) + 1


def _say_preview(at: CommandContext, action: str, preview: BulkSum) -> None:
    fit = "1 job fits" if preview.matched == 1 else f"{preview.matched} jobs fit"
    at.out.say(f"{fit}; {action} would change {preview.affected}.")
    shown = preview.sample[:SHOWN_MAX]
    if shown:
        at.out.say("\n".join(f"  {job_id}" for job_id in shown))
    if preview.matched > len(shown):
        at.out.say(f"  and {preview.matched - len(shown)} more")
    _say_refusals(at, preview)


def _say_refusals(at: CommandContext, done: BulkSum) -> None:
    if done.refused:
        reasons = ", ".join(f"{code} {count}" for code, count in sorted(done.reasons.items()))
        at.out.say(f"  Refused: {done.refused} ({reasons}).")


def _print(at: CommandContext, action: str, done: BulkSum, *, dry_run: bool) -> None:
    if at.out.as_json:
        counts = {"matched": done.matched, "affected": done.affected, "refused_count": done.refused}
        at.out.json(msgspec.json.encode({"action": action, "dry_run": dry_run, **counts}))
    elif not dry_run:
        at.out.data(f"{done.affected}")
