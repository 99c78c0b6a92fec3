"""API keys, described."""

from typing import Final

from lucius.api.described.groups import Operation, OperationGroup, RequestBody, ResponseDescription, in_path
from lucius.api.described.jobs import page_of
from lucius.contracts.keys import KEY_NAME_LENGTH_MAX, KEY_SERVICES_MAX, KEY_TENANTS_MAX, Role
from lucius.contracts.schemas import MAYBE_TIME, TEXT, TIME, Schema, closed, named, one_of, opened
from lucius.core.model import Json
from lucius.core.refusal import Code

_MEMBERS: Final[dict[str, Schema]] = {
    "keyId": TEXT,
    "name": TEXT,
    "tenants": {"type": "array", "items": TEXT, "description": "`*` stands for all of them."},
    "roles": {"type": "array", "items": named("Role")},
    "services": {"type": "array", "items": TEXT, "description": "Whose directives it may lease."},
    "created_at": TIME,
    "revoked_at": MAYBE_TIME,
}
_KEY: Final[dict[str, Json]] = {
    "keyId": "9f3c5a7e1b2d4860",
    "name": "invoices of acme",
    "tenants": ["acme"],
    "roles": ["submit", "read"],
    "services": [],
    "created_at": "2026-01-27T09:00:00.000Z",
    "revoked_at": None,
}

_SCHEMAS: Final[dict[str, Schema]] = {
    "Role": one_of("What a caller may do.", [role.value for role in Role]),
    "ApiKey": opened("What may be shown of an API key.", {**_MEMBERS}),
    "ApiKeyPage": page_of("ApiKey"),
    "NewApiKey": opened(
        "An API key on the one occasion on which it is shown.",
        {
            **_MEMBERS,
            "key": {"type": "string", "description": "Goes in `Authorization: Bearer`. Keep it safe."},
        },
    ),
    "ApiKeyWish": closed(
        "The key that is wanted.",
        {
            "name": {"type": "string", "minLength": 1, "maxLength": KEY_NAME_LENGTH_MAX},
            "tenants": {
                "type": "array",
                "minItems": 1,
                "maxItems": KEY_TENANTS_MAX,
                "items": TEXT,
                "description": "`*` stands for all of them, and then stands alone.",
            },
            "roles": {"type": "array", "minItems": 1, "items": named("Role")},
            "services": {
                "type": ["array", "null"],
                "maxItems": KEY_SERVICES_MAX,
                "items": TEXT,
                "description": "For the role `work`: whose directives it may lease; `*` stands for all.",
            },
        },
        ["name", "tenants", "roles"],
    ),
}

_EXAMPLES: Final[dict[str, Json]] = {
    "ApiKey": {**_KEY, "revoked_at": "2026-01-28T09:00:00.000Z"},
    "ApiKeyPage": {"items": [_KEY], "next_cursor": None},
    "NewApiKey": {**_KEY, "key": "lk_9f3c5a7e1b2d4860_<64 digits>"},
    "ApiKeyWish": {"name": "invoices of acme", "tenants": ["acme"], "roles": ["submit", "read"]},
}

AREA: Final = OperationGroup(
    tag="keys",
    description="API keys. They are kept as hashes: the text of a key is in the answer that made it, and "
    "nowhere else.",
    operations={
        "listKeys": Operation(
            summary="List API keys",
            description="The keys of the caller's tenants, the newest first; never their secrets.",
            answers=(ResponseDescription(description="The keys, on one page.", schema="ApiKeyPage"),),
        ),
        "createKey": Operation(
            summary="Make an API key",
            description="A key cannot give more than it has: an administrator of some tenants makes keys "
            "for those.",
            body=RequestBody(schema="ApiKeyWish", description="What the key is to open."),
            answers=(
                ResponseDescription(status=201, description="The key, with its text.", schema="NewApiKey"),
            ),
            refusals=(Code.MALFORMED_JSON, Code.INVALID_ENVELOPE, Code.INVALID_REQUEST, Code.BODY_TOO_LARGE),
        ),
        "revokeKey": Operation(
            summary="Revoke an API key",
            description="Within two seconds it opens nothing. Revoking again changes nothing.",
            answers=(ResponseDescription(description="The key.", schema="ApiKey"),),
            refusals=(Code.NOT_FOUND,),
        ),
    },
    schemas=_SCHEMAS,
    examples=_EXAMPLES,
    parameters={"KeyId": in_path("keyId", TEXT, "The id of the key.")},
)
