"""Examines an installation, and mends what can be mended from the jobs.

In: a data folder, the environment, the store that they name. Out: findings, each with the command that mends
it, and with `repair` what was put right. Reads only, unless it is asked to repair; a server may run
meanwhile.
"""

from lucius.assembly.doctor.examination import CHECKS, Examination, examine, repair
from lucius.assembly.doctor.findings import Finding, Severity
from lucius.assembly.doctor.installation import CannotOpen, Installation, RunningServer, open_installation

__all__ = [
    "CHECKS",
    "CannotOpen",
    "Examination",
    "Finding",
    "Installation",
    "RunningServer",
    "Severity",
    "examine",
    "open_installation",
    "repair",
]
