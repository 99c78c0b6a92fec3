"""Tokens of an identity provider: whom they speak for.

In: the text of a JWT. Out: a principal, or why it is not accepted. The issuer's keys decide which algorithm
verifies (see `jwks`), never the token alone; issuer, audience and end of life must be there and right.
Tenants, roles and services come from claims: what is missing gives nothing; unknown roles are passed over.
"""

from collections.abc import Mapping
from typing import Any, Final

import jwt
import msgspec

from lucius.api.gate import Principal
from lucius.api.jwks import JwksFault, KeySet
from lucius.contracts.keys import ROLES, Role, names_of
from lucius.core.refusal import Code, Refused
from lucius.core.routing import normalise

LEEWAY_SECONDS: Final = 30
CLAIM_NAMES_MAX: Final = 1_000
SUBJECT_LENGTH_MAX: Final = 128
RETRY_AFTER_SECONDS: Final = 5

_OPTIONS: Final[Any] = {"require": ["exp", "aud", "iss"]}


class OidcConfig(msgspec.Struct, frozen=True, kw_only=True):
    issuer: str
    audiences: tuple[str, ...]
    jwks_url: str | None = None
    algorithms: frozenset[str] = frozenset({"RS256", "ES256"})
    tenants_claim: str = "tenants"
    roles_claim: str = "roles"
    services_claim: str = "services"
    # For people: who the console is to the issuer, and what it asks for. None: it has no login there.
    client_id: str | None = None
    scopes: str = "openid"


class OidcTokens:
    def __init__(self, config: OidcConfig, keys: KeySet) -> None:
        self._config = config
        self._keys = keys

    async def read(self, token: str) -> Principal | Refused:
        try:
            header = jwt.get_unverified_header(token)
            algorithm, kid = header.get("alg"), header.get("kid")
            if not isinstance(algorithm, str) or algorithm not in self._config.algorithms:
                return _refused("the token is not signed with an algorithm that is allowed here")
            pinned = await self._keys.find(kid, algorithm)
            if pinned is None:
                return _refused("the token is not signed with a key of the issuer")
            claims = jwt.decode(
                token,
                pinned.key,
                algorithms=[algorithm],
                audience=self._config.audiences,
                issuer=self._config.issuer,
                leeway=LEEWAY_SECONDS,
                options=_OPTIONS,
            )
        except JwksFault:
            message = "tokens cannot be checked now: the issuer's keys are out of reach"
            return Refused(Code.SYSTEM_SATURATED, message, retry_after_seconds=RETRY_AFTER_SECONDS)
        except jwt.ExpiredSignatureError:
            return _refused("the token has expired")
        except (jwt.InvalidAudienceError, jwt.InvalidIssuerError):
            return _refused("the token is of another issuer or for another audience")
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            # Whatever else is wrong with it: the library's own words might repeat parts of the token.
            return _refused("the token is not valid")
        return self._principal(claims)

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        config = self._config
        subject = claims.get("sub")
        return Principal(
            name=f"subject {subject[:SUBJECT_LENGTH_MAX]}" if isinstance(subject, str) else "a token",
            roles=frozenset(Role(role) for role in _texts(claims.get(config.roles_claim)) if role in ROLES),
            tenants=names_of(normalise(name) for name in _texts(claims.get(config.tenants_claim))),
            services=names_of(_texts(claims.get(config.services_claim))),
        )


def _texts(claim: object) -> list[str]:
    """A claim's strings: an array, or one text with blanks between them, as in `scope`."""
    if isinstance(claim, str):
        claim = claim.split()
    if not isinstance(claim, list):
        return []
    return [text for text in claim[:CLAIM_NAMES_MAX] if isinstance(text, str) and text.strip()]


def _refused(message: str) -> Refused:
    return Refused(Code.UNAUTHENTICATED, message)
