"""What an examination says: a finding in plain words, and what each check looked at."""

from enum import StrEnum

import msgspec

EXAMPLES_MAX = 5


class Severity(StrEnum):
    ERROR = "error"  # jobs, data or the next start suffer
    WARNING = "warning"  # worth a look


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`mend`: the command, or in plain words what to do. `examples`: some of the places or jobs.
    `repairable`: by `--repair`."""

    check: str
    severity: Severity
    text: str
    mend: str
    count: int = 1
    examples: tuple[str, ...] = ()
    repairable: bool = False


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What a check looked at, in a few words."""

    check: str
    looked: str
    findings: int


def error(check: str, text: str, mend: str) -> Finding:
    return Finding(check=check, severity=Severity.ERROR, text=text, mend=mend)


def warning(check: str, text: str, mend: str) -> Finding:
    return Finding(check=check, severity=Severity.WARNING, text=text, mend=mend)


def number_of(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
