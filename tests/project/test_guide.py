"""The documentation as a site: built without a warning, links followed, words spelt, served offline."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urldefrag
from zipfile import ZipFile

import httpx2
import pytest
from starlette.responses import PlainTextResponse

from lucius.console import ConsoleApp
from lucius.console.guide import ARCHIVE, HEADERS, Guide

pytestmark = pytest.mark.xdist_group("guide")

HOME = Path(__file__).parents[2]
DOCS = HOME / "docs"
# Words of the field that are also misspellings of others.
WORDS = "aks,promt"  # a service of Azure, and a mistake that a page shows
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src"}
LOADING_RELATIONS = {"stylesheet", "preload", "icon", "modulepreload"}


class Html(HTMLParser):
    """What a page links to, what it loads, and where it can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADS and LOADS[tag] in given:
            self.loads.append(given[LOADS[tag]])
        if tag == "link" and LOADING_RELATIONS & set(given.get("rel", "").split()):
            self.loads.append(given["href"])


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    folder = tmp_path_factory.mktemp("guide")
    line = [sys.executable, str(HOME / "tools" / "guide.py")]
    line += ["--to", str(folder / ARCHIVE), "--work", str(folder / "work")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    with ZipFile(folder / ARCHIVE) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(archive: ZipFile) -> dict[str, Html]:
    names = [name for name in archive.namelist() if name.endswith(".html")]
    return {name: Html(archive.read(name).decode()) for name in names}


def _target(page: str, link: str) -> tuple[str, str]:
    place, anchor = urldefrag(link)
    parts: list[str] = []
    for part in (PurePosixPath(page).parent / unquote(place)).parts if place else PurePosixPath(page).parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts), unquote(anchor)


def _broken(pages: dict[str, Html], names: set[str]) -> Iterator[str]:
    for page, html in pages.items():
        if page == "404.html":  # its links are meant from the root of a site
            continue
        for link in {*html.links, *html.loads}:
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            name, anchor = _target(page, link)
            if name in ("", "."):
                name = "index.html"
            if (name not in names and f"{name}/index.html" not in names) or (
                anchor and name in pages and anchor not in pages[name].ids
            ):
                yield f"{page}: {link}"


def test_every_page_is_there_and_every_link_leads_somewhere(archive: ZipFile, pages: dict[str, Html]) -> None:
    names = set(archive.namelist())
    for path in DOCS.rglob("*.md"):
        name = str(path.relative_to(DOCS))
        shown = re.sub(r"README\.md$", "index.md", name).removesuffix(".md") + ".html"
        assert {name, shown} <= names
    assert sorted(_broken(pages, names)) == []


def test_a_link_that_leads_nowhere_is_noticed() -> None:
    pages = {
        "a/b.html": Html('<a href="../c.html#x">1</a><a href="no.html">2</a><img src="../p.png">'),
        "c.html": Html('<h1 id="y"></h1><a href="https://example.com">3</a><a href="#y">4</a>'),
    }
    assert sorted(_broken(pages, {*pages, "p.png"})) == ["a/b.html: ../c.html#x", "a/b.html: no.html"]


def test_a_page_loads_nothing_from_another_host(archive: ZipFile, pages: dict[str, Html]) -> None:
    for page, html in pages.items():
        assert [link for link in html.loads if re.match(r"(?:[a-z]+:)?//", link)] == [], page
    for name in archive.namelist():
        if name.endswith(".css"):
            assert not re.search(rb"url\(\s*[\"']?(?:https?:)?//", archive.read(name)), name


def test_what_is_searched_for_is_in_the_index(archive: ZipFile) -> None:
    text = archive.read("search.json").decode()
    json.loads(text)
    for words in ("idempotency", "Service Bus", "callback_token"):
        assert words in text


def test_programs_find_every_page_as_markdown(archive: ZipFile) -> None:
    listed = archive.read("llms.txt").decode()
    assert listed.startswith("# Lucius\n\n> ")
    links = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)", listed, re.MULTILINE)
    names = set(archive.namelist())
    assert [link for link in links if link not in names] == []
    every = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"}
    assert every <= set(links)


async def test_a_running_lucius_serves_it(archive: ZipFile, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Guide()
    guide._archive, guide._names = archive, frozenset(archive.namelist())
    monkeypatch.setattr("lucius.console.page.Guide", lambda: guide)
    transport = httpx2.ASGITransport(ConsoleApp(PlainTextResponse("the API")))
    async with httpx2.AsyncClient(transport=transport, base_url="http://l") as http:
        assert (await http.get("/docs/guide")).headers["location"] == "/docs/guide/"
        start = await http.get("/docs/guide/")
        assert start.status_code == 200 and "<title>" in start.text
        assert start.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
        page = await http.get("/docs/guide/guides/embedded.md")
        assert page.headers["content-type"].startswith("text/markdown")
        assert page.text.startswith("# Running Lucius")
        script = await http.get("/docs/guide/files/examples/workers/summarise.sh")
        assert script.headers["content-type"].startswith("text/plain")
        assert (await http.get("/llms.txt")).text == archive.read("llms.txt").decode()
        assert (await http.head("/llms.txt")).content == b""
        for other in ("/docs", "/docs/guide/nope.html", "/docs/guide/../../etc/passwd", "/docs/guidebook"):
            assert (await http.get(other)).text == "the API"
        assert (await http.post("/docs/guide/")).text == "the API"


async def test_a_clone_without_the_site_says_how_to_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lucius.console.guide.ARCHIVE", "not-there.zip")
    transport = httpx2.ASGITransport(ConsoleApp(PlainTextResponse("the API")))
    async with httpx2.AsyncClient(transport=transport, base_url="http://l") as http:
        told = await http.get("/docs/guide/")
        assert told.status_code == 404 and "make guide" in told.text
        assert (await http.get("/llms.txt")).text == "the API"


def test_the_words_of_the_pages_are_spelt_right() -> None:
    pages = [str(path) for path in (*DOCS.rglob("*.md"), *HOME.glob("*.md"))]
    line = [sys.executable, "-m", "codespell_lib", f"--ignore-words-list={WORDS}", *pages]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.stdout == ""


def test_a_word_that_is_spelt_wrong_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("We recieve it.\n")
    line = [sys.executable, "-m", "codespell_lib", str(page)]
    assert "receive" in subprocess.run(line, capture_output=True, text=True, timeout=60).stdout


def test_an_archive_is_the_same_for_the_same_pages(archive: ZipFile) -> None:
    assert {entry.date_time for entry in archive.infolist()} == {(2026, 1, 1, 0, 0, 0)}
    assert archive.testzip() is None
    assert isinstance(archive.read("index.html"), bytes) and io.BytesIO(archive.read("index.html")).read(9)
