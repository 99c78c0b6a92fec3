"""The files of the console: all there, nothing beside them, nothing from elsewhere, and not many bytes."""

import re
import subprocess
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path

import httpx2
import pytest
from starlette.responses import PlainTextResponse

from lucius.console import ConsoleApp

SIZE_MAX = 250_000


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    app = ConsoleApp(PlainTextResponse("not a page", status_code=404))
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app=app), base_url="http://lucius"
    ) as client:
        yield client


async def test_every_file_that_is_named_is_there(http: httpx2.AsyncClient) -> None:
    seen, open_paths, size = set[str](), {"/"}, 0
    while open_paths:
        path = open_paths.pop()
        answer = await http.get(path)
        assert answer.status_code == 200, path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        seen.add(path)
        size += len(answer.content)
        open_paths |= set(re.findall(r"""["'](/console/[^"']+)["']""", answer.text)) - seen
        if not path.endswith(".svg"):
            own = answer.text.replace("https://example.com/", "").replace("http://www.w3.org/2000/svg", "")
            assert "://" not in own, path
    assert size <= SIZE_MAX
    names = {entry.name for entry in (files("lucius.console") / "static").iterdir()}
    assert seen == {"/", *(f"/console/{name}" for name in names - {"index.html"})}


async def test_all_else_is_for_the_api(http: httpx2.AsyncClient) -> None:
    for path in (
        "/console/",
        "/console/none.js",
        "/console/../page.py",
        "/console/%2e%2e/page.py",
        "/v1/jobs",
    ):
        assert (await http.get(path)).text == "not a page", path
    assert (await http.post("/")).text == "not a page"


async def test_heads_are_those_of_the_files(http: httpx2.AsyncClient) -> None:
    whole, head = await http.get("/"), await http.head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers == whole.headers


# Ten pages of which a filter leaves nothing over.
_READ_MANY = """
let asked = 0;
globalThis.sessionStorage = { getItem: () => null };
globalThis.fetch = async () => ({
  ok: true, text: async () => JSON.stringify({ items: [], next_cursor: ++asked < 10 ? "on" : null }),
});
const { many } = await import(process.argv[1]);
const { more } = await many("/v1/jobs", { state: "CANCELLED" }, 50, Number(process.argv[2]));
console.log(asked, more);
"""


@pytest.mark.parametrize(("pages_max", "seen"), [(1, "1 true"), (3, "3 true"), (20, "10 false")])
def test_no_refresh_walks_through_all_jobs_for_what_a_filter_leaves(pages_max: int, seen: str) -> None:
    module = str(files("lucius.console") / "static" / "api.js")
    done = subprocess.run(
        ["node", "--no-warnings", "--input-type=module", "-e", _READ_MANY, module, str(pages_max)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (seen, "")


def test_every_command_that_is_taught_exists() -> None:
    manual = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()
    known = set(re.findall(r"^##+ `lucius ([a-z ]+)`$", manual, re.MULTILINE))
    found = set[str]()
    for entry in (files("lucius.console") / "static").iterdir():
        for first, second in re.findall(r"lucius ([a-z]+)( [a-z]+)?", entry.read_text()):
            found.add(first + second if first + second in known else first)
    assert len(found) > 4
    assert found <= known
