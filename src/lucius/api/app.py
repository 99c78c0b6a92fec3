"""The application: routes, and what happens to faults."""

import re
from collections.abc import Callable

import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from lucius import __version__
from lucius.api import admin, commands, jobs, keys, metrics, reasons, webhooks, work
from lucius.api.access import AccessMiddleware
from lucius.api.dependencies import ApiDependencies
from lucius.api.fast_path import FastPath
from lucius.api.openapi import DescribedApi
from lucius.api.problems import problem, unreadable
from lucius.api.reference import ASSETS, PAGE, add_reference
from lucius.core.refusal import Code, Refused
from lucius.jobs.workflows import InvokerUnavailable, WorkflowsUnavailable
from lucius.ledger.store import StoreError, StoreUnavailable, Unreadable

log = structlog.get_logger("lucius.api")

RETRY_AFTER_SECONDS = 1

_parameter = re.compile(r"\{[^}]*\}")


# The calls that come most often: found without the framework (see `express`), documented by it.
EXPRESS_POSTS = frozenset(
    {
        "/v1/orchestrate",
        "/v1/commands",
        "/v1/orchestrate:batch",
        "/v1/directives:lease",
        "/v1/callbacks/ack",
        "/v1/callbacks/progress",
        "/v1/callbacks/result",
    }
)
EXPRESS_JOB = "/v1/jobs/{job_id}"
PAGES = frozenset({"/openapi.json", PAGE, *ASSETS})  # which no router names


def make_app(deps: ApiDependencies, around: Callable[[ASGIApp], ASGIApp] | None = None) -> ASGIApp:
    """What a server serves. `around`: what stands between the door and the routes."""
    routers = _routers(deps)
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    posts = {
        route.path: metrics.counted(route.path, route.endpoint, deps.watching.metrics)
        for route in routes
        if route.path in EXPRESS_POSTS
    }
    get_job = next(route.endpoint for route in routes if route.path == EXPRESS_JOB)
    express: ASGIApp = FastPath(_documented(routers), posts, get_job, _any_fault)
    if around is not None:
        express = around(express)
    return AccessMiddleware(express, deps.watching, EXPRESS_POSTS | PAGES, EXPRESS_JOB)


def make_api(deps: ApiDependencies) -> FastAPI:
    """The routes as the framework serves and documents them."""
    return _documented(_routers(deps))


def _routers(deps: ApiDependencies) -> list[APIRouter]:
    # `reasons` before `jobs`, whose `GET /v1/jobs/{job_id}` would take `:explain` for part of an id.
    rooms = (commands, reasons, jobs, work, admin, webhooks, keys, metrics)
    return [room.routes(deps) for room in rooms]


def _documented(routers: list[APIRouter]) -> FastAPI:
    app = DescribedApi(
        routers,
        title="Lucius",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        # A redirect would repeat whatever host the caller named, and is no answer that the API documents.
        redirect_slashes=False,
    )
    add_reference(app)
    add_fault_handlers(app)
    return app


def add_fault_handlers(app: FastAPI) -> None:
    app.add_exception_handler(StoreError, _store_fault)
    app.add_exception_handler(WorkflowsUnavailable, _workflow_fault)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(Exception, _fault)


async def _any_fault(request: Request, fault: Exception) -> Response:
    if isinstance(fault, WorkflowsUnavailable):
        return await _workflow_fault(request, fault)
    handler = _store_fault if isinstance(fault, StoreError) else _fault
    return await handler(request, fault)


async def _workflow_fault(request: Request, fault: Exception) -> Response:
    log.warning("workflow_fault", path=request.scope["path"], error=str(fault))
    message = "it is written, but the job's workflow could not be told; send it again, which does no harm"
    if isinstance(fault, InvokerUnavailable):
        message = fault.told
    return problem(Refused(Code.SYSTEM_SATURATED, message, retry_after_seconds=RETRY_AFTER_SECONDS))


async def _store_fault(request: Request, fault: Exception) -> Response:
    if isinstance(fault, Unreadable):
        return problem(unreadable(fault))
    log.warning("store_fault", path=request.scope["path"], error=str(fault))
    message = "the ledger cannot take this now; nothing was accepted"
    if not isinstance(fault, StoreUnavailable):
        message = "the ledger did not answer, and may have taken it: send it again, with the same key"
    return problem(Refused(Code.SYSTEM_SATURATED, message, retry_after_seconds=RETRY_AFTER_SECONDS))


async def _no_route(request: Request, fault: Exception) -> Response:
    status = fault.status_code if isinstance(fault, HTTPException) else 404
    if status == 405:
        response = problem(Refused(Code.METHOD_NOT_ALLOWED, "this address does not take that method"))
        allowed = _methods(request) or (getattr(fault, "headers", None) or {}).get("Allow")
        if allowed:
            response.headers["Allow"] = allowed
        return response
    return problem(Refused(Code.NOT_FOUND, "this address leads nowhere; /docs lists the ones that do"))


def _methods(request: Request) -> str:
    """What this address takes. The framework asks the first route that fits, and `/v1/jobs/{job_id}` fits
    `…:cancel` too: of all that fit, those with the most text of their own are meant."""
    fitting: dict[int, set[str]] = {}
    for route in getattr(request.app, "described", ()):  # other applications share the handlers
        if route.path_regex.match(request.scope["path"]):
            own_text = len(_parameter.sub("", route.path))
            fitting.setdefault(own_text, set()).update(route.methods or ())
    return ", ".join(sorted(fitting[max(fitting)])) if fitting else ""


async def _fault(request: Request, fault: Exception) -> Response:
    log.error("request_failed", path=request.scope["path"], exc_info=fault)
    return problem(Refused(Code.INTERNAL, "an unexpected fault; the log has it"))
