"""The console where something is missing or wrong: it says what, and what to do about it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.journeys.browser import REBOUND, Page, browser
from tests.journeys.conftest import Launch
from tests.journeys.console_checks import SHOWN, STATE, opened
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller, envelope

from lucius_lab import forks

pytestmark = pytest.mark.xdist_group("browser")

# No payload follows from it.
CODED = """
protocol_id: coded_v1
request_types: [CODED]
steps:
  - step_type: CODE
    service: coder
    payload_schema:
      type: object
      required: [code]
      properties: {code: {type: string, pattern: "^[0-9]-[A-Z]$"}}
"""
TROUBLE = "document.querySelector('#view .columns .notice')"


def key_of(lucius: "Lucius", name: str, *roles: str) -> str:
    words = [word for role in roles for word in ("--role", role)]
    made = forks.run("keys", "create", name, "--tenant", "*", *words, "--data", str(lucius.data))
    return made.stdout.strip()


async def log_in(page: "Page", key: str) -> None:
    await page.fill("API key", key)
    await page.press("Log in")


async def test_the_page_says_which_key_is_missing(page: "Page", launch: "Launch") -> None:
    lucius = launch(env={"LUCIUS_AUTH": "required"})
    reader, submitter = key_of(lucius, "reader", "read"), key_of(lucius, "submitter", "submit")
    admin = key_of(lucius, "admin", "admin")
    await page.go(f"{lucius.url}/#/failed")
    await page.sees("needs the role admin")
    await log_in(page, reader)
    await page.sees("This page needs the role admin")
    await page.sees("lucius keys create NAME --role admin")
    # What a reader may not open is not among the pages.
    assert await page.value("[...document.querySelectorAll('.nav a')].map((each) => each.innerText)") == [
        *("Overview", "Jobs", "Schedules", "Services", "Lanes", "Tenants", "Protocols"),
        "API reference",
    ]
    await page.press("Log in with another key")
    await log_in(page, "lk_0000_none")
    await page.sees("The key in use opens nothing: the API key is not known or was revoked")
    await log_in(page, "lk_…")
    await page.sees("This is no key")
    await log_in(page, admin)
    await page.sees("No job has failed for good")
    # What was written stays while a key is looked for; and a key that may submit need not see the protocols.
    await page.go(f"{lucius.url}/#/jobs")
    await page.sees("This page needs the role read")
    await page.press("Log out")
    # A key that may only submit writes the envelope itself.
    await page.go(f"{lucius.url}/#/playground")
    await log_in(page, submitter)
    await page.fill("Envelope", '{"tenant_id": "mine"}')
    await page.sees("/schema_version is required")
    await page.press("Submit")
    await page.sees("/schema_version: is required")
    await page.press("Log out")
    await log_in(page, submitter)
    await page.until("document.querySelector('#envelope')?.value === '{\"tenant_id\": \"mine\"}'")
    words = await page.value("document.documentElement.outerHTML")
    assert not [key for key in (reader, submitter, admin) if key in words]
    assert page.faults == []


async def test_what_is_wrong_is_said_as_it_is_written(page: "Page", shared: "Lucius") -> None:
    await opened(page, f"{shared.url}/#/playground")
    await page.press("JSON")
    good = json.dumps(envelope())
    for written, said in (
        (json.dumps({**json.loads(good), "tenant_id": 5}), "/tenant_id must be"),
        ("{", "The command is not JSON"),
    ):
        await page.fill("Envelope", written)
        await page.sees(said)
        assert (await page.value("document.body.innerText")).count(said) == 1
    await page.press("Form")  # what is no JSON cannot be taken into the form, and is not lost
    assert await page.value("document.querySelector('#envelope').value") == "{"
    await page.fill("Envelope", good)
    await page.sees("Would be accepted")
    assert await page.value(f"{TROUBLE} === null") is True
    await page.press("Form")
    await page.until("document.querySelector('select').value === 'OCR'")


async def test_the_payload_of_one_request_type_is_not_sent_with_another(
    page: "Page", shared: "Lucius"
) -> None:
    await opened(page, f"{shared.url}/#/playground?type=SIS")
    await page.fill("prompt", "What is it about?")
    await page.fill("Request type", "OCR")
    await page.until("document.querySelectorAll('.part').length === 2")
    await page.press("JSON")
    text = "document.querySelector('#envelope').value"
    command = json.loads(await page.until(f"{text}.includes('OCR') && {text}"))
    assert (command["request_type"], "prompt" in command["payload"]) == ("OCR", False)
    await page.press("Form")
    await page.fill("Request type", "SIS")
    await page.until("document.querySelector('.part textarea')?.value === 'What is it about?'")
    assert page.faults == []


async def test_every_example_works_here(page: "Page", launch: "Launch") -> None:
    """From the form, as it is filled in, to a finished job."""
    lucius = launch("--services", "all")
    await opened(page, f"{lucius.url}/#/playground")
    types = await page.until("[...document.querySelector('select').options].map((each) => each.value)")
    assert len(types) > 3
    for request_type in types:
        await opened(page, f"{lucius.url}/#/playground?type={request_type}")
        await page.sees("The example reads a sample document of this installation")
        await page.sees("Would be accepted")
        await page.press("Submit")
        await page.until(SHOWN)
        await page.until(f"{STATE} === 'SUCCEEDED'")
    assert page.faults == []


async def test_a_job_that_succeeded_is_the_example_where_schemas_give_none(
    tmp_path: Path, page: "Page", launch: "Launch", caller_at: Callable[["Lucius"], "Caller"]
) -> None:
    folder = tmp_path / "protocols"
    folder.mkdir()
    (folder / "coded.yaml").write_text(CODED)
    lucius = launch("--protocols", str(folder))
    caller = caller_at(lucius)
    job_id = await caller.submit(request_type="CODED", tenant_id="exemplary", payload={"code": "7-Q"})
    await caller.finish(job_id, "coder")
    await opened(page, f"{lucius.url}/#/playground?type=CODED")
    await page.sees(job_id)
    await page.sees("Would be accepted")
    await page.press("Submit")
    again = await page.until(f"({SHOWN}) !== '{job_id}' && {SHOWN}")
    first, second = await caller.job(job_id), await caller.job(again)
    assert [job["steps"][0]["payload"] for job in (first, second)] == [{"code": "7-Q"}] * 2
    assert second["steps"][0]["input_ref"] == first["steps"][0]["input_ref"]
    assert page.faults == []


async def test_a_page_that_lost_its_server_keeps_what_it_shows(
    page: "Page", launch: "Launch", caller_at: Callable[["Lucius"], "Caller"]
) -> None:
    lucius = launch()
    job_id = await caller_at(lucius).submit()
    await opened(page, f"{lucius.url}/#/jobs")
    await page.sees(job_id)
    lucius.kill()
    await page.sees("Lucius does not answer")
    await page.sees("Not reachable")
    await page.sees(job_id)
    lucius.start()
    await page.until("document.querySelector('#view .notice').hidden")
    await page.until("document.querySelector('.health').innerText === 'Ready'")


async def test_a_page_of_which_a_file_did_not_come_comes_again_by_itself(
    page: "Page", shared: "Lucius"
) -> None:
    await page.ask("Network.setBlockedURLs", urls=["*/console/charts.js"])
    await page.go(f"{shared.url}/#/jobs")
    await page.sees("The page could not be loaded")
    await page.ask("Network.setBlockedURLs", urls=[])
    await page.sees("Request type")


@pytest.mark.parametrize(
    ("place", "words"),
    [("#/jobs/%zz", "names no job"), ("#/jobs/%", "names no job"), ("#/nowhere", "leads nowhere")],
)
async def test_an_address_that_is_none(page: "Page", shared: "Lucius", place: str, words: str) -> None:
    await page.go(f"{shared.url}/{place}")
    await page.sees(words)
    await page.value("location.hash = '#/playground'")
    await page.sees("What would become of it")
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
        await page.go(f"http://lucius.localhost:{port}/#/jobs")
        await page.sees(job_id)
