"""What the invoker's own port serves: the internal API, callbacks that were passed on to it, and health.

Each call has its own key: the shared secret, or the token of the attempt. Health and figures ask for none,
and name no tenants.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

CALLBACKS = "/v1/callbacks/"
HEALTH = frozenset({"/livez", "/readyz", "/metrics"})


class Front:
    def __init__(self, internal: ASGIApp, callbacks: ASGIApp, health: ASGIApp) -> None:
        self._internal = internal
        self._callbacks = callbacks
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._internal
        if scope["type"] == "http":
            path: str = scope["path"]
            if path.startswith(CALLBACKS):
                app = self._callbacks
            elif path in HEALTH:
                app = self._health
        await app(scope, receive, send)
