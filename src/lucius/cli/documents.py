"""Writes the descriptions of the interfaces: docs/openapi.json, docs/lifebook/openapi.json,
docs/asyncapi.json and docs/schemas/.

In: a folder. Out: the files, the same for the same code. The HTTP document is the one that is served.
`python -m lucius.cli.documents [FOLDER]` writes them.
"""

import json
import sys
from pathlib import Path
from typing import Final

from lucius.api import openapi
from lucius.contracts import asyncapi
from lucius.contracts.components import schema_files
from lucius.lifebook import openapi as lifebook

FOLDER_DEFAULT: Final = Path("docs")


def documents() -> dict[str, str]:
    """The files by their names in the folder."""
    return {
        "openapi.json": json.dumps(openapi.document(), indent=2, ensure_ascii=False) + "\n",
        "lifebook/openapi.json": json.dumps(lifebook.document(), indent=2, ensure_ascii=False) + "\n",
        "asyncapi.json": asyncapi.text(),
        **{f"schemas/{name}": text for name, text in schema_files().items()},
    }


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else FOLDER_DEFAULT
    if not folder.is_dir():
        sys.stderr.write(f"documents: there is no folder {folder}; run this from the top of the project\n")
        return 2
    for name, text in documents().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
