"""From a request to its handler: what is the same for every route is done here, and nowhere else.

In: the route table (`lucius.api.routes`) and what the handlers need. Out: an ASGI application. For each call
the router finds the route, checks the credential that the route asks for, runs the handler, turns a refusal
or a fault into a problem document, and counts what became of commands.

A handler is a plain function from a call to a response or a refusal. No framework stands between them:
its routing, middleware and dependency injection cost more than the work behind a small call (decision 006).
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lucius.api.access import ROUTE_KEY
from lucius.api.dependencies import ApiDependencies, CallbackDependencies
from lucius.api.faults import refusal_of
from lucius.api.gate import Principal, bearer_of
from lucius.api.problems import problem
from lucius.contracts.keys import Role
from lucius.core.attempt import AttemptRef
from lucius.core.refusal import Code, Refused
from lucius.telemetry import Metrics

ACCEPTED = "accepted"
DUPLICATE = "duplicate"


class CallbackToken(msgspec.Struct, frozen=True):
    """The token of a directive is asked for, not a role."""


class NoCredential(msgspec.Struct, frozen=True):
    """Every caller may come."""


Access = Role | CallbackToken | NoCredential


class CommandsAnswer(msgspec.Struct, frozen=True):
    """A response to commands. `outcomes`: what each of them was answered, `accepted`, `duplicate`, or the
    code of its refusal."""

    response: Response
    outcomes: tuple[str, ...]


Result = Response | Refused | CommandsAnswer


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """By a caller who has the role that the route asks for. `path_id`: the id in the path, or empty."""

    deps: ApiDependencies
    request: Request
    path_id: str
    role: Role
    caller: Principal

    async def admit_again(self) -> Principal | Refused:
        """For calls that are held open: a key may be revoked meanwhile, a token run out."""
        return await self.deps.gate.admit(self.request, self.role)


class CallbackCall(msgspec.Struct, frozen=True, kw_only=True):
    """By a worker. `opened`: the attempt that its token names."""

    deps: CallbackDependencies
    request: Request
    opened: AttemptRef


class OpenCall(msgspec.Struct, frozen=True, kw_only=True):
    """By a caller of whom no credential is asked."""

    deps: ApiDependencies
    request: Request


Handler = Callable[[Call], Awaitable[Result]]
CallbackHandler = Callable[[CallbackCall], Awaitable[Result]]
OpenHandler = Callable[[OpenCall], Awaitable[Result]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """`operation_id` names the description (see `described`); the pages for people have none.
    `answer`: checks the credential and runs the handler, with the dependencies, the request, and the id in
    the path. `counts_commands`: whether the call carries commands, of which each outcome is counted."""

    methods: tuple[str, ...]
    path: str
    access: Access
    operation_id: str | None
    answer: Callable[[Any, Request, str], Awaitable[Result]]
    counts_commands: bool = False


def by_role(
    role: Role, method: str, path: str, handler: Handler, operation_id: str, *, counts_commands: bool = False
) -> Route:
    """For callers whom the gate knows, and who have this role."""

    async def answer(deps: ApiDependencies, request: Request, path_id: str) -> Result:
        caller = await deps.gate.admit(request, role)
        if isinstance(caller, Refused):
            return caller
        return await handler(Call(deps=deps, request=request, path_id=path_id, role=role, caller=caller))

    return Route(
        methods=(method,),
        path=path,
        access=role,
        operation_id=operation_id,
        answer=answer,
        counts_commands=counts_commands,
    )


def by_token(method: str, path: str, handler: CallbackHandler, operation_id: str) -> Route:
    """For workers: opened by the `callback_token` of a directive."""

    async def answer(deps: CallbackDependencies, request: Request, path_id: str) -> Result:
        token = bearer_of(request)
        opened = None if token is None else deps.tokens.read(token)
        if opened is None:
            return Refused(Code.UNAUTHENTICATED, "a callback needs the callback_token of its directive")
        return await handler(CallbackCall(deps=deps, request=request, opened=opened))

    return Route(
        methods=(method,), path=path, access=CallbackToken(), operation_id=operation_id, answer=answer
    )


def without_credential(
    methods: tuple[str, ...], path: str, handler: OpenHandler, operation_id: str | None = None
) -> Route:
    """Without a credential. Of several methods, the first is the one that is documented."""

    async def answer(deps: ApiDependencies, request: Request, path_id: str) -> Result:
        return await handler(OpenCall(deps=deps, request=request))

    return Route(methods=methods, path=path, access=NoCredential(), operation_id=operation_id, answer=answer)


class _Template(msgspec.Struct, frozen=True):
    """A path with an id in it: `/v1/jobs/{job_id}:cancel` is a prefix and a suffix."""

    prefix: str
    suffix: str
    by_method: dict[str, Route]

    def id_in(self, path: str) -> str | None:
        """The id in a path of this form; None if the path has another form."""
        if not (path.startswith(self.prefix) and path.endswith(self.suffix)):
            return None
        found = path[len(self.prefix) : len(path) - len(self.suffix)]
        return found if found and "/" not in found else None


class Router:
    """`deps`: what all of the routes need. `metrics`: where the outcomes of commands are counted."""

    def __init__(
        self, routes: Iterable[Route], deps: CallbackDependencies, metrics: Metrics | None = None
    ) -> None:
        self._deps = deps
        self._metrics = metrics
        self._exact: dict[str, dict[str, Route]] = {}
        templates: dict[str, _Template] = {}
        for route in routes:
            prefix, opening, rest = route.path.partition("{")
            if opening:
                suffix = rest.partition("}")[2]
                by_method = templates.setdefault(route.path, _Template(prefix, suffix, {})).by_method
            else:
                by_method = self._exact.setdefault(route.path, {})
            by_method.update(dict.fromkeys(route.methods, route))
        # `/v1/jobs/{job_id}` fits `/v1/jobs/…:cancel` too: of all that fit, the one with the most text of its
        # own is meant.
        self._templates = sorted(
            templates.values(), key=lambda template: len(template.prefix + template.suffix), reverse=True
        )
        # Those that end with the id: they are meant wherever no other may be.
        self._ending = {template.prefix: template for template in self._templates if not template.suffix}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        found = self._find(scope)
        if isinstance(found, Response):
            response = found
        else:
            route, path_id = found
            response = await self._respond(route, Request(scope, receive), path_id)
        await response(scope, receive, send)

    def _find(self, scope: Scope) -> tuple[Route, str] | Response:
        """The route and the id in the path, or what is answered if there is none. Writes the path of the
        route into the scope, also if only the method does not fit."""
        path, method = scope["path"], scope["method"]
        by_method = self._exact.get(path)
        if by_method is not None:
            scope[ROUTE_KEY] = path
            route = by_method.get(method)
            return _wrong_method(by_method) if route is None else (route, "")
        nearest: dict[str, Route] | None = None
        head, slash, last = path.rpartition("/")
        ending = self._ending.get(head + slash)
        for template in self._templates if ending is None or ":" in last else (ending,):
            path_id = template.id_in(path)
            if path_id is not None:
                route = template.by_method.get(method)
                if route is not None:
                    scope[ROUTE_KEY] = route.path
                    return route, path_id
                nearest = nearest or template.by_method
        if nearest is None:
            return problem(
                Refused(Code.NOT_FOUND, "this address leads nowhere; /docs lists the ones that do")
            )
        scope[ROUTE_KEY] = next(iter(nearest.values())).path
        return _wrong_method(nearest)

    async def _respond(self, route: Route, request: Request, path_id: str) -> Response:
        try:
            result = await route.answer(self._deps, request, path_id)
        except Exception as fault:
            result = refusal_of(fault, request.scope["path"])
        if route.counts_commands and self._metrics is not None:
            for outcome in _outcomes(result):
                self._metrics.commands.add((outcome,))
        if isinstance(result, Refused):
            return problem(result)
        return result.response if isinstance(result, CommandsAnswer) else result


def _outcomes(result: Result) -> tuple[str, ...]:
    if isinstance(result, CommandsAnswer):
        return result.outcomes
    return (result.code.value,) if isinstance(result, Refused) else ()


def _wrong_method(by_method: dict[str, Route]) -> Response:
    response = problem(Refused(Code.METHOD_NOT_ALLOWED, "this address does not take that method"))
    response.headers["Allow"] = ", ".join(sorted(by_method))
    return response
