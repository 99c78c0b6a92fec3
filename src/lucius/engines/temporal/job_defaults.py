"""A worker's or an invoker's own `LUCIUS_MAX_ATTEMPTS` and `LUCIUS_STEP_RESULT_TIMEOUT_SECONDS`.

The specification sets both on the worker (001, 21.1). Jobs keep what the orchestrator created them with, and
neither process changes that: where its own variable says otherwise, it says so in its log.
"""

from typing import Final

import structlog

from lucius.contracts.internal import JobDefaults

VARIABLES: Final = {
    "max_attempts": "LUCIUS_MAX_ATTEMPTS",
    "step_result_timeout_seconds": "LUCIUS_STEP_RESULT_TIMEOUT_SECONDS",
}
WARNINGS_MAX: Final = 100

log = structlog.get_logger("lucius.settings")


class DefaultsCheck:
    def __init__(self, own: JobDefaults) -> None:
        """`own`: of the variables that are set for this process."""
        self._own = {name: value for name in VARIABLES if (value := getattr(own, name)) is not None}
        self._warned: set[tuple[str, float]] = set()

    def compare(self, created_with: JobDefaults | None, job_id: str) -> None:
        """Warns of each difference once. None: the job's workflow is from before this was told."""
        if created_with is None:
            return
        for name, here in self._own.items():
            there = getattr(created_with, name)
            known = (name, there)
            if there in (None, here) or known in self._warned or len(self._warned) >= WARNINGS_MAX:
                continue
            self._warned.add(known)
            log.warning(
                "setting_without_effect",
                variable=VARIABLES[name],
                here=here,
                jobs_have=there,
                jobId=job_id,
                reason="jobs keep what they were created with: set it on the orchestrator, or unset it here",
            )
