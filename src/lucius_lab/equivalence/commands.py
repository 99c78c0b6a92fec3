"""`lucius lab equivalence`: scripts on both engines, and what they differ in."""

import asyncio
import importlib.util
import logging

import msgspec

from lucius.assembly.clock_and_ids import now_ms
from lucius.cli.context import Output
from lucius.cli.http import EXIT_FAILED
from lucius.telemetry.logs import configure_logging

NOT_INSTALLED = "Temporal's library is not installed: pip install 'lucius[temporal]'"


def run_equivalence(out: Output, *, scripted: bool, generated: int, seed: int) -> int:
    if importlib.util.find_spec("temporalio") is None:
        out.say(NOT_INSTALLED)
        return EXIT_FAILED
    from lucius.engines.temporal.dev_server import NoTemporalProgram
    from lucius.jobs.workflows import WorkflowsUnavailable
    from lucius_lab.equivalence.compare import compare, report_text
    from lucius_lab.equivalence.generated import generated as drawn
    from lucius_lab.equivalence.scripted import SCRIPTED

    # Scripts refuse directives and terminate workflows: the warnings about that are no news.
    configure_logging("error", plain=True)
    logging.getLogger("lucius.temporal.core").setLevel(logging.ERROR)
    scripts = [*(SCRIPTED if scripted else ()), *(drawn(seed + number) for number in range(generated))]

    def report(played: int, differed: int) -> None:
        out.passing(f"{played:,} of {len(scripts):,} scenarios, {differed} differ")

    try:
        found = asyncio.run(compare(scripts, real_ms=now_ms, report=report))
    except (NoTemporalProgram, WorkflowsUnavailable) as fault:
        out.say(str(fault))
        return EXIT_FAILED
    out.passing("")
    if out.as_json:
        out.json(msgspec.json.encode(found))
    else:
        out.data(report_text(found))
    return EXIT_FAILED if found.differences else 0
