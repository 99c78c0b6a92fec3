"""People log in at an identity provider, and the console shows what their roles allow."""

from collections.abc import Iterator
from urllib.parse import urlencode

import httpx2
import pytest
from tests.journeys.browser import Page
from tests.journeys.conftest import Launch
from tests.journeys.console_checks import WIDTHS, axe_faults, layout_faults, opened
from tests.support.auth_setup import LoginIssuer

pytestmark = pytest.mark.xdist_group("browser")

POLICY = "content-security-policy"
PAGES = "[...document.querySelectorAll('.nav a')].map((each) => each.innerText)"


@pytest.fixture
def issuer() -> Iterator[LoginIssuer]:
    issuer = LoginIssuer()
    yield issuer
    issuer.close()


async def test_a_login_at_an_identity_provider(page: "Page", launch: "Launch", issuer: LoginIssuer) -> None:
    lucius = launch(env={"LUCIUS_AUTH": "required", **issuer.env})
    host = issuer.url.removeprefix("http://")
    async with httpx2.AsyncClient() as http:
        policy = (await http.get(lucius.url)).headers[POLICY]
    assert f"connect-src 'self' {issuer.url};" in policy and "unsafe" not in policy
    # Its page is one like the others.
    await opened(page, f"{lucius.url}/#/services")
    for width in WIDTHS:
        await page.size(width)
        assert await layout_faults(page) == []
    assert await axe_faults(page) == []
    # The provider may say no, and its words stay text.
    issuer.refusal = "<img src=x onerror=alert(1)> ask the help desk"
    await page.press(f"Log in at {host}")
    await page.sees(f"{host} did not log you in: <img src=x onerror=alert(1)> ask the help desk")
    # With a token of the provider, the page that was wanted.
    issuer.refusal, issuer.given = "", {"roles": ["read"], "tenants": "*"}
    await page.press(f"Log in at {host}")
    await page.sees("Times and counts are of the last")
    assert await page.value("location.pathname + location.search + location.hash") == "/#/services"
    assert "Failed jobs" not in await page.value(PAGES)
    token = await page.value("sessionStorage.getItem('lucius.key')")
    assert token.count(".") == 2
    assert token not in await page.value("document.documentElement.outerHTML")
    # What a role is missing for, the provider's administrator can mend.
    await page.go(f"{lucius.url}/#/keys")
    await page.sees(
        f"You are logged in as subject somebody, who does not have it. An administrator of {host}"
    )
    issuer.given = {"roles": ["read", "admin"], "tenants": "*"}
    await page.press("Log in as someone else")
    await page.press(f"Log in at {host}")
    await page.sees("No key was made yet")
    await page.press("Log out")
    await page.sees("This installation asks who is there")
    assert await page.value("sessionStorage.length") == 0
    assert page.faults == []


async def test_an_answer_that_this_tab_did_not_ask_for_logs_no_one_in(
    page: "Page", launch: "Launch", issuer: LoginIssuer
) -> None:
    lucius = launch(env={"LUCIUS_AUTH": "required", **issuer.env})
    for given in ({"code": "stolen", "state": "guessed"}, {"code": "stolen", "state": ""}):
        await page.go("about:blank")
        await page.go(f"{lucius.url}/?{urlencode(given)}#/jobs")
        await page.sees("This address ends no login that was begun in this tab")
        await page.sees("This installation asks who is there")
    assert "/token" not in issuer.asked
    assert page.faults == []
