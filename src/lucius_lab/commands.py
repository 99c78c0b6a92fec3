"""`lucius lab …`: what happens to jobs when things go wrong, simulated with the code that runs them.

In: seeds, what shall go wrong, protocols. Out: a report, or the timeline of one seed. Nothing here talks to a
server of yours, and nothing is written.
"""

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from lucius.cli.context import Output
from lucius.cli.http import EXIT_ENDED_BADLY, EXIT_FAILED

if TYPE_CHECKING:
    from lucius.core.model import ProtocolSpec
    from lucius_lab.questions import LabQuestion
    from lucius_lab.sim.fleet import ScheduleTally
    from lucius_lab.sim.run import SimShape

app = typer.Typer(
    help="Simulate jobs under faults: crashes, lost messages, wrong clocks.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

JobsOption = Annotated[int, typer.Option(min=1, max=1_000, help="Jobs in each schedule.")]
FaultsOption = Annotated[
    str,
    typer.Option(
        help="none, light, default or heavy; or what goes wrong how often: loss=20%,crash=1%,duplicate=5%."
    ),
]
ProtocolsOption = Annotated[
    Path | None,
    typer.Option("--protocols", exists=True, file_okay=False, help="Folder of protocol documents to try."),
]
TypesOption = Annotated[
    list[str] | None,
    typer.Option("--request-type", help="Only this protocol, built in or of the folder; may be repeated."),
]
WorkOption = Annotated[
    str | None, typer.Option(help="How long services take: 2s, or 500ms-30s. 50ms-1.5s unless given.")
]
TopologyOption = Annotated[
    str | None, typer.Option(help="embedded, workers or broker; the seed chooses unless given.")
]
LabJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
WantedOption = Annotated[
    str, typer.Option("--wanted", help="The share of jobs that shall succeed, for a protocol to hold.")
]


@app.command()
def run(
    seeds: Annotated[int, typer.Option(min=1, help="How many schedules.")] = 200,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    jobs: JobsOption = 8,
    faults: FaultsOption = "default",
    protocol_folder: ProtocolsOption = None,
    request_types: TypesOption = None,
    work: WorkOption = None,
    topology: TopologyOption = None,
    wanted: WantedOption = "99.9%",
    processes: Annotated[
        int | None, typer.Option(min=1, max=256, help="Processes to use; one a core unless given.")
    ] = None,
    as_json: LabJson = False,
) -> None:
    """Run many schedules, each decided by its seed, and check every promise after every commit.

    Will my pipeline's timeouts and retries hold under 20 % message loss?

        lucius lab run --protocols ./protocols --faults loss=20% --work 5s-40s

    Says of each protocol whether it held, which faults are to blame, and which setting would have held.
    Exit code 1 if a promise was broken or there is no verdict, 3 if a protocol did not hold.
    """
    from lucius_lab.questions import parse_share
    from lucius_lab.report import summary, summary_text
    from lucius_lab.sim.fleet import ScheduleProcessDied, run_fleet
    from lucius_lab.verdicts import PROBED_SEEDS_MAX, verdict_lines, verdicts

    out = Output(as_json=as_json)
    share = parse_share(wanted)
    if share is None:
        raise typer.BadParameter(f"--wanted {wanted}: a share such as 99.9% or 0.999, above 0 and at most 1.")
    shape = _shape_of(question := _question(jobs, faults, protocol_folder, request_types, work, topology))
    began = time.monotonic()

    def report(tally: "ScheduleTally") -> None:
        took = time.monotonic() - began
        failed = f", {tally.failed} failed" if tally.failed else ""
        out.passing(f"{tally.schedules:,} of {seeds:,} schedules, {tally.schedules / took:.0f}/s{failed}")

    workers = min(processes or os.cpu_count() or 1, seeds)
    tried = 0

    def again(asked: "LabQuestion") -> "ScheduleTally":
        nonlocal tried
        tried += 1
        out.passing(f"what would have held? run {tried}")
        return run_fleet(first, min(seeds, PROBED_SEEDS_MAX), _shape_of(asked), processes=workers)

    try:
        tally = run_fleet(first, seeds, shape, processes=workers, report=report)
        took = time.monotonic() - began
        judged = verdicts(question, shape.rates or {}, tally, share, again)
    except ScheduleProcessDied as fault:
        out.passing("")
        out.say(f"error: {fault}, killed perhaps for want of memory: there is no verdict.")
        raise typer.Exit(EXIT_FAILED) from None
    out.passing("")
    found = summary(tally, shape, took_seconds=took, found=judged)
    if as_json:
        out.json(msgspec.json.encode(found))
    else:
        out.data(summary_text(found, replay=_replay_line()))
        for line in verdict_lines(judged, share):
            out.data(line)
    if tally.failed:
        raise typer.Exit(EXIT_FAILED)
    if not all(verdict.held for verdict in judged):
        raise typer.Exit(EXIT_ENDED_BADLY)


@app.command()
def replay(
    seed: Annotated[int, typer.Argument(min=0, help="The seed to repeat.")],
    jobs: JobsOption = 8,
    faults: FaultsOption = "default",
    protocol_folder: ProtocolsOption = None,
    request_types: TypesOption = None,
    work: WorkOption = None,
    topology: TopologyOption = None,
    shrunk: Annotated[
        bool, typer.Option("--shrink", help="If it fails: with the fewest faults that still make it fail.")
    ] = False,
    as_json: LabJson = False,
) -> None:
    """Repeat one schedule exactly, and print which process did what when, and which fault struck.

    Give the same options as the run that found it. The trace hash is the same each time.
    """
    from lucius_lab.report import replay_summary
    from lucius_lab.sim.run import simulate
    from lucius_lab.sim.shrink import shrink

    out = Output(as_json=as_json)
    shape = _shape(jobs, faults, protocol_folder, request_types, work, topology)
    if shrunk:
        found = shrink(seed, shape, report=lambda runs, left: out.passing(f"run {runs}: {left} faults left"))
        out.passing("")
        if found is None:
            out.say(f"Seed {seed} does not fail: there is nothing to shrink.")
        else:
            out.say(f"{len(found.only)} faults are enough (found in {found.runs} runs).")
            shape = msgspec.structs.replace(shape, only=frozenset(found.only))
    outcome = simulate(seed, msgspec.structs.replace(shape, record=True))
    document = replay_summary(outcome)
    if as_json:
        out.json(msgspec.json.encode(document))
    else:
        _print_replay(out, document)
    if not outcome.passed:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def equivalence(
    scripted: Annotated[
        bool, typer.Option("--scripted/--no-scripted", help="Play the scripts that were written by hand.")
    ] = True,
    generated: Annotated[int, typer.Option(min=0, help="How many scripts to draw from seeds.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    as_json: LabJson = False,
) -> None:
    """Play the same scripts on both engines, on a real Temporal server, and compare what they wrote.

    Answers, failures, losses, duplicates, pauses, cancels, reruns: rows, events and answers must be the same
    but for ids, times and DISPATCHING. Differences are printed as a diff with the script that made them.
    Needs the `temporal` program and lucius[temporal]. Exit code 1 on a difference.
    """
    from lucius_lab.equivalence.commands import run_equivalence

    code = run_equivalence(Output(as_json=as_json), scripted=scripted, generated=generated, seed=seed)
    if code:
        raise typer.Exit(code)


def _print_replay(out: Output, report: dict[str, Any]) -> None:
    for line in report["timeline"]:
        out.data(line)
    out.data("")
    out.facts(
        ("seed", report["seed"]),
        (
            "deployment",
            f"{report['topology']}, {report['layout']}, "
            f"store {'spans' if report['spans'] else 'does not span'}",
        ),
        ("commits", report["commits"]),
        ("virtual time", f"{report['virtual_seconds']:g} s"),
        ("faults", len(report["faults"])),
        ("trace hash", report["trace_hash"]),
        ("verdict", "; ".join(report["violations"]) or "every invariant held"),
    )


def _shape(
    jobs: int,
    faults: str,
    protocol_folder: Path | None,
    request_types: list[str] | None,
    work: str | None,
    topology: str | None,
) -> "SimShape":
    return _shape_of(_question(jobs, faults, protocol_folder, request_types, work, topology))


def _question(
    jobs: int,
    faults: str,
    protocol_folder: Path | None,
    request_types: list[str] | None,
    work: str | None,
    topology: str | None,
) -> "LabQuestion":
    from lucius_lab.questions import LabQuestion
    from lucius_lab.sim.cluster import ClusterTopology

    offered = [each.value for each in ClusterTopology]
    if topology is not None and topology not in offered:
        raise typer.BadParameter(f"--topology {topology}: choose one of {', '.join(offered)}.")
    return LabQuestion(
        jobs=jobs,
        faults=faults,
        work=work,
        topology=None if topology is None else ClusterTopology(topology),
        protocols=_protocols(protocol_folder, request_types or []),
    )


def _shape_of(question: "LabQuestion") -> "SimShape":
    from lucius.core.refusal import Refused
    from lucius_lab.questions import shape_of

    shape = shape_of(question)
    if isinstance(shape, Refused):
        raise typer.BadParameter(shape.message)
    return shape


def _protocols(folder: Path | None, request_types: list[str]) -> "tuple[ProtocolSpec, ...]":
    """Those of the folder, or those that are named; none means the lab's own."""
    from lucius.core.refusal import Refused
    from lucius.registry.builtin import BuiltinRegistry
    from lucius.registry.folder import FolderRegistry
    from lucius.settings import read_settings
    from lucius_lab.questions import find_protocols

    if folder is None and not request_types:
        return ()
    policy = read_settings(os.environ).policy
    builtin = BuiltinRegistry(defaults=policy)
    known: tuple[ProtocolSpec, ...] = builtin.all()
    if folder is not None:
        registry = FolderRegistry(folder, builtin, policy)
        registry.refresh()
        if registry.problems():
            raise typer.BadParameter("; ".join(registry.problems()))
        inside = {protocol.protocol_id for protocol in known}
        known = registry.all()
        if not request_types:
            own = tuple(protocol for protocol in known if protocol.protocol_id not in inside)
            if not own:
                raise typer.BadParameter(f"--protocols {folder}: there is no protocol in this folder.")
            return own
    found = find_protocols(known, request_types)
    if isinstance(found, Refused):
        raise typer.BadParameter(found.message)
    return found


def _replay_line() -> str:
    """The command that repeats a seed: this one's options, but for those that choose seeds and processes."""
    words = sys.argv[sys.argv.index("run") + 1 :] if "run" in sys.argv else []
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("--seeds", "--first", "--processes"):
            skip = True
        elif word != "--json" and not word.startswith(("--seeds=", "--first=", "--processes=")):
            kept.append(word)
    return shlex.join(["lucius", "lab", "replay", "{seed}", *kept]).replace("'{seed}'", "{seed}")
