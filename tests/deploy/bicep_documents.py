"""Prints Bicep files as one JSON document, by name; run by the tests in .venv-checks, which holds the parser.

Usage: python bicep_documents.py FILE...
A file that is not Bicep is an error, which says where.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pycep import BicepParser  # type: ignore[import-not-found]


def plain(value: Any) -> Any:
    """Without the parser's own kinds of text."""
    if isinstance(value, dict):
        return {str(name): plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(member) for member in value]
    return value if value is None or isinstance(value, bool | int) else str(value)


def main() -> None:
    parser = BicepParser()
    paths = [Path(name) for name in sys.argv[1:]]
    print(json.dumps({path.stem: plain(parser.parse(text=path.read_text("utf-8"))) for path in paths}))


main()
