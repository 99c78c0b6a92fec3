"""Callback tokens: what a service shows to answer for its attempt, and for nothing else.

A token is signed, bound to (job, step, attempt, lease), minted when the directive leaves and never stored. It
has no end of life of its own: a late answer is evidence, and evidence may come late. Keys rotate: the newest
signs, the others still verify.

A service shows its token with every answer. What was found out about the latest ones is remembered under a
hash of theirs: the tokens themselves are kept nowhere.
"""

from collections.abc import Sequence
from hashlib import blake2b

import jwt
import msgspec

from lucius.core.attempt import AttemptRef

ALGORITHM = "HS256"
AUDIENCE = "lucius-callback"
REMEMBERED_MAX = 10_000


class SigningKey(msgspec.Struct, frozen=True, kw_only=True):
    kid: str
    secret: str


class CallbackTokens:
    def __init__(self, keys: Sequence[SigningKey]) -> None:
        """`keys`: the newest first."""
        if not keys:
            raise ValueError("callback tokens need at least one signing key")
        self._newest = keys[0]
        self._secrets = {key.kid: key.secret for key in keys}
        self._remembered: dict[bytes, AttemptRef] = {}

    def learn(self, keys: Sequence[SigningKey]) -> None:
        """Takes tokens of these keys from now on: others may sign with a newer one already. The key that it
        signs with stays the same."""
        secrets = {key.kid: key.secret for key in (*keys, self._newest)}
        if secrets != self._secrets:
            self._secrets = secrets
            self._remembered.clear()  # some may have been signed with a key that no longer counts

    def mint(self, attempt: AttemptRef) -> str:
        claims = {
            "aud": AUDIENCE,
            "job": attempt.job_id,
            "step": attempt.step_id,
            "att": attempt.attempt_no,
            "lease": attempt.lease_id,
        }
        token = jwt.encode(claims, self._newest.secret, ALGORITHM, headers={"kid": self._newest.kid})
        self._remember(_hash(token), attempt)
        return token

    def read(self, token: str) -> AttemptRef | None:
        """The attempt this token opens; None for anything that is not a token of ours."""
        hashed = _hash(token)
        attempt = self._remembered.get(hashed)
        if attempt is None:
            attempt = self._verified(token)
            if attempt is not None:
                self._remember(hashed, attempt)
        return attempt

    def _remember(self, hashed: bytes, attempt: AttemptRef) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[hashed] = attempt

    def _verified(self, token: str) -> AttemptRef | None:
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            secret = self._secrets.get(kid) if isinstance(kid, str) else None
            if secret is None:
                return None
            claims = jwt.decode(
                token,
                secret,
                algorithms=[ALGORITHM],
                audience=AUDIENCE,
                options={"require": ["aud", "job", "step", "att", "lease"]},
            )
            return msgspec.convert(
                {
                    "job_id": claims["job"],
                    "step_id": claims["step"],
                    "attempt_no": claims["att"],
                    "lease_id": claims["lease"],
                },
                type=AttemptRef,
            )
        except (jwt.InvalidTokenError, msgspec.ValidationError, ValueError):
            return None


def _hash(token: str) -> bytes:
    # Whatever a header may hold: a token of ours is ASCII, and what is not is no token.
    return blake2b(token.encode("utf-8", "surrogatepass"), digest_size=32).digest()
