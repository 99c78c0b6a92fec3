"""The console where something is missing or wrong: it says what, and what to do about it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.journeys.browser import REBOUND, Page, browser
from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller

from lucius_lab import forks

pytestmark = pytest.mark.xdist_group("browser")

SHOWN = "location.hash.startsWith('#/jobs/') && location.hash.slice('#/jobs/'.length)"
TROUBLE = "document.getElementById('trouble').innerText"
CALM = "document.getElementById('trouble').hidden"


def key_of(lucius: "Lucius", name: str, *roles: str) -> str:
    words = [word for role in roles for word in ("--role", role)]
    made = forks.run("keys", "create", name, "--tenant", "*", *words, "--data", str(lucius.data))
    return made.stdout.strip()


async def use(page: "Page", key: str) -> None:
    await page.value(f"document.getElementById('key').value = {json.dumps(key)}")
    await page.press("Use")


async def write(page: "Page", text: str) -> None:
    """Into the form, as somebody at a keyboard does."""
    area = "document.querySelector('textarea')"
    await page.until(f"!!{area}")
    await page.value(f"{area}.value = {json.dumps(text)}")
    await page.value(f"{area}.dispatchEvent(new Event('input'))")


async def test_the_page_says_which_key_is_missing(page: "Page", launch: "Launch") -> None:
    lucius = launch(env={"LUCIUS_AUTH": "required"})
    reader, submitter = key_of(lucius, "reader", "read"), key_of(lucius, "submitter", "submit")
    admin = key_of(lucius, "admin", "admin")
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
    # What was written stays while a key is looked for; and whoever may submit need not see the protocols.
    await page.go(f"{lucius.url}/#/submit")
    await write(page, '{"tenant_id": "mine"}')
    await page.press("Submit")
    await page.sees("The key in use does not open this: this needs the role submit")
    await use(page, submitter)
    await page.until(CALM)
    assert await page.value("document.querySelector('textarea').value") == '{"tenant_id": "mine"}'
    await page.press("Submit")
    await page.sees("/schema_version: is required")
    words = await page.value("document.documentElement.outerHTML")
    assert not [key for key in (reader, submitter, admin) if key in words]
    assert page.faults == []


async def test_the_example_is_one_that_lucius_takes(page: "Page", shared: "Lucius", caller: "Caller") -> None:
    await page.go(f"{shared.url}/#/submit")
    await page.press("Submit")
    job_id = await page.until(SHOWN)
    assert (await caller.job(job_id))["request_type"] == "OCR_EMBEDDING_SIS"
    await caller.control(job_id, "cancel")
    assert page.faults == []


async def test_the_request_type_is_that_of_the_command(page: "Page", shared: "Lucius") -> None:
    kind = "document.querySelector('input[list]')"
    await page.go(f"{shared.url}/#/submit")
    await page.until(f"{kind}?.value === 'OCR_EMBEDDING_SIS'")
    await page.value(f"{kind}.value = 'OCR'; {kind}.dispatchEvent(new Event('change'))")
    command = json.loads(await page.value("document.querySelector('textarea').value"))
    assert (command["request_type"], command["schema_version"]) == ("OCR", "1")
    await page.value("location.hash = '#/failed'")
    await page.sees("failed for good")
    await page.value("location.hash = '#/submit'")
    await page.until(f"{kind}?.value === 'OCR'")
    await write(page, json.dumps({**command, "request_type": "SIS"}))
    assert await page.value(f"{kind}.value") == "SIS"
    assert page.faults == []


async def test_a_refusal_is_said_once_and_goes_when_its_cause_is_gone(page: "Page", shared: "Lucius") -> None:
    await page.go(f"{shared.url}/#/submit")
    await page.until("!!document.querySelector('textarea')")
    example = await page.value("document.querySelector('textarea').value")
    await write(page, json.dumps({**json.loads(example), "tenant_id": 5}))
    await page.press("Submit")
    said = await page.until(TROUBLE)
    assert said.count("/tenant_id") == 1
    await write(page, example)
    await page.press("Plan")
    await page.sees('"protocol_id"')
    assert await page.value(CALM) is True


@pytest.mark.parametrize(
    ("place", "words"),
    [("#/jobs/%zz", "names no job"), ("#/jobs/%", "names no job"), ("#/nowhere", "leads nowhere")],
)
async def test_an_address_that_is_none(page: "Page", shared: "Lucius", place: str, words: str) -> None:
    await page.go(f"{shared.url}/{place}")
    await page.sees(words)
    await page.value("location.hash = '#/submit'")
    await page.sees("Submit a command")
    assert page.faults == []


async def test_a_page_under_a_name_that_leads_here_reads_nothing(
    tmp_path: Path, launch: "Launch", caller_at: Callable[["Lucius"], "Caller"]
) -> None:
    lucius = launch()
    job_id = await caller_at(lucius).submit()
    port = lucius.url.rpartition(":")[2]
    rebound = f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"
    async with browser(tmp_path / "browser", rebound) as page:
        await page.go(f"http://{REBOUND}:{port}/")
        await page.sees("set LUCIUS_PUBLIC_URL")
        assert job_id not in await page.value("document.body.innerText")
        await page.go(f"http://lucius.localhost:{port}/")
        await page.sees(job_id)
