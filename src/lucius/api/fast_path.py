"""The short way for the calls that come most often.

A framework's routing, middleware and dependency injection cost more than the work behind a small call. The
routes below are declared to the framework like all others, which documents them; here the same functions are
found by their path and called directly. Everything else, and every fault, goes the ordinary way.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[Response]]
FaultHandler = Callable[[Request, Exception], Awaitable[Response]]

JOB_PATH = "/v1/jobs/"


class FastPath:
    def __init__(
        self,
        app: ASGIApp,
        posts: dict[str, Endpoint],
        get_job: Callable[[str, Request], Awaitable[Response]],
        on_fault: FaultHandler,
    ) -> None:
        self._app = app
        self._posts = posts
        self._get_job = get_job
        self._on_fault = on_fault

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = None
        if scope["type"] == "http":
            path: str = scope["path"]
            if scope["method"] == "POST":
                endpoint = self._posts.get(path)
                if endpoint is not None:
                    response = await self._answer(endpoint, Request(scope, receive))
            elif scope["method"] == "GET" and path.startswith(JOB_PATH) and "/" not in path[len(JOB_PATH) :]:
                job_id = path[len(JOB_PATH) :]
                if job_id and ":" not in job_id:
                    response = await self._answer(
                        lambda request: self._get_job(job_id, request), Request(scope, receive)
                    )
        if response is None:
            await self._app(scope, receive, send)
        else:
            await response(scope, receive, send)

    async def _answer(self, endpoint: Endpoint, request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as fault:
            return await self._on_fault(request, fault)
