"""Builds the documentation as a site that a running Lucius serves at /docs/guide, without the internet.

In: docs, and what its pages link to beside it. Out: the site below build/guide, and packed as
src/lucius/console/guide.zip, with the Markdown of each page beside it and llms.txt, which lists them.
Anything that the generator warns of ends the build.

Usage: python tools/guide.py [--to FILE] [--work FOLDER]
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

HOME = Path(__file__).parents[1]
DOCS = HOME / "docs"
OUTSIDE = "files"  # where what lies outside of docs is copied to
PACKED = HOME / "src/lucius/console/guide.zip"
SUMMARY = "Durable jobs of several steps on slow, unreliable workers in any language: a control plane."
# The time in an archive is that of no build: the same pages make the same file.
EPOCH = (2026, 1, 1, 0, 0, 0)

LINK = re.compile(r"(!?\[[^\]\n]*\])\(([^)\s#:]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\)(?:: *(.*))?$", re.MULTILINE)
SECTION = re.compile(r"^## ([^\n:]+)[^\n]*\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)

CONFIG = """
[project]
site_name = "Lucius"
site_description = {summary}
use_directory_urls = false
nav = {nav}

[project.theme]
language = "en"
font = false
features = [
  "content.code.copy", "navigation.footer", "navigation.indexes", "navigation.path", "navigation.sections",
  "navigation.top", "search.highlight", "toc.follow",
]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Dark"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Light"
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=Path, default=PACKED)
    parser.add_argument("--work", type=Path, default=HOME / "build" / "guide")
    wanted = parser.parse_args()
    work = wanted.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    pages = sources(work / "docs")
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    nav = json.dumps(navigation(index), ensure_ascii=False).replace('":', '" =')
    config = CONFIG.format(summary=json.dumps(SUMMARY), nav=nav)
    (work / "zensical.toml").write_text(config, encoding="utf-8")
    build(work)
    site = work / "site"
    for page in pages:
        target = site / page
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(work / "docs" / page, target)
    (site / "llms.txt").write_text(llms(index, pages, work / "docs"), encoding="utf-8")
    pack(site, wanted.to.resolve())


def sources(target: Path) -> list[str]:
    """A copy of docs in which every link stays inside; the pages."""
    shutil.copytree(DOCS, target)
    pages = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
    for page in pages:
        path = target / page
        path.write_text(inside(path.read_text(encoding="utf-8"), DOCS / page, target), encoding="utf-8")
    return pages


def inside(text: str, page: Path, target: Path) -> str:
    """The page with links that lead out of docs turned to copies."""
    up = "../" * len(page.relative_to(DOCS).parent.parts)

    def turned(found: re.Match[str]) -> str:
        words, link, anchor = found.groups()
        place = (page.parent / link).resolve()
        if place.is_dir() and not (place / "README.md").is_file():
            return words[1:-1]  # a folder is only named: a site has no page for it
        if place.is_relative_to(DOCS) or not place.is_relative_to(HOME):
            return found.group()
        name = f"{OUTSIDE}/{place.relative_to(HOME)}"
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        # A page of the repository is shown as text: its own links lead elsewhere.
        copy = copy.with_suffix(".md.txt") if copy.suffix == ".md" else copy
        shutil.copy(place, copy)
        return f"{words}({up}{copy.relative_to(target)}{anchor or ''})"

    parts, at = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(turned, text[at : fence.start()]), fence.group()]
        at = fence.end()
    return "".join([*parts, LINK.sub(turned, text[at:])])


def navigation(index: str) -> list[dict[str, object]]:
    """The sections of docs/README.md, each with its pages."""
    nav: list[dict[str, object]] = [{"Lucius": "README.md"}]
    for title, body in SECTION.findall(index):
        pages = [{name: link} for name, link, _ in ENTRY.findall(body) if link.endswith(".md")]
        nav.append({title.strip(): pages})
    return nav


def build(work: Path) -> None:
    program = Path(sys.executable).with_name("zensical")
    line = [str(program), "build", "--clean", "--strict"]
    done = subprocess.run(line, cwd=work, capture_output=True, text=True)  # noqa: S603 - ours
    told = done.stdout + done.stderr
    if done.returncode or "No issues found" not in told:
        sys.exit(f"error: the site was not built without warnings\n{told}")


def llms(index: str, pages: list[str], folder: Path) -> str:
    """What a program reads first: every page as Markdown, by section, then the rest."""
    lines, listed = ["# Lucius", "", f"> {SUMMARY}", ""], {"README.md"}
    for title, body in SECTION.findall(index):
        lines += [f"## {title.strip()}", ""]
        for name, link, said in ENTRY.findall(body):
            if not Path(link).suffix:
                continue
            lines.append(f"- [{name}]({link})" + (": " + LINK.sub(r"\1", said) if said else ""))
            listed.add(link)
        lines.append("")
    lines += ["## Optional", ""]
    lines += [f"- [{heading(folder / page)}]({page})" for page in pages if page not in listed]
    return "\n".join(lines) + "\n"


def heading(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def pack(site: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_suffix(".draft")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(site.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(str(path.relative_to(site)), EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
    draft.replace(target)


if __name__ == "__main__":
    main()
