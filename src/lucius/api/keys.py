"""API keys for operators: list, make, revoke.

A key's text is in one answer only, that of the call that made it. An administrator who is limited to some
tenants sees and revokes the keys of those tenants alone, and gives away nothing that they do not have.
"""

from fastapi import APIRouter, Request, Response

from lucius.api.bodies import read_object
from lucius.api.dependencies import ApiDependencies
from lucius.api.gate import Principal
from lucius.api.problems import answer, problem
from lucius.contracts.keys import KeyRequest, Role, StoredKey, is_key_id, key_view, parse_key_wish
from lucius.core.refusal import Code, FieldError, Refused


def routes(deps: ApiDependencies) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/admin/keys", operation_id="listKeys")
    async def list_keys(request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.ADMIN)
        if isinstance(caller, Refused):
            return problem(caller)
        items = [key_view(key) for key in await deps.keys.all() if _covers(caller, key)]
        return answer({"items": items, "next_cursor": None})

    @router.post("/v1/admin/keys", operation_id="createKey")
    async def create_key(request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.ADMIN)
        if isinstance(caller, Refused):
            return problem(caller)
        document = await read_object(request)
        if isinstance(document, Refused):
            return problem(document)
        wanted = parse_key_wish(document)
        if isinstance(wanted, Refused):
            return problem(wanted)
        excess = _excess(caller, wanted)
        if excess is not None:
            return problem(excess)
        made = await deps.keys.create(wanted)
        if isinstance(made, Refused):
            return problem(made)
        shown = {**key_view(made.key), "key": made.text}
        return answer(shown, status=201, headers={"Cache-Control": "no-store"})

    @router.post("/v1/admin/keys/{key_id}:revoke", operation_id="revokeKey")
    async def revoke_key(key_id: str, request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.ADMIN)
        if isinstance(caller, Refused):
            return problem(caller)
        key = await _revoked(deps, caller, key_id)
        return problem(key) if isinstance(key, Refused) else answer(key_view(key))

    return router


async def _revoked(deps: ApiDependencies, caller: Principal, key_id: str) -> StoredKey | Refused:
    key = await deps.keys.find(key_id) if is_key_id(key_id) else None
    if key is not None and _covers(caller, key):
        key = await deps.keys.revoke(key_id)
        if key is not None:
            return key
    return Refused(Code.NOT_FOUND, "there is no key of this id")


def _covers(caller: Principal, key: StoredKey) -> bool:
    """Whether everything the key opens lies within what the caller looks after."""
    return caller.tenants is None or (key.tenants is not None and caller.tenants.issuperset(key.tenants))


def _excess(caller: Principal, wanted: KeyRequest) -> Refused | None:
    """What an administrator of some tenants would give away without having it."""
    if caller.tenants is None:
        return None
    faults = []
    if wanted.tenants is None or not wanted.tenants <= caller.tenants:
        faults.append(FieldError("/tenants", "reach beyond the caller's own"))
    if not wanted.roles <= caller.roles:
        faults.append(FieldError("/roles", "reach beyond the caller's own"))
    if not faults:
        return None
    return Refused(Code.FORBIDDEN, "nobody can give more than they have", tuple(faults))
