"""The page `/docs`: every call of the API, to read and to try. All that it loads comes from here, so that it
works on a closed network, and no other party's script runs where jobs are controlled. Headers tell the
browser so, and that no other page may put this one into a frame: a key may be typed in here.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec
from starlette.responses import Response

from lucius.api import openapi
from lucius.api.routing import OpenCall, Result, without_credential

DESCRIPTION: Final = "/openapi.json"
PAGE: Final = "/docs"
SCRIPT: Final = "/docs/swagger-ui-bundle.js"
STYLE: Final = "/docs/swagger-ui.css"
ICON: Final = "/docs/favicon.png"
START: Final = "/docs/start.js"
ASSETS: Final = {SCRIPT: "text/javascript", START: "text/javascript", STYLE: "text/css", ICON: "image/png"}
# A new version of Lucius may bring a new one.
CACHED: Final = {"Cache-Control": "max-age=3600", "X-Content-Type-Options": "nosniff"}
# Swagger UI draws with styles within its elements and pictures within its stylesheet. It runs no script but
# those two files, and calls Lucius alone.
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


async def _page(call: OpenCall) -> Result:
    return Response(HTML, media_type="text/html", headers=HEADERS)


def _static(name: str) -> bytes:
    """A file of the package, which is not imported: it would bring in a web framework."""
    package = find_spec("fastapi_offline")
    assert package is not None and package.origin is not None
    return (Path(package.origin).parent / "static" / name).read_bytes()


async def _asset(call: OpenCall) -> Result:
    path = call.request.scope["path"]
    if path == START:
        return Response(STARTED, media_type=ASSETS[START], headers=CACHED)
    return Response(_static(path.rpartition("/")[2]), media_type=ASSETS[path], headers=CACHED)


@cache
def _document() -> bytes:
    return msgspec.json.encode(openapi.document())


async def _description(call: OpenCall) -> Result:
    return Response(_document(), media_type="application/json")


PAGE_ROUTES: Final = (
    without_credential(("GET", "HEAD"), DESCRIPTION, _description),
    without_credential(("GET", "HEAD"), PAGE, _page),
    *(without_credential(("GET", "HEAD"), path, _asset) for path in ASSETS),
)
