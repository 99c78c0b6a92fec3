"""The console while things change: what somebody marked, focused, opened or asked for stays."""

import json

import pytest
from tests.journeys.browser import Page
from tests.journeys.console_checks import opened
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller

pytestmark = pytest.mark.xdist_group("browser")

FOCUSED = "document.activeElement.innerText"
MARKED = "getSelection().toString()"
ROWS = "[...document.querySelectorAll('tbody tr')]"
SHOWN_IDS = f"{ROWS}.map((row) => row.querySelector('a').innerText)"
PAGE = 50


async def test_what_is_marked_focused_and_scrolled_stays_while_the_job_goes_on(
    page: "Page", shared: "Lucius", caller: "Caller"
) -> None:
    job_id = await caller.submit(request_type="OCR", tenant_id="patient")
    directive = await caller.directive(job_id, "ocr")
    await opened(page, f"{shared.url}/#/jobs/{job_id}")
    await page.sees("patient")
    await page.until("document.querySelector('.live')?.innerText === 'Live'")
    await page.value("document.querySelector('main').style.paddingBottom = '5000px'")
    await page.value("[...document.querySelectorAll('button')].find((b) => b.innerText === 'Cancel').focus()")
    await page.value(
        "getSelection().selectAllChildren([...document.querySelectorAll('dd')].find("
        "(each) => each.innerText === 'patient'))"
    )
    await page.value("scrollTo(0, 300)")
    await page.value("window.first = document.querySelector('.step')")
    await page.value("first.open = true")
    await caller.reply(directive, "ACK")
    await caller.reply(directive, "PROGRESS", progress=40)
    await page.sees("40 %")
    assert (await page.value(FOCUSED), await page.value(MARKED)) == ("Cancel", "patient")
    assert await page.value("scrollY") > 0  # about there: the browser makes up for what grew above
    assert await page.value("first === document.querySelector('.step') && first.open") is True
    took = "[...document.querySelectorAll('dt')].find((e) => e.innerText === 'Took').nextSibling.innerText"
    before = await page.value(took)
    await page.until(f"{took} !== {json.dumps(before)}")  # nothing else happens to the job meanwhile
    assert await page.value(MARKED) == "patient"
    await caller.reply(directive, "RESULT", status="SUCCEEDED")
    await page.sees("JOB_SUCCEEDED")
    assert await page.value(MARKED) == "patient"
    assert await page.value("scrollY") > 0
    await page.until("document.querySelector('.aside .buttons').innerText.startsWith('Run again')")
    assert page.faults == []


FILLS = """
import("/console/dom.js").then(({ el, fill }) => {
  const row = (key, cells) => el("tr", { "data-key": key }, cells.map((cell) => el("td", {}, cell)));
  const pressed = [];
  const button = (name) => el("button", { onclick: () => pressed.push(name) }, "Redrive");
  const draw = (names, words) => [
    el("details", {}, el("summary", {}, words)),
    names.includes("note") ? el("p", {}, "a note") : "",
    el("table", {}, el("tbody", {}, names.map((name) => row(name, [name, button(name)])))),
  ];
  const place = el("div");
  document.body.append(place);
  fill(place, draw(["a", "b", "c"], "before"));
  const details = place.querySelector("details");
  details.open = true;
  const kept = place.querySelector("[data-key=b] button");
  kept.focus();
  fill(place, draw(["new", "note", "b", "c"], "after"));
  document.activeElement.click();
  fill(place, draw(["c", "new"], "last"));
  window.told = JSON.stringify({
    pressed, open: place.querySelector("details") === details && details.open, summary: details.innerText,
    keys: [...place.querySelectorAll("tr")].map((each) => each.dataset.key),
    note: place.querySelectorAll("p").length,
    gone: !kept.isConnected && document.activeElement === document.body,
  });
});
"""


async def test_a_row_is_never_taken_for_another_one(page: "Page", shared: "Lucius") -> None:
    await opened(page, f"{shared.url}/#/playground")
    await page.value(FILLS)
    told = json.loads(await page.until("window.told"))
    assert told == {
        "pressed": ["b"],
        "open": True,
        "summary": "last",
        "keys": ["c", "new"],
        "note": 0,
        "gone": True,
    }
    assert page.faults == []


async def test_more_jobs_stay_and_are_kept_current(page: "Page", shared: "Lucius", caller: "Caller") -> None:
    jobs = [await caller.submit(request_type="SIS", tenant_id="many") for _ in range(PAGE + 5)]
    await page.go(f"{shared.url}/#/jobs?tenant_id=many")
    await page.until(f"{ROWS}.length === {PAGE}")
    await page.press("More")
    await page.until(f"{ROWS}.length === {PAGE + 5}")
    assert await page.value(SHOWN_IDS) == jobs[::-1]
    # Those that newer ones push off the first page are still there, and the last page is no memory.
    jobs += [await caller.submit(request_type="SIS", tenant_id="many") for _ in range(10)]
    assert (await caller.control(jobs[0], "cancel")).status_code == 202
    await page.until(f"{ROWS}.at(-1).innerText.includes('Cancelled')")
    await page.until(f"{ROWS}[0].innerText.includes({json.dumps(jobs[-1])})")
    assert await page.value(SHOWN_IDS) == jobs[::-1]
    await page.until("[...document.querySelectorAll('button')].every((each) => each.innerText !== 'More')")
    for job_id in jobs:
        await caller.control(job_id, "cancel")
    assert page.faults == []


async def test_more_failed_jobs(page: "Page", shared: "Lucius", caller: "Caller") -> None:
    error = {"code": "BAD_PDF", "message": "no pages"}
    count = 4 * PAGE + 5
    jobs = {await caller.submit(request_type="OCR", tenant_id="failing") for _ in range(count)}
    for job_id in jobs:
        directive = await caller.directive(job_id, "ocr")
        await caller.reply(directive, "RESULT", status="FAILED_FINAL", error=error)
    await page.go(f"{shared.url}/#/failed")
    shown: set[str] = set()
    while not jobs <= shown:
        await page.until(f"{ROWS}.length > {len(shown)}")
        shown = set(await page.value(SHOWN_IDS))
        if not jobs <= shown:
            await page.press("More")
    assert len(shown) > 4 * PAGE
    assert page.faults == []
