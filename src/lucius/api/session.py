"""Who the caller is and what they meet here: what a page asks before anything else."""

from lucius import __version__
from lucius.api.problems import answer
from lucius.api.routing import OpenCall, Result
from lucius.contracts.times import rfc3339
from lucius.core.model import Json
from lucius.core.refusal import Refused


async def get_session(call: OpenCall) -> Result:
    """Answers without a credential, too: a page has to learn that one is needed."""
    deps = call.deps
    known = await deps.gate.identify(call.request)
    caller = None if isinstance(known, Refused) else known
    installation = deps.installation
    oidc = installation.oidc
    return answer(
        {
            "authenticated": caller is not None,
            "problem": known.message if isinstance(known, Refused) else None,
            "auth": "required" if installation.auth_required else "open",
            "login": {
                "key": installation.auth_required,
                "oidc": None
                if oidc is None
                else {
                    "issuer": oidc.issuer,
                    "audience": list(oidc.audiences),
                    "client_id": oidc.client_id,
                    "scopes": oidc.scopes,
                },
            },
            "name": None if caller is None else caller.name,
            "roles": [] if caller is None else sorted(role.value for role in caller.roles),
            "tenants": [] if caller is None else _names(caller.tenants),
            "services": [] if caller is None else _names(caller.services),
            "engine": installation.engine.value,
            "links": {"trace": installation.trace_link},
            "artifacts": installation.artifacts,
            "version": __version__,
            "now": rfc3339(deps.now_ms()),
        }
    )


def _names(limited_to: frozenset[str] | None) -> Json:
    return "*" if limited_to is None else sorted(limited_to)
