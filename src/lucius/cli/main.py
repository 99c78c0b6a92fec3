"""The entry point: `lucius` and its commands.

In: the arguments. Out: an exit code. Each command's own module does the work; those that run something are
imported when they are called.
"""

import gc
import sys
from collections.abc import Sequence
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

import lucius
from lucius.cli import (
    account,
    admin,
    jobs,
    keys,
    lab,
    lifebook,
    part_commands,
    pauses,
    protocols,
    provision,
    reasons,
    schedules,
    status,
    temporal_commands,
)
from lucius.cli.backup import backup, restore
from lucius.cli.certify import certify
from lucius.cli.context import PROFILE_ASKED, JsonFlag, Output
from lucius.cli.doctor import doctor
from lucius.cli.exits import EXIT_INTERRUPTED, exit_codes_text
from lucius.cli.helptext import MORE_HELP
from lucius.cli.http import EXIT_USAGE
from lucius.cli.lane import lane
from lucius.cli.mcp import mcp
from lucius.cli.options import (
    DATA,
    DEV_BUSES,
    ENGINES,
    LOG_LEVELS,
    PROFILES,
    STORAGE_VARIABLE,
    STORAGES,
    DevOptions,
    bus_of,
    one_of,
    services_of,
    storage_of,
)
from lucius.cli.submit import run, submit
from lucius.cli.transfer import export, import_, verify
from lucius.cli.tree import (
    SHELLS,
    ProfileOption,
    command_tree,
    completing,
    completion_script,
    ready_to_complete,
)

app = typer.Typer(
    name="lucius",
    help=(
        "Durable job orchestration. Client commands talk to LUCIUS_URL (http://127.0.0.1:8420 unless set), "
        "or to the server of a --profile."
    ),
    epilog=f"{MORE_HELP}\n\n{exit_codes_text()}",
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help and plain usage errors: they start faster, and a log keeps them on one line.
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> None:
    if asked:
        Output(as_json=False).data(f"lucius {lucius.__version__}")
        raise typer.Exit


app.command()(submit)
app.command()(run)
app.command()(reasons.plan)
app.command()(reasons.why)
app.command()(reasons.usage)
jobs.app.command()(reasons.explain)
jobs.app.command()(reasons.adopt)
app.command()(status.status)
app.command()(status.services)
app.command("open")(account.open_console)
app.command()(account.login)
app.add_typer(account.config, name="config")
app.command()(mcp)
app.add_typer(jobs.app, name="jobs")
app.add_typer(protocols.app, name="protocols")
app.add_typer(schedules.app, name="schedules")
app.add_typer(pauses.pause, name="pause")
app.add_typer(pauses.resume, name="resume")
app.add_typer(admin.dlq, name="dlq")
app.add_typer(admin.outbox, name="outbox")
app.add_typer(keys.app, name="keys")
app.add_typer(lab.bench, name="bench")
app.add_typer(lab.lab, name="lab")
app.add_typer(lifebook.app, name="lifebook")
app.add_typer(provision.app, name="provision")
app.command()(lane)
app.command()(backup)
app.command()(restore)
app.command()(export)
app.command()(verify)
app.command("import")(import_)


SampleOption = Annotated[
    bool | None,
    typer.Option(
        "--sample/--no-sample",
        help="Run a sample document once it is up. Unless given: if none ran yet in this folder.",
    ),
]
DevStoreOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where the ledger is: sqlite:///FOLDER/lucius.db, postgresql://HOST/DATABASE, azure-tables: "
        "at LUCIUS_TABLE_CONNECTION, or memory:; LUCIUS_STORE unless given.",
    ),
]
DevEngineOption = Annotated[
    str | None,
    typer.Option(help="What moves jobs forward: outbox or temporal; LUCIUS_TEMPORAL_ENABLED unless given."),
]


@app.command()
def dev(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8420,
    data: Annotated[Path, typer.Option(file_okay=False, help="Folder for everything kept.")] = DATA,
    engine: DevEngineOption = None,
    bus: Annotated[
        str | None,
        typer.Option(
            help="What carries directives: memory; nats (a server of its own if need be), which the "
            "temporal engine takes; servicebus at LUCIUS_SERVICEBUS_CONNECTION; or servicebus-emulator, "
            "one of its own. LUCIUS_BUS unless given, else what these addresses say."
        ),
    ] = None,
    store: DevStoreOption = None,
    storage: Annotated[
        str | None,
        typer.Option(
            envvar=STORAGE_VARIABLE,
            show_default=STORAGES[0],
            help="Layout of the ledger: ledger or table; or memory, which keeps nothing.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="azure-local: on emulators of Azure's tables, Service Bus and App Configuration, "
            "all of them brought along."
        ),
    ] = None,
    services: Annotated[str, typer.Option(help="all, none, or a list: ocr,embedding,sis.")] = "all",
    protocol_folder: Annotated[
        Path | None,
        typer.Option("--protocols", exists=True, file_okay=False, help="Folder of protocol documents."),
    ] = None,
    sample: SampleOption = None,
    opens: Annotated[bool, typer.Option("--open", help="Open the console in the browser.")] = False,
    as_json: part_commands.UpFlag = False,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error; LUCIUS_LOG_LEVEL unless given.")
    ] = None,
) -> None:
    """Run everything, for this machine: in one process, or on the temporal engine in a few."""
    options = DevOptions(
        host=host,
        port=port,
        data=data,
        engine=None if engine is None else one_of("--engine", engine, ENGINES),
        bus=bus_of(bus, DEV_BUSES),
        store=store or "",
        storage=storage_of(storage),
        profile=None if profile is None else one_of("--profile", profile, PROFILES),
        services=services_of(services),
        protocols=protocol_folder,
        sample=sample,
        opens=opens,
        as_json=as_json,
        log_level=None if log_level is None else one_of("--log-level", log_level, LOG_LEVELS),
    )
    from lucius.cli.dev import run_dev

    raise typer.Exit(run_dev(options))


app.command()(part_commands.api)
app.command()(part_commands.reconciler)
app.command()(temporal_commands.orchestrator)
app.command()(temporal_commands.invoker)
app.command()(temporal_commands.worker)
app.add_typer(part_commands.service, name="service")
app.command()(certify)
app.command()(doctor)


@app.callback()
def root(
    version_asked: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
    profile: ProfileOption = None,
) -> None:
    """What holds for every command."""


@app.command()
def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.", autocompletion=lambda: list(SHELLS))],
) -> None:
    """Print the script that makes a shell complete `lucius`.

    For bash: `source <(lucius completion bash)`.
    """
    completion_script(app, one_of("SHELL", shell, SHELLS))


@app.command()
def version(as_json: JsonFlag = False) -> None:
    """Print the version of Lucius."""
    out = Output(as_json=as_json)
    if as_json:
        out.json(msgspec.json.encode({"version": lucius.__version__}))
    else:
        out.data(lucius.__version__)


def run_cli(arguments: Sequence[str]) -> int:
    """Runs one command line; the exit code."""
    if any(not _is_text(argument) for argument in arguments):
        Output(as_json=False).say("error: An argument is not UTF-8 text.")
        return EXIT_USAGE
    asked_before = PROFILE_ASKED.set(None)
    try:
        if completing():
            ready_to_complete()
        _tree()(args=list(arguments), prog_name="lucius")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        PROFILE_ASKED.reset(asked_before)
    return 0


@cache
def _tree() -> Any:
    return command_tree(app)


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def main() -> None:
    # A fifth of a start went into looking for garbage among modules, which all stay.
    gc.set_threshold(50_000)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that lacks a character gets its escape instead of an exception.
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run_cli(sys.argv[1:]))


if __name__ == "__main__":
    main()
