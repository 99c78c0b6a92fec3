"""Every page over an hour of jobs, in both themes, as the documentation shows it: nothing is cut off, and axe
has nothing serious to say. With LUCIUS_PICTURES=1 those pages that changed are taken, and their pictures kept
in docs/pictures."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from PIL import Image
from tests.journeys.browser import Page
from tests.journeys.console_checks import axe_faults, layout_faults, opened
from tests.support.console_pictures import (
    PICTURES,
    PICTURES_FOLDER,
    THEMES,
    Picture,
    is_current,
    small,
    sources_hash,
)

pytestmark = pytest.mark.xdist_group("browser")

KEPT = os.environ.get("LUCIUS_PICTURES") == "1"
TAKEN = [picture for picture in PICTURES if not (KEPT and is_current(picture))]
COLOURS_MIN = 40
FRAMES = "new Promise((done) => setTimeout(() => requestAnimationFrame(done), 400))"


@pytest.fixture(scope="module")
def world() -> Iterator[dict[str, Any]]:
    with TemporaryDirectory(prefix="lucius-") as folder:  # its name is seen in pictures
        command = [sys.executable, "-m", "tests.support.console_world", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
            process.terminate()


@pytest.mark.parametrize("picture", TAKEN, ids=lambda picture: picture.name)
async def test_a_page_in_both_themes(page: "Page", world: dict[str, Any], picture: Picture) -> None:
    await page.ask("Emulation.setTimezoneOverride", timezoneId="Europe/Zurich")
    await page.size(picture.width, picture.height)
    await opened(page, f"{world['url']}/#/{picture.place.format(**world['jobs'])}")
    for words in picture.pressed:
        await page.press(words)
    if picture.pressed:
        await page.until("!!document.querySelector('img.artifact')?.naturalWidth")
        await page.value("scrollTo(0, 0)")
    for theme in THEMES:
        await page.scheme(theme)
        await page.settled(FRAMES)
        assert await layout_faults(page) == []
        assert await axe_faults(page) == []
        await page.settled(FRAMES)
        taken = await page.picture()
        with Image.open(BytesIO(taken)) as drawn:
            assert drawn.size == (picture.width, picture.height)
            assert len(drawn.convert("RGB").getcolors(1_000_000) or ()) > COLOURS_MIN
        if KEPT:
            PICTURES_FOLDER.mkdir(exist_ok=True)
            Path(picture.file(theme)).write_bytes(small(taken, sources_hash(picture)))
    assert page.faults == []
