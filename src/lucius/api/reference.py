"""The page `/docs`: every call of the API, to read and to try. All that it loads comes from here, so that it
works on a closed network, and nobody else's script runs where jobs are controlled. The browser is told so,
and that no other page may put this one into a frame: a key may be typed in here.
"""

from importlib.resources import files
from typing import Final

from fastapi import FastAPI, Request
from starlette.responses import Response

PAGE: Final = "/docs"
SCRIPT: Final = "/docs/swagger-ui-bundle.js"
STYLE: Final = "/docs/swagger-ui.css"
ICON: Final = "/docs/favicon.png"
START: Final = "/docs/start.js"
ASSETS: Final = {SCRIPT: "text/javascript", START: "text/javascript", STYLE: "text/css", ICON: "image/png"}
# A new version of Lucius may bring a new one.
CACHED: Final = {"Cache-Control": "max-age=3600", "X-Content-Type-Options": "nosniff"}
# Swagger UI draws with styles within its elements and pictures within its stylesheet. It runs no script but
# those two files, and calls nobody but Lucius.
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",  # for browsers that do not know the last word of the line above
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
HTML: Final = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Lucius</title>
<link rel="icon" href="{ICON}">
<link rel="stylesheet" href="{STYLE}">
</head>
<body>
<div id="swagger-ui"></div>
<script src="{SCRIPT}"></script>
<script src="{START}"></script>
</body>
</html>
"""
# A file of its own, since the page may hold no script.
STARTED: Final = """SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  layout: "BaseLayout",
  deepLinking: true,
  showExtensions: true,
  showCommonExtensions: true,
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});
"""


def add_reference(app: FastAPI) -> None:
    app.add_route(PAGE, _page, include_in_schema=False)
    for path in ASSETS:
        app.add_route(path, _asset, include_in_schema=False)


async def _page(request: Request) -> Response:
    return Response(HTML, media_type="text/html", headers=HEADERS)


async def _asset(request: Request) -> Response:
    path = request.scope["path"]
    if path == START:
        return Response(STARTED, media_type=ASSETS[START], headers=CACHED)
    found = files("fastapi_offline") / "static" / path.rpartition("/")[2]
    return Response(found.read_bytes(), media_type=ASSETS[path], headers=CACHED)
