"""Writes the descriptions of the interfaces: docs/openapi.json, docs/lifebook/openapi.json,
docs/asyncapi.json and docs/schemas/, and the pages about the first and the third.

In: a folder. Out: the files, the same for the same code. The HTTP document is the one that is served.
`python -m lucius.cli.documents [FOLDER]` writes them.
"""

import json
import sys
from pathlib import Path
from typing import Final

from lucius.api import openapi
from lucius.cli.interface_pages import http_page, messages_page
from lucius.contracts import asyncapi
from lucius.contracts.components import schema_files
from lucius.lifebook import openapi as lifebook

FOLDER_DEFAULT: Final = Path("docs")


def documents() -> dict[str, str]:
    """The files by their names in the folder."""
    http = openapi.document()
    return {
        "openapi.json": json.dumps(http, indent=2, ensure_ascii=False) + "\n",
        "reference/http-api.md": http_page(http),
        "reference/messages.md": messages_page(json.loads(asyncapi.text())),
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
