"""The pages about an installation: services, lanes, tenants, protocols, failed jobs by cause, keys."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.journeys.browser import Page
from tests.journeys.conftest import Launch
from tests.journeys.console_checks import DIALOG, opened
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller

pytestmark = pytest.mark.xdist_group("browser")


def row(text: str) -> str:
    rows = "[...document.querySelectorAll('[data-row]')]"
    return f"{rows}.find((each) => each.innerText.includes({json.dumps(text)}))"


async def test_services_lanes_and_tenants(page: "Page", shared: "Lucius", caller: "Caller") -> None:
    job_id = await caller.submit(request_type="EMBEDDING", tenant_id="fleeting")
    await opened(page, f"{shared.url}/#/tenants")
    await page.until(f"{row('fleeting')}?.innerText.includes('1 / 1,000')")
    lane = await page.value(f"{row('fleeting')}.querySelectorAll('td')[2].innerText")
    await opened(page, f"{shared.url}/#/lanes")
    await page.until(
        f"document.querySelector('[data-row][data-key=\"{lane}\"]').innerText.includes('fleeting')"
    )
    await caller.finish(job_id, "embedding")
    await opened(page, f"{shared.url}/#/services")
    await page.until(f"{row('embedding')}?.querySelectorAll('td')[7].innerText >= '1'")
    await page.until(f"{row('embedding')}?.innerText.includes('Working')")
    assert page.faults == []


async def test_protocols_are_drawn(page: "Page", shared: "Lucius") -> None:
    await opened(page, f"{shared.url}/#/protocols")
    await page.press("ocr_embedding_sis_v1")
    await page.until("location.hash === '#/protocols/ocr_embedding_sis_v1'")
    drawn = "[...document.querySelectorAll('.drawn .step-type')].map((each) => each.textContent).join()"
    await page.until(f"{drawn} === 'OCR,EMBEDDING,SIS'")
    await page.press("Schema of its payload")
    await page.sees('"additionalProperties": false')
    # In a row where there is room, else one below the other.
    canvas = "document.querySelector('.drawn')"
    sides = f"{canvas}.width.baseVal.value > {canvas}.height.baseVal.value"
    assert await page.value(sides) is True
    await page.size(320)
    await page.until(f"!({sides})")
    assert page.faults == []


async def test_failed_jobs_by_cause(page: "Page", shared: "Lucius", caller: "Caller") -> None:
    for code, many in (("BAD_PDF", 3), ("NO_DISK", 1)):
        for _ in range(many):
            job_id = await caller.submit(request_type="OCR", tenant_id="causes")
            directive = await caller.directive(job_id, "ocr")
            error = {"code": code, "message": "as was said"}
            await caller.reply(directive, "RESULT", status="FAILED_FINAL", error=error)
    await opened(page, f"{shared.url}/#/failed?tenant_id=causes")
    each = "`${each.dataset.key} ${each.querySelector('.many').innerText}`"
    causes = f"[...document.querySelectorAll('.cause')].map((each) => {each}).join()"
    await page.until(f"{causes} === 'BAD_PDF 3,NO_DISK 1'")
    await page.fill("Error code", "NO_DISK")
    await page.until(f"{causes} === 'NO_DISK 1'")
    assert await page.value("location.hash") == "#/failed?tenant_id=causes&error_code=NO_DISK"
    await page.press("Clear")
    await page.until("location.hash === '#/failed'")
    assert page.faults == []


async def test_a_key_is_made_shown_once_and_revoked(
    page: "Page", launch: "Launch", caller_at: Callable[["Lucius"], "Caller"]
) -> None:
    lucius = launch()
    await opened(page, f"{lucius.url}/#/keys")
    await page.sees("No key was made yet")
    await page.press("Make the key")
    await page.sees("/name")  # what is missing, in words
    await page.fill("Name", "reporting")
    await page.fill("Tenants", "acme, northwind")
    await page.press("Make the key")
    key = await page.until("document.querySelector('.notice code')?.innerText")
    assert key.startswith("lk_")
    await page.until(f"{row('reporting')}?.innerText.includes('acme, northwind')")
    await opened(page, f"{lucius.url}/#/keys")
    assert key not in await page.value("document.documentElement.outerHTML")
    await page.press("Revoke")
    await page.press("Revoke", DIALOG)
    await page.until(f"{row('reporting')}?.innerText.includes('Revoked')")
    assert page.faults == []


async def test_budgets_are_shown_with_their_tenants(
    page: "Page", launch: "Launch", caller_at: Callable[["Lucius"], "Caller"], tmp_path: Path
) -> None:
    rules = tmp_path / "tenants.yaml"
    rules.write_text("tenants: {frugal: {budget: {day: {pages: 1000, usd: 2.5}}}}")
    lucius = launch(env={"LUCIUS_TENANTS_FILE": str(rules)})
    caller = caller_at(lucius)
    job_id = await caller.submit(request_type="EMBEDDING", tenant_id="frugal")
    await caller.finish(job_id, "embedding", usage={"pages": 12, "usd": 2.5})
    await opened(page, f"{lucius.url}/#/tenants")
    await page.until(f"{row('frugal')}?.innerText.includes('12 of 1,000 pages this day')")
    await page.until(f"{row('frugal')}?.innerText.includes('2.5 of 2.5 usd this day: used up')")
    assert page.faults == []


async def test_a_service_and_a_tenant_are_paused_and_go_on(
    page: "Page", shared: "Lucius", caller: "Caller"
) -> None:
    job_id = await caller.submit(request_type="SIS", tenant_id="resting")
    await opened(page, f"{shared.url}/#/tenants")
    await page.press("Pause resting")
    await page.press("Leave it", DIALOG)
    await page.press("Pause resting")
    await page.fill("Why", "an audit")
    await page.press("Pause", DIALOG)
    await page.sees("resting is paused")
    await page.until(f"{row('resting')}?.innerText.includes('Paused')")
    assert "an audit" in str((await caller.http.get("/v1/pauses")).json())
    assert job_id not in [each["jobId"] for each in await caller.lease("sis")]
    await page.press("Resume resting")
    await page.until(f"!{row('resting')}?.innerText.includes('Paused')")
    await caller.finish(job_id, "sis")
    await opened(page, f"{shared.url}/#/services")
    await page.press("Pause sis")
    await page.press("Pause", DIALOG)
    await page.until(f"{row('sis')}?.innerText.includes('Paused')")
    await page.press("Resume sis")
    await page.until(f"!{row('sis')}?.innerText.includes('Paused')")
    assert page.faults == []
