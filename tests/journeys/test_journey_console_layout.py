"""Every page of the console at every width, in both themes: nothing sticks out, is cut off or covered; and
what axe thinks of it."""

import json

import pytest
from tests.journeys.browser import Page
from tests.journeys.console_checks import WIDTHS, axe_faults, layout_faults, opened
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller

pytestmark = pytest.mark.xdist_group("browser")

PLACES = (
    *("failed", "playground", "services", "lanes", "tenants", "protocols", "protocols/ocr_embedding_sis_v1"),
    *("webhooks", "keys", "schedules", "nowhere"),
)
LONGEST = "a-tenant-whose-name-is-as-long-as-a-name-may-be-" + "x" * 70
ERROR = {"code": "A_CODE_AS_LONG_AS_" + "Y" * 100, "message": "what went wrong " * 20 + "z" * 200}


@pytest.fixture
async def places(caller: "Caller") -> list[str]:
    """Pages with the longest names in them."""
    wide = {
        "tenant_id": LONGEST,
        "doc_id": "d" * 256,
        "correlation_id": "c" * 256,
        "request_type": "OCR_EMBEDDING_SIS",
    }
    failed, open_job = await caller.submit(**wide), await caller.submit(**wide)
    await caller.finish(failed, "ocr")
    directive = await caller.directive(failed, "embedding")
    await caller.reply(directive, "PROGRESS", progress=5, note="n" * 1000)
    await caller.reply(directive, "RESULT", status="FAILED_FINAL", error=ERROR)
    return ["", "jobs", f"jobs/{failed}", f"jobs/{open_job}", *PLACES]


async def test_no_page_breaks_at_any_width(page: "Page", shared: "Lucius", places: list[str]) -> None:
    found = {}
    for theme, widths in (("light", WIDTHS), ("dark", WIDTHS[:1])):
        await page.scheme(theme)
        for place in places:
            await page.size(widths[0])
            await opened(page, f"{shared.url}/#/{place}")
            for width in widths:
                await page.size(width)
                if faults := await layout_faults(page):
                    found[f"{theme} {width} #/{place}"] = faults
            if faults := await axe_faults(page):
                found[f"{theme} axe #/{place}"] = faults
    assert found == {}, json.dumps(found, indent=1)
    assert page.faults == []
