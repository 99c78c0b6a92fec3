"""API keys for operators: list, make, revoke.

A key's text is in one answer only, that of the call that made it. An administrator who is limited to some
tenants sees and revokes the keys of those tenants alone, and gives away nothing that they do not have.
"""

from lucius.api.bodies import read_object
from lucius.api.gate import Principal
from lucius.api.problems import answer
from lucius.api.routing import Call, Result
from lucius.contracts.keys import KeyRequest, StoredKey, is_key_id, key_view, parse_key_wish
from lucius.core.refusal import Code, FieldError, Refused


async def list_keys(call: Call) -> Result:
    items = [key_view(key) for key in await call.deps.keys.all() if _covers(call.caller, key)]
    return answer({"items": items, "next_cursor": None})


async def create_key(call: Call) -> Result:
    document = await read_object(call.request)
    if isinstance(document, Refused):
        return document
    wanted = parse_key_wish(document)
    if isinstance(wanted, Refused):
        return wanted
    excess = _excess(call.caller, wanted)
    if excess is not None:
        return excess
    made = await call.deps.keys.create(wanted)
    if isinstance(made, Refused):
        return made
    shown = {**key_view(made.key), "key": made.text}
    return answer(shown, status=201, headers={"Cache-Control": "no-store"})


async def revoke_key(call: Call) -> Result:
    keys = call.deps.keys
    key = await keys.find(call.path_id) if is_key_id(call.path_id) else None
    if key is not None and _covers(call.caller, key):
        key = await keys.revoke(call.path_id)
        if key is not None:
            return answer(key_view(key))
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
    return Refused(Code.FORBIDDEN, "a key cannot give more than it has", tuple(faults))
