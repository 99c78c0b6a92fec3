"""The indexes against the jobs: rows that are lost, wrong or too much, and jobs that nothing moves."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from lucius.assembly.doctor.findings import EXAMPLES_MAX, Checked, Finding, Severity, number_of, warning
from lucius.assembly.doctor.installation import Installation, RunningServer
from lucius.core.routing import LANES
from lucius.ledger.index_audit import ComparedJob, IndexAudit, IndexFault, IndexFinding, IndexKind, Place
from lucius.ledger.names import lane_partition
from lucius.ledger.store import StoreError

PAGE_ROWS_MAX = 200
KEPT_MAX = 10_000  # findings that are kept to be repaired; the rest is met by the next run
REPORT_EVERY_JOBS = 1_000
DOUBT_MS = 2_000
OVERDUE_MS_MAX = 300_000
OVERDUE_ROWS_MAX = 10_000

_LOST: Final[Mapping[IndexKind, str]] = {
    IndexKind.DUE: "lost from the due index: no deadline or retry of their jobs comes",
    IndexKind.DISPATCH: "lost from the dispatch index: no worker is given their directives",
    IndexKind.LIST: "lost from the lists: their jobs are not shown",
    IndexKind.SEARCH: "missing from the search: their jobs (of a version without it?) are found by id only",
    IndexKind.SLOT: "lost from the in-flight slots: their tenants may exceed their limits",
    IndexKind.KEY: "lost from the idempotency keys: the same command makes a second job",
    IndexKind.POINTER: "lost from the index of ids: their jobs are not found",
    IndexKind.DLQ: "lost from the dead letters: their jobs are not shown there",
    IndexKind.RETENTION: "lost from the retention index: their jobs are never removed",
    IndexKind.COPY: "lost from the tables for readers",
}
_WHERE: Final[Mapping[IndexKind, str]] = {
    IndexKind.DUE: "of the due index",
    IndexKind.DISPATCH: "of the dispatch index",
    IndexKind.LIST: "of the lists",
    IndexKind.SEARCH: "of the search",
    IndexKind.SLOT: "of the in-flight slots",
    IndexKind.KEY: "of the idempotency keys",
    IndexKind.POINTER: "of the index of ids",
    IndexKind.DLQ: "of the dead letters",
    IndexKind.RETENTION: "of the retention index",
    IndexKind.COPY: "of the tables for readers",
}


class IndexDamage(msgspec.Struct, kw_only=True):
    """What a repair starts from."""

    jobs: list[ComparedJob] = []
    orphans: list[IndexFinding] = []
    counts: Counter[tuple[IndexKind, IndexFault]] = msgspec.field(default_factory=Counter)
    examples: dict[tuple[IndexKind, IndexFault], list[str]] = {}
    jobs_read: int = 0

    def note(self, finding: IndexFinding) -> None:
        group = (finding.kind, finding.fault)
        self.counts[group] += 1
        examples = self.examples.setdefault(group, [])
        if len(examples) < EXAMPLES_MAX and finding.job_id not in examples:
            examples.append(finding.job_id)


async def find_index_damage(installation: Installation) -> IndexDamage:
    audit, damage = (
        IndexAudit(installation.ledger, now_ms=installation.now_ms, grace_ms=DOUBT_MS),
        IndexDamage(),
    )
    await _compare_all(installation, audit, damage)
    for table in audit.index_tables:
        # A row may be there before its job is: what is met without one is met again a moment later.
        met = await _orphans_of(installation, audit, table)
        if not met and audit.doubts:
            await asyncio.sleep(DOUBT_MS / 1000)
            met = await _orphans_of(installation, audit, table)
        for finding in met:
            damage.note(finding)
            if len(damage.orphans) < KEPT_MAX:
                damage.orphans.append(finding)
    return damage


async def _compare_all(installation: Installation, audit: IndexAudit, damage: IndexDamage) -> None:
    after: Place | None = None
    while rows := await audit.jobs(after, PAGE_ROWS_MAX):
        for row in rows:
            damage.jobs_read += 1
            if damage.jobs_read % REPORT_EVERY_JOBS == 0:
                installation.report(f"indexes: {damage.jobs_read:,} jobs compared")
            try:
                compared = await audit.compare(row)
            except (msgspec.MsgspecError, StoreError, ValueError):
                continue  # the check of the rows names it
            if compared is not None:
                for finding in compared.findings:
                    damage.note(finding)
                if len(damage.jobs) < KEPT_MAX:
                    damage.jobs.append(compared)
        if len(rows) < PAGE_ROWS_MAX:
            return
        after = rows[-1].place


async def _orphans_of(installation: Installation, audit: IndexAudit, table: str) -> list[IndexFinding]:
    found: list[IndexFinding] = []
    after: Place | None = None
    while True:
        more, after = await audit.orphans(table, after, PAGE_ROWS_MAX)
        found += more
        if after is None:
            return found


def index_findings(installation: Installation, damage: IndexDamage) -> Iterator[Finding]:
    for (kind, fault), count in sorted(damage.counts.items()):
        yield Finding(
            check="slots" if kind is IndexKind.SLOT else "indexes",
            severity=_severity(kind, fault),
            text=_text(kind, fault, count),
            mend=installation.command("doctor --repair"),
            count=count,
            examples=tuple(damage.examples[kind, fault]),
            repairable=True,
        )


def _severity(kind: IndexKind, fault: IndexFault) -> Severity:
    missing = kind is IndexKind.SEARCH and fault is IndexFault.LOST
    return Severity.WARNING if missing or fault is IndexFault.ORPHAN else Severity.ERROR


def _text(kind: IndexKind, fault: IndexFault, count: int) -> str:
    rows = number_of(count, "row")
    if fault is IndexFault.LOST:
        return f"{rows} {'is' if count == 1 else 'are'} {_LOST[kind]}"
    if fault is IndexFault.WRONG:
        return f"{rows} {_WHERE[kind]} {'says' if count == 1 else 'say'} something else than the job"
    if kind is IndexKind.SLOT:
        return f"{rows} {_WHERE[kind]} {'is' if count == 1 else 'are'} held by no open job: limits bite early"
    return f"{rows} {_WHERE[kind]} {'names' if count == 1 else 'name'} no job that wants it"


async def repair_index_damage(
    installation: Installation, audit: IndexAudit, damage: IndexDamage
) -> tuple[Counter[tuple[IndexKind, IndexFault]], int]:
    """What was put right, and how many findings had changed meanwhile."""
    done: Counter[tuple[IndexKind, IndexFault]] = Counter()
    left = 0
    for number, compared in enumerate(damage.jobs):
        if number % REPORT_EVERY_JOBS == 0:
            installation.report(f"repair: {number:,} of {len(damage.jobs):,} jobs")
        now: ComparedJob | None = compared
        for _ in range(3):
            if now is None:
                break
            mended = await audit.mend(now)
            done.update((finding.kind, finding.fault) for finding in mended)
            # A job that moved on meanwhile, or could not be found by its id before, is looked at again.
            now = await audit.compare_job(compared.job_id) if now.hid or not mended else None
        left += now is not None
    for finding in damage.orphans:
        if await audit.remove(finding):
            done[finding.kind, finding.fault] += 1
    return done, left


async def check_stuck(installation: Installation) -> tuple[Checked, list[Finding]]:
    """Jobs whose time came long ago, which the sweeper should have looked at. Without a server they only
    wait."""
    now_ms = installation.now_ms()
    late: list[str] = []
    oldest_ms = now_ms
    for lane in range(LANES):
        rows = await installation.store.query(
            installation.settings.tables.due,
            lane_partition(lane),
            end=f"{max(0, now_ms - OVERDUE_MS_MAX):014d}",
            limit=OVERDUE_ROWS_MAX,
        )
        for row in rows:
            late.append(row.key[15:])
            oldest_ms = min(oldest_ms, int(row.key[:14]) if row.key[:14].isdecimal() else now_ms)
    found: list[Finding] = []
    if late and installation.server is not RunningServer.STOPPED:
        minutes = (now_ms - oldest_ms) // 60_000
        text = f"{number_of(len(late), 'job')} should have been looked at, the first {minutes:,} minutes ago"
        mend = (
            "See whether a process that moves jobs runs (`lucius dev`, `reconciler` or `invoker`), and its "
            f"log; then `lucius jobs explain {late[0]}`"
        )
        examples = tuple(late[:EXAMPLES_MAX])
        found.append(
            msgspec.structs.replace(warning("stuck", text, mend), count=len(late), examples=examples)
        )
    looked_at = "nothing overdue" if not late else f"{number_of(len(late), 'job')} overdue"
    if late and installation.server is RunningServer.STOPPED:
        looked_at += ", as no server runs"
    return Checked(check="stuck", looked=looked_at, findings=len(found)), found
