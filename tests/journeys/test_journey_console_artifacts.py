"""What a job read and wrote, looked at in the console; late results, and schedules."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from PIL import Image
from tests.journeys.browser import Page
from tests.journeys.console_checks import DIALOG, SHOWN, STATE, opened
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller, until

from lucius.services.sample import sample_document

pytestmark = pytest.mark.xdist_group("browser")

MARKUP = "<script>window.evil = 1</script><img src=x onerror='window.evil = 1'>"
PICTURE = "document.querySelector('img.artifact')"


def picture() -> bytes:
    made = BytesIO()
    Image.new("RGB", (40, 30), "navy").save(made, "PNG")
    return made.getvalue()


def folder_of(directive: Any) -> Path:
    folder = Path(unquote(urlsplit(directive["workspace_ref"]["uri"]).path)) / "ocr" / "1"
    folder.mkdir(parents=True)
    return folder


async def test_artifacts_are_looked_at(page: "Page", shared: "Lucius", caller: "Caller") -> None:
    job_id = await caller.submit(request_type="OCR", tenant_id="onlookers")
    directive = await caller.directive(job_id, "ocr")
    folder = folder_of(directive)
    (folder / "output.html").write_text(MARKUP)
    (folder / "pages.json").write_text('{"pages":[1,2]}')
    (folder / "page.png").write_bytes(picture())
    (folder / "letter.pdf").write_bytes(sample_document())
    (folder / "model.bin").write_bytes(b"\x00\x01")
    await caller.reply(directive, "RESULT", status="SUCCEEDED")
    await opened(page, f"{shared.url}/#/jobs/{job_id}")
    # Nothing is read before it is asked for.
    await page.until(f"{STATE} === 'SUCCEEDED'")
    assert not [url for url in page.requests if url.endswith("/artifacts")]
    await page.press("What it read and wrote")
    await page.press("Show ocr/1/output.html")
    await page.sees(MARKUP)
    assert await page.value("window.evil === undefined") is True
    await page.press("Show ocr/1/pages.json")
    await page.sees('"pages": [\n    1,')
    await page.press("Show ocr/1/page.png")
    await page.until(f"{PICTURE}?.getBoundingClientRect().width === 42")  # and its border
    await page.press("Show ocr/1/letter.pdf")
    await page.sees("page 1 of 1")
    await page.until(f"{PICTURE}?.getBoundingClientRect().height > 500")
    await page.press("Hide")
    await page.until(f"{PICTURE} === null")
    await page.press("Show ocr/1/model.bin")
    await page.sees("neither a text, a picture")
    assert page.faults == []


async def test_a_job_that_succeeded_is_run_again_from_a_step(
    page: "Page", shared: "Lucius", caller: "Caller"
) -> None:
    job_id = await caller.submit(request_type="OCR_EMBEDDING", tenant_id="repeaters")
    for service in ("ocr", "embedding"):
        await caller.finish(job_id, service)
    await opened(page, f"{shared.url}/#/jobs/{job_id}")
    await page.press("Run again")
    await page.fill("From which step", "step_02")
    await page.press("Run again", DIALOG)
    again = await page.until(f"({SHOWN}) !== '{job_id}' && {SHOWN}")
    assert (await caller.finish(again, "embedding"))["stepId"] == "step_02"
    await page.until(f"{STATE} === 'SUCCEEDED'")
    assert page.faults == []


async def test_a_late_result_is_adopted_once(page: "Page", shared: "Lucius", caller: "Caller") -> None:
    job_id = await caller.submit(request_type="QUICK", tenant_id="latecomers")
    first = await caller.directive(job_id, "quick")

    async def failed() -> bool:
        await caller.lease("quick")
        return await caller.state(job_id) == "FAILED_FINAL"

    await until(failed, seconds=60)
    await caller.say(first, "RESULT", status="SUCCEEDED")
    await opened(page, f"{shared.url}/#/jobs/{job_id}")
    await page.press("Adopt the late result of step_01")
    await page.press("Leave it", DIALOG)
    await page.press("Adopt the late result of step_01")
    await page.press("Adopt", DIALOG)
    adopted = await page.until(f"({SHOWN}) !== '{job_id}' && {SHOWN}")
    await page.until(f"{STATE} === 'SUCCEEDED'")
    # What was adopted is not offered again, and leads to the job that took it.
    await opened(page, f"{shared.url}/#/jobs/{job_id}")
    await page.sees("was adopted by")
    assert ":redrive" not in await page.value("document.body.innerText")  # people do not speak the API
    await page.sees(adopted)
    buttons = "[...document.querySelectorAll('#view button')].map((each) => each.innerText.trim())"
    offered = await page.value(buttons)
    assert not [words for words in offered if words.startswith(("Adopt", "Run again"))]
    assert page.faults == []


async def test_a_schedule_is_written_run_paused_and_deleted(
    page: "Page", shared: "Lucius", caller: "Caller"
) -> None:
    await opened(page, f"{shared.url}/#/schedules")
    await page.sees("No schedule yet")
    await page.press("Write a schedule")
    definition = "document.querySelector('#schedule').value"
    example = json.loads(await page.value(definition))
    await page.fill("Definition", json.dumps({**example, "cron": "not a cron"}))
    await page.press("Write it")
    await page.sees("/cron")
    await page.fill("Definition", json.dumps(example))  # the example works as it is
    await page.press("Write it")
    await page.until("location.hash === '#/schedules/invoices-of-the-night'")
    await page.sees("Runs")
    await page.press("Pause")
    await page.sees("It is paused")
    await page.press("Resume")
    await page.until("document.querySelectorAll('.lines li').length === 5")
    await page.press("Run now")
    job_id = await page.until(SHOWN)
    assert (await caller.job(job_id))["tenant_id"] == "acme"
    await caller.control(job_id, "cancel")
    await opened(page, f"{shared.url}/#/schedules")
    await page.press("invoices-of-the-night")
    await page.press("Delete")
    await page.press("Delete", DIALOG)
    await page.until("location.hash === '#/schedules'")
    await page.sees("No schedule yet")
    assert page.faults == []
