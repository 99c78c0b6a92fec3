"""The command line of `lucius bench`."""

from pathlib import Path
from typing import Annotated

import typer

from lucius.cli.options import BENCH_PARTS, BenchOptions, file_to_write, one_of

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def bench(
    jobs_count: Annotated[
        int, typer.Option("--jobs", min=1, max=1_000_000, help="How many jobs to run.")
    ] = 2_000,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="How many of them at a time.")] = 64,
    json_out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the measurements to this file.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A short run that only shows it works.")] = False,
    only: Annotated[
        str | None, typer.Option(metavar="PART", help=f"One part of it: {', '.join(BENCH_PARTS)}.")
    ] = None,
    ledger_jobs: Annotated[
        int | None,
        typer.Option(
            min=1_000,
            max=10_000_000,
            show_default="100000",
            help="How many jobs the full ledger of the parts about flatness holds.",
        ),
    ] = None,
) -> None:
    """Measure how many jobs a second this machine moves."""
    from lucius_lab.bench.main import run_bench  # loading it takes a moment

    chosen = None if only is None else one_of("--only", only, BENCH_PARTS)
    written = file_to_write("--json-out", json_out)
    options = BenchOptions(
        jobs=jobs_count,
        in_flight=in_flight,
        json_out=written,
        quick=quick,
        only=chosen,
        ledger_jobs=ledger_jobs,
    )
    raise typer.Exit(run_bench(options))
