"""The console in a real browser: what a person sees who opens the address that `lucius dev` prints."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from tests.journeys.browser import Page
from tests.journeys.conftest import Launch
from tests.journeys.console_checks import DIALOG, READY, SHOWN, STATE, opened
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller, envelope

from lucius_lab import forks

pytestmark = pytest.mark.xdist_group("browser")


async def test_a_command_from_the_playground_to_its_result(
    page: "Page", shared: "Lucius", caller: "Caller"
) -> None:
    command = envelope()
    await page.go(f"{shared.url}/#/playground")
    await page.until("document.querySelectorAll('.part').length === 4")
    await page.fill("Request type", "OCR")
    await page.until("document.querySelectorAll('.part').length === 2")
    await page.fill("Tenant", "")
    await page.until("document.querySelector('.field .problem').innerText !== ''")
    await page.sees("Would be refused")
    await page.fill("Tenant", "screen")
    await page.fill("Input", command["input_ref"]["uri"])
    await page.fill("Output", command["output_ref"]["uri"])
    await page.fill("dpi", "7")
    await page.sees("Would be refused")
    await page.until(
        "document.querySelector('.part .problem').parentElement.parentElement.innerText.includes('36')"
    )
    await page.fill("dpi", "300")
    await page.sees("Would be accepted")
    await page.press("Submit")
    job_id = await page.until(SHOWN)
    await page.sees("aiting for a worker of ocr")
    await caller.finish(job_id, "ocr")
    await page.until(f"{STATE} === 'SUCCEEDED'")
    await page.sees("Job succeeded")
    await page.until("document.title.startsWith('✓')")
    job = await caller.job(job_id)
    assert job["steps"][0]["payload"] == {"language": "en", "dpi": 300}
    await page.sees(job["final_output"])
    await page.go(f"{shared.url}/#/jobs?tenant_id=screen&state=SUCCEEDED")
    await page.sees(job_id)
    await page.sees("Ready")
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
    await page.until("!!document.body")
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
    await page.press("Pause")
    await page.press("Leave it", DIALOG)
    await page.until(f"!{DIALOG}")
    assert await caller.state(job_id) == "DISPATCHING"
    await page.press("Pause")
    await page.press("Pause", DIALOG)
    await page.until(f"{STATE} === 'PAUSED'")
    await page.press("Resume")
    await page.until(f"{STATE} === 'DISPATCHING'")
    await page.press("Cancel")
    await page.press("Cancel", DIALOG)
    await page.until(f"{STATE} === 'CANCELLED'")
    await page.press("Run again")
    await page.press("Run again", DIALOG)
    again = await page.until(f"({SHOWN}) !== '{job_id}' && {SHOWN}")
    assert (await caller.job(again))["rerun_of"] == job_id
    await page.sees("Run again from")
    numbers = await page.value("[...document.querySelectorAll('.events li')].map((each) => each.dataset.key)")
    assert len(set(numbers)) == len(numbers)
    await caller.finish(again, "sis")
    await page.until(f"{STATE} === 'SUCCEEDED'")
    assert page.faults == []


async def test_a_job_page_asks_once_for_what_happened(
    page: "Page", shared: "Lucius", caller: "Caller"
) -> None:
    """It listens to the stream, and reads the job only after events."""
    job_id = await caller.submit(request_type="SIS")
    await opened(page, f"{shared.url}/#/jobs/{job_id}")
    await page.until("document.querySelector('.live')?.innerText === 'Live'")
    directive = await caller.directive(job_id, "sis")
    await caller.reply(directive, "PROGRESS", progress=40)
    await page.sees("40 %")
    # The health of the process is asked for in time: as long as it takes to be asked again, nothing else is.
    asked, health = len(page.requests), sum("/readyz" in url for url in page.requests)
    while sum("/readyz" in url for url in page.requests) < health + 1:
        await page.value("1")
    assert [url for url in page.requests[asked:] if f"/v1/jobs/{job_id}" in url] == []
    reads = [url for url in page.requests if url.endswith(f"/v1/jobs/{job_id}")]
    assert len(reads) <= 4, page.requests
    await caller.reply(directive, "RESULT", status="SUCCEEDED")
    await page.until(f"{STATE} === 'SUCCEEDED'")
    await page.until("document.querySelector('.live')?.innerText === 'Ended'")
    assert page.faults == []


async def test_what_a_tenant_writes_stays_text(page: "Page", shared: "Lucius", caller: "Caller") -> None:
    markup = "<img id=evil src=x onerror=alert(1)>"
    job_id = await caller.submit(
        request_type="EMBEDDING",
        tenant_id=markup,
        doc_id=markup,
        correlation_id=markup,
        idempotency_key=markup,
    )
    for place in ("", "jobs", f"jobs/{job_id}", f"jobs?tenant_id={markup}"):
        await opened(page, f"{shared.url}/#/{place}")
        await page.until(
            f"document.body.innerText.includes({json.dumps(markup)}) || {json.dumps(place)} === ''"
        )
        assert await page.value("document.getElementById('evil') === null") is True
    directive = await caller.directive(job_id, "embedding")
    await page.go(f"{shared.url}/#/jobs/{job_id}")
    await caller.reply(directive, "PROGRESS", progress=5, note=markup)
    error = {"code": markup, "message": markup}
    await caller.reply(directive, "RESULT", status="FAILED_FINAL", error=error)
    await page.until(f"{STATE} === 'FAILED_FINAL'")
    for place in (f"jobs/{job_id}", "failed"):
        await opened(page, f"{shared.url}/#/{place}")
        await page.sees(markup)
        assert await page.value("document.getElementById('evil') === null") is True
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
    await page.sees("needs the role admin")
    assert job_id not in await page.value("document.body.innerText")
    await page.fill("API key", key)
    await page.press("Log in")
    await page.sees(job_id)
    await page.sees("no pages")
    assert key not in await page.value("document.documentElement.outerHTML")
    await page.press("Run again")
    await page.press("Run again", DIALOG)
    again = await page.until(SHOWN)
    assert again != job_id
    await page.sees("aiting for a worker of ocr")
    # Without the role `control`, the page offers no control.
    assert await page.value("document.querySelector('.head').innerText.includes('Cancel')") is False
    await page.press("Log out")
    await page.sees("This installation asks who is there")
    assert again not in await page.value("document.querySelector('#view').innerText")


async def test_an_open_installation_has_no_box_for_a_key(page: "Page", shared: "Lucius") -> None:
    await opened(page, f"{shared.url}/#/jobs")
    assert await page.value("document.querySelectorAll('input[type=password]').length") == 0


async def test_the_overview_says_what_needs_attention(
    page: "Page", shared: "Lucius", caller: "Caller"
) -> None:
    job_id = await caller.submit(request_type="SIS", tenant_id="overseen")
    await caller.finish(job_id, "sis")
    await opened(page, f"{shared.url}/")
    await page.sees("What needs you")
    await page.until("document.querySelectorAll('.lane').length === 16")
    await page.until("!!document.querySelector('.bar.ok')")
    await page.press("24 h")
    await page.until("location.hash === '#/?window=24h'")
    await page.until("document.querySelector('[aria-pressed=true][data-key=\"24h\"]') !== null")
    assert page.faults == []


async def test_themes_and_the_keyboard(page: "Page", shared: "Lucius") -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    await page.scheme("light")
    await opened(page, f"{shared.url}/")
    light = await page.value(background)
    await page.scheme("dark")
    dark = await page.until(f"{background} !== {json.dumps(light)} && {background}")
    await page.press("Light")
    assert await page.value(background) == light
    await opened(page, f"{shared.url}/#/jobs")  # it is kept
    assert await page.value(background) == light
    await page.press("Dark")
    assert await page.value(background) == dark
    await page.press("As the system")
    await page.scheme("light")
    await page.until(f"{background} === {json.dumps(light)}")

    current = "document.querySelector('[aria-current=page]')?.innerText"
    for key, words, title in (
        ("f", "Failed jobs", "Failed jobs · Lucius"),
        ("o", "Overview", "Lucius"),
        ("j", "Jobs", "Jobs · Lucius"),
    ):
        await page.key("g")
        await page.key(key)
        await page.until(f"{current} === '{words}'")
        assert await page.value("document.title") == title
    await page.until(READY)
    await page.until("document.querySelectorAll('[data-row]').length > 1")
    rows = "[...document.querySelectorAll('[data-row]')].findIndex((row) => row.matches(':focus-within'))"
    for key, at in (("j", 0), ("j", 1), ("k", 0)):
        await page.key(key)
        assert await page.value(rows) == at
    await page.key("?")
    await page.sees("Keys of the keyboard")
    await page.key("Escape")
    await page.until(f"!{DIALOG}")
    await page.key("/")
    await page.type("job_01m7s63qt0kfaw1j0at4rebfgq")
    await page.key("Enter")
    await page.until("location.hash === '#/jobs/job_01m7s63qt0kfaw1j0at4rebfgq'")
    await page.until("!!document.querySelector('.notice:not([hidden])')")
    assert page.faults == []


async def test_jobs_are_searched_filtered_and_followed(
    page: "Page", shared: "Lucius", caller: "Caller"
) -> None:
    first = await caller.submit(request_type="SIS", tenant_id="seekers", doc_id="letter-of-1871")
    second = await caller.submit(request_type="OCR", tenant_id="seekers", correlation_id="case-77")
    rows = "[...document.querySelectorAll('[data-row]')].map((row) => row.dataset.key).join()"
    await opened(page, f"{shared.url}/#/jobs?tenant_id=seekers")
    await page.until(f"{rows} === '{second},{first}'")
    for words, found in (("letter-of", first), ("case-77", second), (second[-8:], second)):
        await page.fill("Search", words)
        await page.until(f"{rows} === '{found}'")
        assert f"q={words}" in await page.value("location.hash")
    await page.press("Clear")
    await page.until("document.querySelector('[name=q]').value === ''")
    await page.fill("Tenant", "seekers")
    await page.fill("Service", "sis")
    await page.fill("State", "DISPATCHING")
    await page.until(f"{rows} === '{first}'")
    # What no index serves is refused with a word on what to do, and the filters stay at hand.
    await page.fill("Service", "")
    await page.fill("Error code", "BAD_PDF")
    await page.sees("leave out the other states")
    await page.fill("Error code", "")
    await page.until(f"{rows} === '{second},{first}'")
    # A job that is made or ends elsewhere is seen at once: the stream tells of it.
    await page.until("document.querySelector('.live')?.innerText === 'Live'")
    await caller.finish(first, "sis")
    await page.until(f"{rows} === '{second}'")
    succeeded = "document.querySelector('.strip [data-key=SUCCEEDED] a')"
    await page.click(succeeded)
    await page.until(f"{rows} === '{first}'")
    assert page.faults == []


async def test_jobs_are_sorted_and_found_between_two_times(
    page: "Page", shared: "Lucius", caller: "Caller"
) -> None:
    await page.ask("Emulation.setTimezoneOverride", timezoneId="Australia/Darwin")
    first = await caller.submit(request_type="SIS", tenant_id="sorters")
    second = await caller.submit(request_type="OCR", tenant_id="sorters")
    rows = "[...document.querySelectorAll('[data-row]')].map((row) => row.dataset.key).join()"
    await opened(page, f"{shared.url}/#/jobs?tenant_id=sorters")
    await page.until(f"{rows} === '{second},{first}'")
    head = "document.querySelector('th:has(a[title=\"Sort by {}\"])')"
    for name, order, sort in (
        ("created", f"{first},{second}", "ascending"),
        ("created", f"{second},{first}", "descending"),
        ("request type", f"{second},{first}", "ascending"),
        ("request type", f"{first},{second}", "descending"),
    ):
        await page.click(f"{head.format(name)}.querySelector('a')")
        await page.until(f"{rows} === '{order}' && {head.format(name)}.ariaSort === '{sort}'")
    assert await page.value("location.hash") == "#/jobs?tenant_id=sorters&sort=-type"
    # Between two times, which are those of the page's zone; the address says them in UTC.
    await page.fill("Created", "between")
    now = await page.value("Date.now()")
    for label, minutes, found in (
        ("Created from", -5, f"{first},{second}"),
        ("Created until", -4, ""),
        ("Created until", 5, f"{first},{second}"),
    ):
        at = datetime.fromtimestamp(now / 1000 + 60 * minutes, ZoneInfo("Australia/Darwin"))
        await page.fill(label, f"{at:%Y-%m-%dT%H:%M}")
        await page.value("document.activeElement.blur()")
        await page.until(f"{rows} === '{found}'")
        bound = "after" if label.endswith("from") else "before"
        said = quote(f"{at.astimezone(UTC):%Y-%m-%dT%H:%M}:00.000Z", safe="")
        assert f"created_{bound}={said}" in await page.value("location.hash")
    await opened(page, f"{shared.url}/{await page.value('location.hash')}")
    await page.until(f"{rows} === '{first},{second}'")
    assert await page.value("document.querySelector('[name=created_before]').value") == f"{at:%Y-%m-%dT%H:%M}"
    await page.fill("Created", "1h")
    await page.until("!location.hash.includes('created_after')")
    await page.until(f"{rows} === '{first},{second}'")
    for job_id in (first, second):
        await caller.control(job_id, "cancel")
    assert page.faults == []


async def test_a_list_that_nothing_moves_is_not_read_again(
    page: "Page", shared: "Lucius", caller: "Caller"
) -> None:
    await caller.submit(request_type="SIS", tenant_id="stillness")
    await opened(page, f"{shared.url}/#/jobs?tenant_id=stillness")
    await page.until("document.querySelector('.live')?.innerText === 'Live'")
    reads = (
        "performance.getEntriesByType('resource').filter((each) => each.name.includes('/v1/jobs?')).length"
    )
    health = "performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/readyz')).length"
    # The first reading, and one once the stream is there.
    await page.until(f"{reads} >= 2")
    before = await page.value(health)
    await page.until(f"{health} > {before}")
    assert await page.value(reads) == 2
    await caller.submit(request_type="SIS", tenant_id="stillness")
    await page.until(f"{reads} > 2")


async def test_many_jobs_at_once_with_a_preview_and_an_undo(
    page: "Page", shared: "Lucius", caller: "Caller"
) -> None:
    jobs = [await caller.submit(request_type="SIS", tenant_id="crowd") for _ in range(3)]
    await opened(page, f"{shared.url}/#/jobs?tenant_id=crowd")
    for job_id in jobs[:2]:
        await page.click(f"document.querySelector('[aria-label=\"Choose {job_id}\"]')")
    bar = "document.querySelector('.bulk-bar')"
    await page.press("Pause", bar)
    await page.press("Leave it", DIALOG)
    await page.until(f"!{DIALOG}")
    assert [await caller.state(job_id) for job_id in jobs] == ["DISPATCHING"] * 3
    await page.press("Pause", bar)
    await page.press("Pause 2 jobs", DIALOG)
    await page.sees("2 jobs paused")
    assert [await caller.state(job_id) for job_id in jobs] == ["PAUSED", "PAUSED", "DISPATCHING"]
    await page.press("Undo")
    await page.sees("2 jobs resumed")
    assert [await caller.state(job_id) for job_id in jobs] == ["DISPATCHING"] * 3
    # All that the filters find; what would refuse is said before.
    await caller.control(jobs[0], "cancel")
    await page.press("Resume", "document.querySelector('#view .buttons.more')")
    await page.sees("nothing to do")
    await page.press("Close", DIALOG)
    await page.press("Cancel", "document.querySelector('#view .buttons.more')")
    await page.press("Cancel 2 jobs", DIALOG)
    for job_id in jobs:
        await caller.reach(job_id, "CANCELLED")
    assert page.faults == []


async def test_all_failed_jobs_that_filters_find_are_run_again(
    page: "Page", shared: "Lucius", caller: "Caller"
) -> None:
    jobs = [await caller.submit(request_type="OCR", tenant_id="redriven") for _ in range(2)]
    for job_id, code in zip(jobs, ("TORN_PAGE", "NO_PAGES"), strict=True):
        error = {"code": code, "message": "not to be read"}
        await caller.finish(job_id, "ocr", status="FAILED_FINAL", error=error)
    await opened(page, f"{shared.url}/#/failed?tenant_id=redriven&failed=1h")
    await page.sees("TORN_PAGE")
    # By when they failed jobs are not acted upon.
    assert "Run all again" not in await page.value("document.querySelector('#view').innerText")
    await opened(page, f"{shared.url}/#/failed?tenant_id=redriven")
    await page.press("Run all again")
    await page.sees("2 jobs match the filters; 2 jobs would change")
    await page.press("Run 2 jobs again", DIALOG)
    await page.sees("2 jobs run again")
    for job_id in jobs:
        told = (await caller.http.get(f"/v1/jobs/{job_id}:explain")).json()
        await caller.control(told["again_as"], "cancel")
    assert page.faults == []


async def test_all_jobs_of_a_cause_are_run_again(page: "Page", shared: "Lucius", caller: "Caller") -> None:
    for _ in range(2):
        job_id = await caller.submit(request_type="OCR", tenant_id="causal")
        directive = await caller.directive(job_id, "ocr")
        error = {"code": "NO_DISK", "message": "full"}
        await caller.reply(directive, "RESULT", status="FAILED_FINAL", error=error)
    await opened(page, f"{shared.url}/#/failed?tenant_id=causal")
    await page.press("Run all 2 again")
    await page.press("Run 2 jobs again", DIALOG)
    await page.sees("2 jobs run again")
    await page.sees("No failed job is like this")
    again = (await caller.http.get("/v1/jobs", params={"tenant_id": "causal"})).json()["items"]
    assert len(again) == 4
    for job in again[:2]:
        await caller.control(job["jobId"], "cancel")
    assert page.faults == []
