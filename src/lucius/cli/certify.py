"""`lucius certify`: does a platform service keep the contract?

In: arguments. Out: the certificate on stdout, as a table or as JSON, a page if asked for, and an exit code.
"""

import asyncio
import os
import shlex
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from lucius.cli.context import Output
from lucius.cli.exits import EXIT_INTERRUPTED
from lucius.cli.http import EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE
from lucius.cli.options import BUSES, file_to_write, one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from lucius.certify.load import LoadLevel, LoadReport
    from lucius.certify.values import Certificate, RuleVerdict
    from lucius.cli.certifying import CertifyOptions
    from lucius.settings import Settings

T = TypeVar("T")
LOAD_MAX = 100_000
IN_FLIGHT_MAX = 10_000
StartOption = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND",
        help="Starts the service, with LUCIUS_URL set; {url} and {data} stand for address and folder.",
    ),
]
LoadOption = Annotated[
    int | None,
    typer.Option(min=1, max=LOAD_MAX, help="Play no rules: give it so many directives, and say how it does."),
]
InFlightOption = Annotated[
    str, typer.Option(metavar="LIST", help="With --load: how many of them at a time, in turn.")
]
PORT_MAX = 65_535
SECONDS_MAX = 3_600
WAIT_SECONDS = 300.0  # for a service that is started by hand


def certify(
    step_type: Annotated[str, typer.Option("--step-type", metavar="T", help="What the service does: OCR.")],
    service: Annotated[
        str | None, typer.Option(help="The name it leases under; the step type in small letters.")
    ] = None,
    http: Annotated[bool, typer.Option("--http", help="It leases over HTTP: the default.")] = False,
    bus: Annotated[
        str | None,
        typer.Option(help="Its work comes over this bus: nats or servicebus, or one that is brought along."),
    ] = None,
    start: StartOption = None,
    sample: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Samples of work: ok, slow, retryable, final."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder for inputs and outputs; a temporary one.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=PORT_MAX, help="Port to be Lucius on; 0: a free one.")] = 0,
    ack_seconds: Annotated[float, typer.Option(min=0.1, max=SECONDS_MAX, help="Time for an ACK.")] = 5.0,
    lease_seconds: Annotated[
        float, typer.Option(min=0.5, max=SECONDS_MAX, help="Time for a sign of life.")
    ] = 3.0,
    work_seconds: Annotated[float, typer.Option(min=1, max=SECONDS_MAX, help="Time for one sample.")] = 60.0,
    rule: Annotated[list[str] | None, typer.Option("--rule", help="Only this rule; may be repeated.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Not tried counts as failed.")] = False,
    load: LoadOption = None,
    in_flight: InFlightOption = "1,8,64",
    page: Annotated[
        Path | None, typer.Option("--page", dir_okay=False, help="Write the certificate as an HTML page.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificate as JSON.")] = False,
) -> None:
    """Play the orchestrator against a running service, and say which rules of the contract it keeps.

        lucius certify --step-type OCR --start "lucius service run ocr"

    Without --start the address is printed and the service is waited for; rules that kill it are not tried.
    Exit code 0 if no rule failed, 1 if one did, 4 if the service never came. With --load it measures instead.
    """
    from lucius.certify.rules import RULES
    from lucius.certify.values import CertifyTimeouts
    from lucius.cli.certifying import CertifyOptions

    if http and bus is not None:
        raise typer.BadParameter("--http and --bus exclude each other.")
    known = [each.id for each in RULES]
    timeouts = CertifyTimeouts(
        ack_seconds=ack_seconds,
        lease_seconds=lease_seconds,
        work_seconds=work_seconds,
        **({"start_seconds": WAIT_SECONDS} if start is None else {}),
    )
    options = CertifyOptions(
        service=service or step_type.lower(),
        step_type=step_type,
        bus=None if bus is None else one_of("--bus", bus, [each for each in BUSES if each != "memory"]),
        port=port,
        start=() if start is None else tuple(_words(start)),
        sample=sample,
        folder=data,
        timeouts=timeouts,
        only=tuple(_known(each, known) for each in rule or ()),
    )
    out = Output(as_json=as_json)
    if load is not None:
        levels = _levels(in_flight, plays_rules=bool(rule or strict or page is not None))
        raise typer.Exit(_run_load(options, out, load, levels))
    raise typer.Exit(_run(options, out, page=file_to_write("--page", page), strict=strict))


def _levels(text: str, *, plays_rules: bool) -> tuple[int, ...]:
    if plays_rules:
        raise typer.BadParameter("--load plays no rules: leave --rule, --strict and --page away.")
    levels = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= IN_FLIGHT_MAX for part in levels):
        raise typer.BadParameter(
            f"--in-flight {text}: give numbers from 1 to {IN_FLIGHT_MAX} with commas, such as 1,8,64."
        )
    return tuple(map(int, levels))


def _words(command: str) -> list[str]:
    """Raises `BadParameter` before anything runs, if the command names no program that is there."""
    try:
        words = shlex.split(command)
    except ValueError as fault:
        raise typer.BadParameter(f"--start {command}: {fault}.") from None
    if not words:
        raise typer.BadParameter("--start needs a command.")
    # The folder and the address, which a word may stand for, are known later.
    if "{" not in words[0] and shutil.which(words[0]) is None:
        raise typer.BadParameter(f"--start: there is no program {words[0]}, or it may not be run.")
    return words


def _known(rule: str, known: list[str]) -> str:
    if rule not in known:
        raise typer.BadParameter(f"--rule {rule}: there are {', '.join(known)}.")
    return rule


def _run(options: "CertifyOptions", out: Output, *, page: Path | None, strict: bool) -> int:
    from lucius.certify.page import html_page
    from lucius.cli.certifying import run_certify

    def report(verdict: "RuleVerdict") -> None:
        out.passing(f"{verdict.rule}: {verdict.judgement}")

    certificate = _played(out, lambda settings: run_certify(options, settings, say=out.say, report=report))
    if isinstance(certificate, int):
        return certificate
    if page is not None:
        page.write_text(html_page(certificate), encoding="utf-8")
        out.say(f"The certificate is in {page}")
    _show(out, certificate)
    untried = any(verdict.judgement == "not tried" for verdict in certificate.verdicts)
    return EXIT_FAILED if not certificate.passed or (strict and untried) else 0


def _run_load(options: "CertifyOptions", out: Output, directives: int, levels: tuple[int, ...]) -> int:
    from lucius.cli.certifying import run_load

    def report(level: "LoadLevel") -> None:
        out.passing(f"{level.in_flight} in flight: {level.per_second:g} a second")

    found = _played(
        out,
        lambda settings: run_load(
            options, settings, directives=directives, levels=levels, say=out.say, report=report
        ),
    )
    if isinstance(found, int):
        return found
    if out.as_json:
        out.json(msgspec.json.encode(found))
    else:
        _show_load(out, found)
    return 0 if found.passed else EXIT_FAILED


def _show_load(out: Output, found: "LoadReport") -> None:
    rows: list[tuple[object, ...]] = [
        (
            level.in_flight,
            level.directives,
            f"{level.seconds:.1f}",
            f"{level.per_second:,.1f}",
            level.at_once,
            f"{level.ack_p50_ms:,.0f} / {level.ack_p99_ms:,.0f}",
            f"{level.done_p50_ms:,.0f} / {level.done_p99_ms:,.0f}",
            level.failed,
        )
        for level in found.levels
    ]
    heads = ("IN FLIGHT", "DONE", "SECONDS", "A SECOND", "AT ONCE", "ACK P50/P99 MS", "RESULT P50/P99 MS")
    out.table((*heads, "FAILED"), rows)
    for fault in (fault for level in found.levels for fault in level.faults):
        out.data(f"  {fault}")
    lanes = max(level.lanes for level in found.levels)
    out.data(f"\n{found.service} ({found.step_type}) over {found.carrier}: directives of {lanes} lanes")


def _played(out: Output, play: "Callable[[Settings], Coroutine[Any, Any, T]]") -> "T | int":
    """What came of it, or the exit code of a run that came to nothing."""
    from lucius.assembly import NoBus
    from lucius.certify.samples import BadSample
    from lucius.cli.certifying import ServiceNotReached
    from lucius.cli.serving import begin_logging
    from lucius.settings import BadSetting, read_settings

    async def playing() -> "T":
        # The service is a process group of its own: it must not outlive the process that started it.
        if (this := asyncio.current_task()) is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        return await play(settings)

    try:
        settings = read_settings(os.environ)
        begin_logging(settings, "warning")
        found = asyncio.run(playing())
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED
    except (BadSetting, BadSample) as fault:
        out.say(f"error: {fault}")
        return EXIT_USAGE
    except (ServiceNotReached, NoBus) as fault:
        out.passing("")
        out.say(f"error: {fault}")
        return EXIT_UNREACHABLE
    except OSError as fault:
        out.say(f"error: {fault}")
        return EXIT_FAILED
    out.passing("")
    return found


def _show(out: Output, certificate: "Certificate") -> None:
    from lucius.certify.page import summary

    if out.as_json:
        out.json(msgspec.json.encode(certificate))
        return
    rows: list[tuple[object, ...]] = [
        (verdict.rule, verdict.judgement.upper(), f"{verdict.seconds:.1f} s", verdict.title)
        for verdict in certificate.verdicts
    ]
    out.table(("RULE", "VERDICT", "TOOK", "WHAT"), rows)
    for verdict in certificate.verdicts:
        if verdict.judgement in ("failed", "not tried"):
            out.data(f"\n{verdict.rule}: {verdict.judgement}\n  expected: {verdict.expected}")
            for line in verdict.evidence:
                out.data(f"  {line}")
    name = f"{certificate.service} ({certificate.step_type})"
    out.data(f"\n{name} over {certificate.carrier}: {summary(certificate)}")
