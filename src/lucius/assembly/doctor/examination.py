"""An examination: all checks, one after the other, and the repair of what they found.

A check is a function that gets the installation and gives what it looked at and what it found. To add one,
add it to the list below.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from lucius.assembly.doctor.configuration import check_configuration, check_versions
from lucius.assembly.doctor.findings import Checked, Finding, Severity, error, number_of
from lucius.assembly.doctor.folder import check_clock, check_disk, check_files
from lucius.assembly.doctor.indexes import (
    DOUBT_MS,
    IndexDamage,
    check_stuck,
    find_index_damage,
    index_findings,
    repair_index_damage,
)
from lucius.assembly.doctor.installation import Installation, open_to_repair
from lucius.assembly.doctor.rows import check_integrity, check_rows
from lucius.ledger.index_audit import IndexAudit, IndexFault, IndexKind
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.store import StoreError

Check = Callable[[Installation], Awaitable[tuple[Checked, list[Finding]]]]

CHECKS: Final[tuple[Check, ...]] = (
    check_versions,
    check_configuration,
    check_files,
    check_disk,
    check_clock,
    check_integrity,
    check_rows,
    check_stuck,
)


class Examination(msgspec.Struct, kw_only=True):
    checked: list[Checked]
    findings: list[Finding]
    damage: IndexDamage

    @property
    def repairable(self) -> bool:
        return any(finding.repairable for finding in self.findings)


async def examine(installation: Installation) -> Examination:
    """Reads only. A check that meets a fault of the store says so, and the others go on."""
    checked: list[Checked] = []
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            looked, found = await check(installation)
        except StoreError as fault:
            name = check.__name__.removeprefix("check_")
            looked, found = _broken_off(name, fault)
        checked.append(looked)
        findings += found
    try:
        damage = await find_index_damage(installation)
    except StoreError as fault:
        looked, found = _broken_off("indexes", fault)
        findings = _worst_first([*findings, *found])
        return Examination(checked=[*checked, looked], findings=findings, damage=IndexDamage())
    of_indexes = list(index_findings(installation, damage))
    for name in ("indexes", "slots"):
        number = sum(finding.check == name for finding in of_indexes)
        looked_at = f"{number_of(damage.jobs_read, 'job')} compared"
        checked.append(Checked(check=name, looked=looked_at, findings=number))
    return Examination(checked=checked, findings=_worst_first([*findings, *of_indexes]), damage=damage)


async def repair(
    installation: Installation, examination: Examination
) -> tuple[Counter[tuple[IndexKind, IndexFault]], int]:
    """What was put right, by kind, and how many jobs were left as they had moved on. Raises `StoreError`."""
    store = await open_to_repair(installation)
    try:
        ledger = JobLedger(store, installation.layout, installation.settings.tables)
        audit = IndexAudit(ledger, now_ms=installation.now_ms, grace_ms=DOUBT_MS)
        return await repair_index_damage(installation, audit, examination.damage)
    finally:
        if store is not installation.store:
            await store.close()


def _worst_first(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.severity is not Severity.ERROR)


def _broken_off(name: str, fault: StoreError) -> tuple[Checked, list[Finding]]:
    mend = "See the other findings, and run `lucius doctor` again."
    found = error(name, f"This check broke off: {fault}", mend)
    return Checked(check=name, looked="broke off", findings=1), [found]
