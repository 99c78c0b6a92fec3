"""`python -m lucius` is `lucius`."""

from lucius.cli.main import main

if __name__ == "__main__":
    main()
