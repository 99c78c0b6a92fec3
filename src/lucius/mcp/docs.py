"""A search in the pages of the documentation, which come with the package.

In: some words. Out: the sections that have most of them, best first.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import msgspec

FOUND_MAX: Final = 5
EXCERPT_CHARS: Final = 1_200
WORDS_MAX: Final = 12
_word = re.compile(r"[a-z0-9_]{2,40}")
_heading = re.compile(r"^#{1,4} (.+)$", re.MULTILINE)


class DocSection(msgspec.Struct, frozen=True, kw_only=True):
    page: str
    heading: str
    text: str


def pages() -> Mapping[str, str]:
    """By their paths: from the archive of the package, or from the folder of a clone."""
    archive = files("lucius.console") / "guide.zip"
    if archive.is_file():
        with as_file(archive) as path, ZipFile(path) as opened:
            names = [name for name in opened.namelist() if name.endswith(".md")]
            return {name: opened.read(name).decode() for name in names}
    docs = Path(__file__).parents[3] / "docs"
    return {str(path.relative_to(docs)): path.read_text(encoding="utf-8") for path in docs.rglob("*.md")}


@cache
def sections() -> tuple[DocSection, ...]:
    return tuple(each for page, text in sorted(pages().items()) for each in _cut(page, text))


def _cut(page: str, text: str) -> Iterator[DocSection]:
    found = list(_heading.finditer(text))
    for place, heading in enumerate(found):
        end = found[place + 1].start() if place + 1 < len(found) else len(text)
        yield DocSection(page=page, heading=heading[1], text=text[heading.end() : end].strip())


def found(query: str) -> list[dict[str, Any]]:
    words = list(dict.fromkeys(_word.findall(query.lower())))[:WORDS_MAX]
    scored = sorted(((-_score(each, words), place) for place, each in enumerate(sections())))[:FOUND_MAX]
    return [
        {"page": each.page, "heading": each.heading, "text": each.text[:EXCERPT_CHARS]}
        for score, place in scored
        if score < 0 and (each := sections()[place])
    ]


def _score(section: DocSection, words: list[str]) -> float:
    """Each word counts once in the text and more in the heading; decisions come after pages that say how."""
    text, heading = section.text.lower(), section.heading.lower()
    score = sum((word in text) + 2.0 * (word in heading) + min(text.count(word), 5) * 0.1 for word in words)
    return score * (0.5 if section.page.startswith("decisions/") else 1.0)
