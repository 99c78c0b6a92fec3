"""The application that a server serves: what holds for every call, and behind it the routes."""

from collections.abc import Callable

from starlette.types import ASGIApp

from lucius.api.access import AccessMiddleware
from lucius.api.dependencies import ApiDependencies
from lucius.api.reference import PAGE_ROUTES
from lucius.api.routes import ROUTES
from lucius.api.routing import Router


def make_app(deps: ApiDependencies, around: Callable[[ASGIApp], ASGIApp] | None = None) -> ASGIApp:
    """`around`: what stands between the access log and the routes, such as the console."""
    app: ASGIApp = Router((*ROUTES, *PAGE_ROUTES), deps, deps.watching.metrics)
    return AccessMiddleware(app if around is None else around(app), deps.watching)
