"""The page `/docs`: every call of the API, to read and to try. All that it loads comes from here, so that it
works on a closed network, and nobody else's script runs where jobs are controlled."""

from importlib.resources import files
from typing import Final

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import Response

PAGE: Final = "/docs"
SCRIPT: Final = "/docs/swagger-ui-bundle.js"
STYLE: Final = "/docs/swagger-ui.css"
ICON: Final = "/docs/favicon.png"
ASSETS: Final = {SCRIPT: "text/javascript", STYLE: "text/css", ICON: "image/png"}
# A new version of Lucius may bring a new one.
CACHED: Final = {"Cache-Control": "max-age=3600"}


def add_reference(app: FastAPI) -> None:
    app.add_route(PAGE, _page, include_in_schema=False)
    for path in ASSETS:
        app.add_route(path, _asset, include_in_schema=False)


async def _page(request: Request) -> Response:
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Lucius",
        swagger_js_url=SCRIPT,
        swagger_css_url=STYLE,
        swagger_favicon_url=ICON,
    )


async def _asset(request: Request) -> Response:
    path = request.scope["path"]
    found = files("fastapi_offline") / "static" / path.rpartition("/")[2]
    return Response(found.read_bytes(), media_type=ASSETS[path], headers=CACHED)
