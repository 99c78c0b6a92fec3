"""The documents keep up with the code: settings, links, decisions."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lucius.settings.names import VARIABLES

HOME = Path(__file__).parents[2]
DOCS = HOME / "docs"
SOURCE = HOME / "src" / "lucius"
DECISIONS = DOCS / "decisions"

PAGES = sorted([*HOME.glob("*.md"), *DOCS.rglob("*.md")])

# A name that ends in `_` is the beginning of several, as in `LUCIUS_*`; `_LUCIUS_COMPLETE` is the shell's.
_VARIABLE = re.compile(r"(?<![A-Z_])LUCIUS_[A-Z_]*[A-Z](?![A-Z_])")
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_DECISION_ROW = re.compile(r"^\| \[(\d{3})\]\((\d{3}-[\w-]+\.md)\) \| .+ \|$", re.MULTILINE)


def prose_of(page: Path) -> str:
    """A page without its blocks of code, in which nothing is a link or a heading."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page: Path) -> set[str]:
    """Where a link may point to inside a page: its headings, as forges name them."""
    headings = _HEADING.findall(prose_of(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path, within: Path) -> Iterator[str]:
    for link in _LINK.findall(_CODE.sub("", prose_of(page))):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        known = target.exists() and target.is_relative_to(within)
        if not known or (anchor and anchor not in anchors_of(target)):
            yield link


@cache
def variables_read() -> set[str]:
    """Those of Lucius itself: what long runs tell the test suite is nobody's setting."""
    return {
        name for path in SOURCE.rglob("*.py") for name in _VARIABLE.findall(path.read_text(encoding="utf-8"))
    } - {"LUCIUS_SOAK"}


def variables_of_smoke() -> set[str]:
    """What the suite that runs on the real Azure is told."""
    return set(_VARIABLE.findall((HOME / "tests" / "smoke" / "conftest.py").read_text(encoding="utf-8")))


def test_every_variable_that_the_source_names_is_declared() -> None:
    assert variables_read() == VARIABLES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_a_page_speaks_of_variables_that_exist_and_its_links_lead_somewhere(page: Path) -> None:
    assert set(_VARIABLE.findall(page.read_text(encoding="utf-8"))) <= variables_read() | variables_of_smoke()
    assert list(broken_links(page, HOME)) == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "beyond.md").touch()
    page = tmp_path / "house" / "page.md"
    page.parent.mkdir()
    page.write_text(
        "# A head, here\n[good](#a-head-here) [web](https://example.com/x) `[code](no.md)`\n"
        "[gone](gone.md) [nowhere](#there)\n```\n[block](no.md)\n# not a head\n```\n"
        "[late](#not-a-head) [out](../beyond.md)\n"
    )
    assert list(broken_links(page, page.parent)) == ["gone.md", "#there", "#not-a-head", "../beyond.md"]


def test_every_decision_is_listed_once_in_order() -> None:
    rows = _DECISION_ROW.findall((DECISIONS / "README.md").read_text(encoding="utf-8"))
    records = sorted(path for path in DECISIONS.glob("*.md") if path.name != "README.md")
    assert [name for _, name in rows] == [record.name for record in records]
    for (number, name), record in zip(rows, records, strict=True):
        assert name.startswith(number)
        assert record.read_text(encoding="utf-8").startswith(f"# {number}: ")


def test_the_older_form_of_a_failure_is_told_with_what_it_needs() -> None:
    page = (DOCS / "guides" / "platform-services.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if "`FAILED`" in line)
    assert "`failure_class` `RETRYABLE` or `NON_RETRYABLE`" in row


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_first_key_of_a_page_may_look_at_jobs(page: Path) -> None:
    joined = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in joined.splitlines():
        if "keys create" in line and "--role admin" in line:
            assert "--role read" in line, line


def test_no_page_says_that_the_api_in_a_browser_needs_the_internet() -> None:
    page = (DOCS / "guides" / "embedded.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.splitlines() if "`/docs`" in line)
    assert "without the internet" in line
