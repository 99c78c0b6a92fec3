"""The console where something is missing or wrong: it says what, and what to do about it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lucius.lab import forks

if TYPE_CHECKING:
    from tests.journeys.browser import REBOUND, Page, browser
    from tests.journeys.conftest import Launch
    from tests.journeys.harness import Lucius
    from tests.rooms.api.api_desk import Desk
else:
    from browser import REBOUND, browser

pytestmark = pytest.mark.xdist_group("browser")

CALM = "document.getElementById('trouble').hidden"


def key_of(lucius: "Lucius", name: str, *roles: str) -> str:
    words = [word for role in roles for word in ("--role", role)]
    made = forks.run("keys", "create", name, "--tenant", "*", *words, "--data", str(lucius.data))
    return made.stdout.strip()


async def use(page: "Page", key: str) -> None:
    await page.value(f"document.getElementById('key').value = {json.dumps(key)}")
    await page.press("Use")


async def test_the_page_says_which_key_is_missing(page: "Page", launch: "Launch") -> None:
    lucius = launch(env={"LUCIUS_AUTH": "required"})
    reader, admin = key_of(lucius, "reader", "read"), key_of(lucius, "admin", "admin")
    await page.go(f"{lucius.url}/#/failed")
    await page.sees("Lucius asks for an API key, one with the role admin")
    await page.press("Type in a key")
    assert await page.value("document.activeElement.id") == "key"
    await use(page, reader)
    await page.sees("The key in use does not open this: this needs the role admin")
    await use(page, "lk_0000_none")
    await page.sees("The key in use opens nothing: the API key is not known or was revoked")
    await use(page, "lk_…")
    await page.sees("This is no key")
    await use(page, admin)
    await page.sees("None.")
    assert await page.value(CALM) is True
    words = await page.value("document.documentElement.outerHTML")
    assert not [key for key in (reader, admin) if key in words]
    assert page.faults == []


async def test_a_page_under_a_name_that_leads_here_reads_nothing(
    tmp_path: Path, launch: "Launch", desk_at: Callable[["Lucius"], "Desk"]
) -> None:
    lucius = launch()
    job_id = await desk_at(lucius).submit()
    port = lucius.url.rpartition(":")[2]
    rebound = f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"
    async with browser(tmp_path / "browser", rebound) as page:
        await page.go(f"http://{REBOUND}:{port}/")
        await page.sees("set LUCIUS_PUBLIC_URL")
        assert job_id not in await page.value("document.body.innerText")
        await page.go(f"http://lucius.localhost:{port}/")
        await page.sees(job_id)
