"""An examination: all checks, one after the other, and the repair of what they found.

A check is a function that gets the patient and gives what it looked at and what it found; the list below is
all there is to add one.
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
    find_wounds,
    index_findings,
    repair_wounds,
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
    wounds: IndexDamage

    @property
    def repairable(self) -> bool:
        return any(finding.repairable for finding in self.findings)


async def examine(patient: Installation) -> Examination:
    """Reads only. A check that meets a fault of the store says so, and the others go on."""
    checked: list[Checked] = []
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            looked, found = await check(patient)
        except StoreError as fault:
            name = check.__name__.removeprefix("check_")
            looked, found = _broken_off(name, fault)
        checked.append(looked)
        findings += found
    try:
        wounds = await find_wounds(patient)
    except StoreError as fault:
        looked, found = _broken_off("indexes", fault)
        findings = _worst_first([*findings, *found])
        return Examination(checked=[*checked, looked], findings=findings, wounds=IndexDamage())
    of_indexes = list(index_findings(patient, wounds))
    for name in ("indexes", "slots"):
        number = sum(finding.check == name for finding in of_indexes)
        looked_at = f"{number_of(wounds.jobs_read, 'job')} compared"
        checked.append(Checked(check=name, looked=looked_at, findings=number))
    return Examination(checked=checked, findings=_worst_first([*findings, *of_indexes]), wounds=wounds)


async def repair(
    patient: Installation, examination: Examination
) -> tuple[Counter[tuple[IndexKind, IndexFault]], int]:
    """What was put right, by kind, and how many jobs were left as they had moved on. Raises `StoreError`."""
    store = await open_to_repair(patient)
    try:
        ledger = JobLedger(store, patient.layout, patient.settings.tables)
        audit = IndexAudit(ledger, now_ms=patient.now_ms, patience_ms=DOUBT_MS)
        return await repair_wounds(patient, audit, examination.wounds)
    finally:
        if store is not patient.store:
            await store.close()


def _worst_first(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.severity is not Severity.ERROR)


def _broken_off(name: str, fault: StoreError) -> tuple[Checked, list[Finding]]:
    mend = "See the other findings, and run `lucius doctor` again."
    found = error(name, f"This check broke off: {fault}", mend)
    return Checked(check=name, looked="broke off", findings=1), [found]
