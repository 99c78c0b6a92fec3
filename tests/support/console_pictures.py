"""The pictures of the console in the documentation: what each shows, and what it was made from.

A picture carries a hash of its sources: the modules of its page, the style sheet, and what plays the
installation that it shows. `make pictures` makes them anew.
"""

import re
from hashlib import blake2b
from io import BytesIO
from pathlib import Path

import msgspec
from PIL import Image
from PIL.PngImagePlugin import PngInfo

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "src/lucius/console/static"
PICTURES_FOLDER = ROOT / "docs/pictures"
THEMES = ("light", "dark")
BYTES_MAX = 150_000
COLOURS = 256
STAMP = "lucius-sources"
_EVERYWHERE = ("index.html", "console.css", "ui.js", "dom.js", "main.js")
_WORLD = ("tests/support/console_world.py", "tests/support/still_clock.py")
_IMPORT = re.compile(r'from "/console/([a-z]+\.js)"')


class Picture(msgspec.Struct, frozen=True):
    """`place`: after the `#/` of the address; `{retried}` and the like stand for jobs of the installation.
    `pressed`: what is pressed before, by its words or its label."""

    name: str
    place: str
    module: str
    height: int = 800
    width: int = 1280
    pressed: tuple[str, ...] = ()

    def file(self, theme: str) -> Path:
        return PICTURES_FOLDER / f"{self.name}-{theme}.png"


PICTURES = (
    Picture("overview", "", "overview.js", 1180),
    Picture("jobs", "jobs", "jobs.js"),
    Picture("job", "jobs/{retried}", "job.js", 1400),
    Picture("job-failed", "jobs/{late}", "job.js", 1180),
    Picture(
        "job-artifacts",
        "jobs/{finished}",
        "job.js",
        1500,
        pressed=("What it read and wrote", "Show sample.pdf"),
    ),
    Picture("failed", "failed", "failed.js"),
    Picture("playground", "playground", "playground.js", 1000),
    Picture("schedules", "schedules", "schedules.js", 560),
    Picture("schedule", "schedules/invoices-of-the-night", "schedules.js", 720),
    Picture("services", "services", "fleet.js", 560),
    Picture("lanes", "lanes", "fleet.js", 560),
    Picture("tenants", "tenants", "fleet.js", 640),
    Picture("protocols", "protocols", "protocols.js", 900),
    Picture("protocol", "protocols/ocr_embedding_sis_v1", "protocols.js", 900),
    Picture("webhooks", "webhooks", "admin.js", 560),
    Picture("keys", "keys", "admin.js", 640),
    Picture("overview-phone", "", "overview.js", 844, 390),
    Picture("job-phone", "jobs/{retried}", "job.js", 844, 390),
)


def sources_of(picture: Picture) -> list[Path]:
    open_names, names = {picture.module}, set[str](_EVERYWHERE)
    while open_names:
        name = open_names.pop()
        names.add(name)
        open_names |= set(_IMPORT.findall((STATIC / name).read_text())) - names
    return [*(STATIC / name for name in sorted(names)), *(ROOT / name for name in _WORLD)]


def sources_hash(picture: Picture) -> str:
    made = blake2b(repr(msgspec.structs.astuple(picture)).encode(), digest_size=16)
    for source in sources_of(picture):
        made.update(source.read_bytes())
    return made.hexdigest()


def small(png: bytes, stamp: str) -> bytes:
    """The same picture with a palette, and what it was made from."""
    with Image.open(BytesIO(png)) as taken:
        reduced = taken.convert("RGB").quantize(
            COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
    info, made = PngInfo(), BytesIO()
    info.add_text(STAMP, stamp)
    reduced.save(made, "PNG", optimize=True, pnginfo=info)
    return made.getvalue()


def stamp_of(file: Path) -> str | None:
    if not file.exists():
        return None
    with Image.open(file) as found:
        return str(found.info.get(STAMP))


def is_current(picture: Picture) -> bool:
    return all(stamp_of(picture.file(theme)) == sources_hash(picture) for theme in THEMES)
