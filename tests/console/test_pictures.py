"""The pictures of the console are those of the pages as they are, all shown, and small."""

import re

import pytest
from tests.support.console_pictures import (
    BYTES_MAX,
    PICTURES,
    PICTURES_FOLDER,
    ROOT,
    THEMES,
    Picture,
    sources_hash,
    stamp_of,
)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_no_page_changed_without_its_picture(picture: Picture) -> None:
    for theme in THEMES:
        file = picture.file(theme)
        assert stamp_of(file) == sources_hash(picture), f"{file.name} shows an older page: make pictures"
        assert file.stat().st_size <= BYTES_MAX, file.name


def test_every_picture_is_shown() -> None:
    there = {file.name for file in PICTURES_FOLDER.iterdir()}
    page = (ROOT / "docs/guides/console.md").read_text()
    shown = set(re.findall(r"\(\.\./pictures/([a-z-]+\.png)\)", page))
    assert there == shown == {picture.file(theme).name for picture in PICTURES for theme in THEMES}
