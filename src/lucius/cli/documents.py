"""Writes the descriptions of the interfaces: docs/openapi.json, docs/asyncapi.json and docs/schemas/.

In: a folder. Out: the files, the same for the same code. The HTTP document is the one that is served: a house
is opened in a folder that is removed again. `python -m lucius.cli.documents [FOLDER]` writes them.
"""

import asyncio
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lucius.api.app import make_api
from lucius.assembly import open_embedded
from lucius.contracts import asyncapi
from lucius.contracts.schemas import schema_files
from lucius.settings import read_settings

FOLDER_DEFAULT: Final = Path("docs")


async def documents() -> dict[str, str]:
    """The files by their names in the folder."""
    with TemporaryDirectory() as folder:
        lucius = await open_embedded(
            read_settings({}),
            storage="ledger",
            data=Path(folder),
            base_url="http://127.0.0.1:8420",
            protocols=None,
        )
        try:
            served = make_api(lucius.deployment).openapi()
        finally:
            await lucius.stop()
    return {
        "openapi.json": json.dumps(served, indent=2, ensure_ascii=False) + "\n",
        "asyncapi.json": asyncapi.text(),
        **{f"schemas/{name}": text for name, text in schema_files().items()},
    }


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else FOLDER_DEFAULT
    if not folder.is_dir():
        sys.stderr.write(f"documents: there is no folder {folder}; run this from the top of the project\n")
        return 2
    for name, text in asyncio.run(documents()).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
