"""The console in a real browser: what somebody sees who opens the address that `lucius dev` prints."""

import json
from collections.abc import Callable

import pytest
from tests.journeys.browser import Page
from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller, envelope

from lucius_lab import forks

pytestmark = pytest.mark.xdist_group("browser")

STATE = "document.querySelector('h1 .state')?.innerText"
SHOWN = "location.hash.startsWith('#/jobs/') && location.hash.slice('#/jobs/'.length)"


async def test_a_command_from_the_form_to_its_result(
    page: "Page", shared: "Lucius", caller: "Caller"
) -> None:
    await page.go(f"{shared.url}/#/submit")
    command = json.dumps(envelope(request_type="OCR", tenant_id="screen"))
    await page.until("!!document.querySelector('textarea')")
    await page.value(f"document.querySelector('textarea').value = {json.dumps(command)}")
    await page.press("Plan")
    await page.sees('"protocol_id"')
    await page.press("Submit")
    job_id = await page.until(SHOWN)
    await page.sees("waiting for a worker of ocr")
    await caller.finish(job_id, "ocr")
    await page.until(f"{STATE} === 'SUCCEEDED'")
    await page.sees("JOB_SUCCEEDED")
    job = await caller.job(job_id)
    await page.sees(job["final_output"])
    await page.go(f"{shared.url}/#/?tenant_id=screen&state=SUCCEEDED")
    await page.sees(job_id)
    await page.sees("ready")
    assert page.faults == []


async def test_the_reference_of_the_api_is_drawn_under_its_own_rules(page: "Page", shared: "Lucius") -> None:
    """No rule of its Content-Security-Policy is in the way of the page itself, a call from it included."""
    await page.go(f"{shared.url}/docs")
    await page.until("document.querySelectorAll('.opblock').length > 20")
    await page.value("document.querySelector('.opblock-get button').click()")
    await page.until("!!document.querySelector('.try-out__btn')")
    drawn = "getComputedStyle(document.querySelector('.opblock-summary-method')).backgroundColor"
    assert await page.value(drawn) not in (None, "", "rgba(0, 0, 0, 0)")
    assert page.faults == []
    # A frame around it stays empty.
    await page.go(f"{shared.url}/")
    await page.value(
        f"document.body.append(Object.assign(document.createElement('iframe'), {{src: '{shared.url}/docs'}}))"
    )
    assert (
        await page.value("document.querySelector('iframe')?.contentDocument?.querySelector('#swagger-ui')")
        is None
    )


async def test_the_controls_of_a_job(page: "Page", shared: "Lucius", caller: "Caller") -> None:
    job_id = await caller.submit(request_type="SIS")
    await page.go(f"{shared.url}/#/jobs/{job_id}")
    await page.press("pause")
    await page.until(f"{STATE} === 'PAUSED'")
    await page.press("resume")
    await page.until(f"{STATE} === 'DISPATCHING'")
    await page.press("cancel")
    await page.until(f"{STATE} === 'CANCELLED'")
    await page.press("rerun")
    again = await page.until(f"({SHOWN}) !== '{job_id}' && {SHOWN}")
    assert (await caller.job(again))["rerun_of"] == job_id
    await page.sees("Rerun of")
    numbers = await page.value(
        "[...document.querySelectorAll('td:first-child')].map((each) => each.innerText)"
    )
    assert len(set(numbers)) == len(numbers)
    await caller.finish(again, "sis")
    assert page.faults == []


async def test_what_a_tenant_writes_stays_text(page: "Page", shared: "Lucius", caller: "Caller") -> None:
    markup = "<img id=evil src=x onerror=alert(1)>"
    job_id = await caller.submit(request_type="EMBEDDING", tenant_id=markup)
    for place in ("", f"jobs/{job_id}"):
        await page.go(f"{shared.url}/#/{place}")
        await page.sees(markup)
        assert await page.value("document.getElementById('evil') === null") is True
    await caller.finish(job_id, "embedding")
    assert page.faults == []


async def test_with_a_key_and_a_job_that_failed_for_good(
    page: "Page", launch: "Launch", caller_at: Callable[["Lucius"], "Caller"]
) -> None:
    lucius = launch(env={"LUCIUS_AUTH": "required"})
    roles = [word for role in ("admin", "submit", "read", "work") for word in ("--role", role)]
    made = forks.run(
        "keys", "create", "root", "--tenant", "*", *roles, "--service", "*", "--data", str(lucius.data)
    )
    key = made.stdout.strip()
    caller = caller_at(lucius)
    caller.http.headers["Authorization"] = f"Bearer {key}"
    job_id = await caller.submit(request_type="OCR")
    directive = await caller.directive(job_id, "ocr")
    error = {"code": "BAD_PDF", "message": "no pages"}
    await caller.reply(directive, "RESULT", status="FAILED_FINAL", error=error)
    await page.go(f"{lucius.url}/#/failed")
    await page.sees("Lucius asks for an API key")
    assert job_id not in await page.value("document.body.innerText")
    await page.value(f"document.getElementById('key').value = '{key}'")
    await page.press("Use")
    await page.sees(job_id)
    assert key not in await page.value("document.documentElement.outerHTML")
    await page.press("Redrive")
    again = await page.until(SHOWN)
    assert again != job_id
    await page.sees("waiting for a worker of ocr")
