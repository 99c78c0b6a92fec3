"""The environment: variables that nothing reads, settings that work against each other, and versions."""

import platform
import sqlite3
from collections.abc import Iterator
from difflib import get_close_matches

import lucius
from lucius.assembly.doctor.findings import Checked, Finding, error, number_of, warning
from lucius.assembly.doctor.installation import Installation
from lucius.assembly.stores import STORE_NAME, layout_fault
from lucius.ledger.rows import ROW_SCHEMA
from lucius.settings.names import PREFIX, SMOKE_PREFIX, VARIABLES

# Kubernetes sets such ones for a service that is called lucius.
_OF_KUBERNETES = ("_PORT", "_SERVICE_HOST", "_SERVICE_PORT", "_TCP", "_ADDR", "_PROTO")
CHECK = "configuration"


async def check_configuration(installation: Installation) -> tuple[Checked, list[Finding]]:
    ours = sorted(name for name in installation.env if name.startswith(PREFIX))
    found = [*_unread(ours), *_refused(installation), *_contradictions(installation)]
    return Checked(check=CHECK, looked=number_of(len(ours), "variable"), findings=len(found)), found


def _unread(names: list[str]) -> Iterator[Finding]:
    for name in names:
        if name in VARIABLES or name.startswith(SMOKE_PREFIX) or name.endswith(_OF_KUBERNETES):
            continue
        meant = get_close_matches(name, sorted(VARIABLES), n=1, cutoff=0.75)
        mend = f"Rename it to {meant[0]}" if meant else f"unset {name}"
        yield warning(CHECK, f"Nothing reads {name}", mend)


def _refused(installation: Installation) -> Iterator[Finding]:
    if installation.settings_fault is not None:
        mend = "Correct the variable: Lucius does not start with it."
        yield error(CHECK, installation.settings_fault, mend)


def _contradictions(installation: Installation) -> Iterator[Finding]:
    settings = installation.settings
    limits, policy = settings.limits, settings.policy
    if limits.tenant_max > limits.total_max:
        yield warning(
            CHECK,
            f"A tenant may have {limits.tenant_max:,} jobs in flight, and all together {limits.total_max:,}",
            "Raise LUCIUS_MAX_INFLIGHT, or lower LUCIUS_MAX_INFLIGHT_PER_TENANT.",
        )
    if limits.default_max > limits.total_max:
        yield warning(
            CHECK,
            f"{limits.default_max:,} DEFAULT jobs may be in flight, and of all kinds {limits.total_max:,}",
            "Raise LUCIUS_MAX_INFLIGHT, or lower LUCIUS_MAX_INFLIGHT_DEFAULT.",
        )
    if limits.burst_max > limits.total_max:
        yield warning(
            CHECK,
            f"{limits.burst_max:,} BURST jobs may be in flight, and of all kinds {limits.total_max:,}",
            "Raise LUCIUS_MAX_INFLIGHT, or lower LUCIUS_MAX_INFLIGHT_BURST.",
        )
    if policy.lease_ms > policy.max_duration_ms:
        yield warning(
            CHECK,
            "A lease is longer than an attempt may last",
            "Raise LUCIUS_STEP_MAX_DURATION above LUCIUS_STEP_RESULT_TIMEOUT_SECONDS.",
        )
    if policy.max_duration_ms > settings.sla_ms:
        yield warning(
            CHECK,
            "One attempt may last longer than a whole job by its SLA",
            "Raise LUCIUS_JOB_SLA above LUCIUS_STEP_MAX_DURATION.",
        )
    if settings.look_every_ms > policy.ack_timeout_ms:
        yield warning(
            CHECK,
            "Deadlines are looked at more rarely than ACKs time out",
            "Lower LUCIUS_OUTBOX_RETRY_INTERVAL below LUCIUS_ACK_TIMEOUT.",
        )
    if settings.audit_rows_per_second == 0:
        yield warning(
            CHECK,
            "The audit is off: index rows that get lost stay lost",
            "unset LUCIUS_AUDIT_ROWS_PER_SECOND",
        )
    yield from _of_the_store(installation)


def _of_the_store(installation: Installation) -> Iterator[Finding]:
    if not installation.is_file:
        if (installation.data / STORE_NAME).exists():
            variable = (
                "LUCIUS_TABLE_CONNECTION" if installation.settings.store_url is None else "LUCIUS_STORE"
            )
            folder = installation.data
            text = f"{variable} names {installation.place}, and {folder} holds a ledger that is not used"
            yield warning(CHECK, text, f"unset {variable}, or remove the file")
        return
    named = installation.env.get("LUCIUS_STORAGE_BACKEND", "").strip()
    if named and (fault := layout_fault(installation.ledger_folder, named)) is not None:
        yield error(CHECK, fault, f"export LUCIUS_STORAGE_BACKEND={installation.layout.value}")


async def check_versions(installation: Installation) -> tuple[Checked, list[Finding]]:
    """What runs here; rows of a later version are told of by the check of the rows."""
    return Checked(check="versions", looked=versions_text(), findings=0), []


def versions() -> dict[str, str | int]:
    return {
        "lucius": lucius.__version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "row_schema": ROW_SCHEMA,
    }


def versions_text() -> str:
    known = versions()
    return f"lucius {known['lucius']}, Python {known['python']}, SQLite {known['sqlite']}"
