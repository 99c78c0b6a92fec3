"""What `lucius` and `python -m lucius` begin with: loading takes a moment, and may be interrupted."""

import sys

INTERRUPTED = 130  # as in `lucius.cli.exits`, which would have to be loaded first


def main() -> None:
    try:
        from lucius.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
