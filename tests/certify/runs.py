"""Certificates of many services at once: most of the time each of them waits."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from lucius.certify.values import Certificate, CertifyTimeouts, Judgement
from lucius.cli.certifying import CertifyOptions, run_certify
from lucius.settings import read_settings

AT_ONCE = 8
HEAVY_AT_ONCE = 3  # of those that are busy all the time
# Longer than a service needs: the machine has other things to do.
PATIENCE = CertifyTimeouts(
    ack_seconds=8.0, lease_seconds=2.5, work_seconds=90.0, start_seconds=60.0, drain_seconds=60.0
)
LUCIUS = (sys.executable, "-m", "lucius.cli.main")


def options(
    step_type: str,
    *start: str,
    bus: str | None = None,
    sample: Path | None = None,
    timeouts: CertifyTimeouts = PATIENCE,
    only: Sequence[str] = (),
    folder: Path | None = None,
) -> CertifyOptions:
    return CertifyOptions(
        service=step_type.lower(),
        step_type=step_type,
        bus=bus,
        start=start,
        sample=sample,
        folder=folder,
        timeouts=timeouts,
        only=tuple(only),
    )


def certificates(asked: dict[str, CertifyOptions], heavy: frozenset[str]) -> dict[str, Certificate]:
    async def each(wanted: CertifyOptions, room: asyncio.Semaphore) -> Certificate:
        async with room:
            return await run_certify(wanted, read_settings({}), say=_nothing, report=_nothing)

    async def all_of_them() -> list[Certificate]:
        rooms = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(HEAVY_AT_ONCE)
        return await asyncio.gather(*(each(wanted, rooms[name in heavy]) for name, wanted in asked.items()))

    return dict(zip(asked, asyncio.run(all_of_them()), strict=True))


def failures(certificate: Certificate) -> dict[str, tuple[str, ...]]:
    return {verdict.rule: verdict.evidence for verdict in certificate.those(Judgement.FAILED)}


def rules(certificate: Certificate, judgement: Judgement) -> set[str]:
    return {verdict.rule for verdict in certificate.those(judgement)}


def _nothing(_: object) -> None:
    pass
