"""What the exit codes mean, for `--help` and the manual."""

from typing import Final

from lucius.cli.http import EXIT_ENDED_BADLY, EXIT_FAILED, EXIT_UNREACHABLE, EXIT_USAGE

EXIT_DONE: Final = 0
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141  # what a shell reports for a tool that SIGPIPE ended

EXIT_CODES: Final[tuple[tuple[int, str], ...]] = (
    (EXIT_DONE, "done"),
    (EXIT_FAILED, "failed: refused by the server, or something went wrong"),
    (EXIT_USAGE, "usage: the command line, the environment or the config file is at fault"),
    (EXIT_ENDED_BADLY, "the job that was waited for failed or was cancelled"),
    (EXIT_UNREACHABLE, "the server cannot be reached, or does not allow it"),
    (EXIT_INTERRUPTED, "interrupted with Ctrl-C"),
    (EXIT_BROKEN_PIPE, "the reader of the output went away"),
)


def exit_codes_text() -> str:
    """For the end of `lucius --help`; the first character keeps the lines apart."""
    lines = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES)
    return f"\b\nExit codes:\n{lines}"
