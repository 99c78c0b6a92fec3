"""Tokens of an identity provider: taken when everything about them is right, and only then."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from structlog.testing import capture_logs
from tests.support.api_setup import Callers, check_problem
from tests.support.auth_setup import Guarded, Issuer, an_issuer, guarded

from lucius.api.jwks import (
    DOCUMENT_BYTES_MAX,
    RETRY_EVERY_MS,
    STALE_MS_MAX,
    UNKNOWN_KID_EVERY_MS,
    JwksEndpoint,
    JwksFault,
    KeySet,
    fetch,
    is_fetchable,
    pinned_keys,
)
from lucius.settings import BadSetting, read_settings

BOTH = frozenset({"RS256", "ES256"})


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with an_issuer() as issuer:
        yield issuer


@pytest.fixture
async def gated(callers: Callers, issuer: Issuer) -> Guarded:
    return await guarded(callers, issuer.env)


async def test_a_good_token_has_the_tenants_and_roles_of_its_claims(gated: Guarded, issuer: Issuer) -> None:
    for token in (issuer.token(), issuer.token(key=issuer.ec, alg="ES256", kid="ec-1")):
        caller = gated.caller(token)
        job_id = await caller.submit(tenant_id="Acme")
        assert (await caller.job(job_id))["tenant_id"] == "Acme"
        check_problem(await caller.control(job_id, "cancel"), 403, "FORBIDDEN")
        check_problem(await caller.http.get("/v1/jobs?tenant_id=blue"), 403, "FORBIDDEN")
    everything = gated.caller(issuer.token(tenants="*", roles="control admin work", services=["ocr"]))
    assert (await everything.control(job_id, "cancel")).status_code == 202
    assert (await everything.post("/v1/directives:lease", {"service": "ocr"})).status_code == 200
    check_problem(await everything.post("/v1/directives:lease", {"service": "sis"}), 403, "FORBIDDEN")


@pytest.mark.parametrize("claim", ["tenants", "roles"])
@pytest.mark.parametrize("value", [..., None, [], {}, 7, [["*"]], [None]])
async def test_a_claim_that_is_missing_or_odd_gives_nothing(
    gated: Guarded, issuer: Issuer, claim: str, value: Any
) -> None:
    caller = gated.caller(issuer.token(**{claim: value}))
    check_problem(await caller.http.get("/v1/jobs"), 403, "FORBIDDEN")


async def test_roles_that_nobody_knows_are_passed_over(gated: Guarded, issuer: Issuer) -> None:
    caller = gated.caller(issuer.token(roles=["owner", "read", "ADMIN"]))
    assert (await caller.http.get("/v1/jobs")).status_code == 200
    check_problem(await caller.http.get("/v1/admin/keys"), 403, "FORBIDDEN")


def _bad_tokens(issuer: Issuer) -> dict[str, str]:
    now = int(time.time())
    rs256 = {"alg": "RS256", "kid": "rsa-1", "typ": "JWT"}
    good = issuer.token()
    head, body, signature = good.split(".")
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    confused = issuer.forged({"alg": "HS256", "kid": "rsa-1"})
    signed = confused.rpartition(".")[0]
    mac = hmac.new(issuer.public_pem(), signed.encode(), hashlib.sha256).digest()
    return {
        "expired": issuer.token(exp=now - 120),
        "without an end": issuer.token(exp=...),
        "with a text for an end": issuer.forged(rs256, exp="tomorrow"),
        "not yet valid": issuer.token(nbf=now + 600),
        "of another audience": issuer.token(aud="somebody-else"),
        "without an audience": issuer.token(aud=...),
        "of another issuer": issuer.token(iss="https://evil.example"),
        "without an issuer": issuer.token(iss=...),
        "unsigned": issuer.forged(rs256),
        "alg none": issuer.forged({"alg": "none"}),
        "alg None": issuer.forged({"alg": "None", "kid": "rsa-1"}),
        "alg none, with the good one's signature": f"{issuer.forged({'alg': 'none'})}{signature}",
        "alg missing": issuer.forged({"kid": "rsa-1"}),
        "alg a list": issuer.forged({"alg": ["RS256"], "kid": "rsa-1"}),
        "kid a list": issuer.forged({"alg": "RS256", "kid": ["rsa-1"]}),
        "HS256 with the public key": f"{signed}.{jwt.utils.base64url_encode(mac).decode()}",
        "RS512 with a key pinned to RS256": issuer.token(alg="RS512"),
        "ES256 with an RSA key's name": issuer.token(key=issuer.ec, alg="ES256", kid="rsa-1"),
        "of a stranger's key": issuer.token(key=stranger),
        "of an unknown key": issuer.token(key=stranger, kid="rsa-9"),
        "without a key's name": issuer.token(kid=None),
        "with its own key": issuer.token(key=stranger, kid="rsa-1"),
        "with another body": f"{head}.{issuer.forged(rs256, tenants='*').split('.')[1]}.{signature}",
        "with a critical extension": issuer.forged({**rs256, "crit": ["x"], "x": 1}),
        "cut short": good[:-20],
        "in two parts": f"{head}.{body}",
        "deeply nested": issuer.forged(rs256, deep="[" * 5),
        "nothing like a token": "abc",
    }


async def test_a_token_with_anything_wrong_about_it_is_refused(gated: Guarded, issuer: Issuer) -> None:
    assert (await gated.caller(issuer.token()).http.get("/v1/jobs")).status_code == 200
    for wrong, token in _bad_tokens(issuer).items():
        with capture_logs() as logged:
            response = await gated.caller(token).http.get("/v1/jobs")
        assert response.status_code == 401, wrong
        document = check_problem(response, 401, "UNAUTHENTICATED")
        heard = f"{logged}{document}"
        parts = [part for part in token.split(".") if len(part) > 20]
        assert not any(part in heard for part in parts), wrong


async def test_a_little_clock_skew_is_forgiven(gated: Guarded, issuer: Issuer) -> None:
    token = issuer.token(exp=int(time.time()) - 5)
    assert (await gated.caller(token).http.get("/v1/jobs")).status_code == 200


async def test_keys_work_beside_tokens(gated: Guarded) -> None:
    assert (await (await gated.holding("read")).http.get("/v1/protocols")).status_code == 200


async def test_without_an_issuer_no_token_is_taken(callers: Callers, issuer: Issuer) -> None:
    deployment = await guarded(callers)
    check_problem(await deployment.caller(issuer.token()).http.get("/v1/jobs"), 401, "UNAUTHENTICATED")


async def test_an_issuer_that_was_never_reached_is_a_passing_fault(callers: Callers) -> None:
    with an_issuer() as gone:
        env, token = gone.env, gone.token()
    deployment = await guarded(callers, env)
    response = await deployment.caller(token).http.get("/v1/jobs")
    check_problem(response, 503, "SYSTEM_SATURATED")
    assert int(response.headers["retry-after"]) > 0
    assert (await (await deployment.holding("read")).http.get("/v1/protocols")).status_code == 200


async def test_claims_and_algorithms_go_by_the_settings(callers: Callers, issuer: Issuer) -> None:
    env = {
        **issuer.env,
        "LUCIUS_OIDC_JWKS_URL": f"{issuer.url}/jwks",
        "LUCIUS_OIDC_ALGORITHMS": "ES256",
        "LUCIUS_OIDC_TENANTS_CLAIM": "https://lucius/tenants",
        "LUCIUS_OIDC_ROLES_CLAIM": "groups",
    }
    deployment = await guarded(callers, env)
    claims: dict[str, Any] = {"https://lucius/tenants": ["blue"], "groups": ["submit", "read"]}
    caller = deployment.caller(issuer.token(key=issuer.ec, alg="ES256", kid="ec-1", **claims))
    await caller.submit(tenant_id="blue")
    check_problem(await caller.http.get("/v1/jobs?tenant_id=acme"), 403, "FORBIDDEN")
    check_problem(
        await deployment.caller(issuer.token(**claims)).http.get("/v1/jobs"), 401, "UNAUTHENTICATED"
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"LUCIUS_AUTH": "maybe"}, "LUCIUS_AUTH"),
        ({"LUCIUS_AUTH": ""}, "LUCIUS_AUTH"),
        ({"LUCIUS_AUTH": "open"}, "LUCIUS_AUTH"),
        ({"LUCIUS_OIDC_AUDIENCE": ""}, "LUCIUS_OIDC_AUDIENCE"),
        ({"LUCIUS_OIDC_ISSUER": "http://issuer.example"}, "LUCIUS_OIDC_ISSUER"),
        ({"LUCIUS_OIDC_ISSUER": "https://user:word@issuer.example"}, "LUCIUS_OIDC_ISSUER"),
        ({"LUCIUS_OIDC_JWKS_URL": "file:///etc/keys"}, "LUCIUS_OIDC_JWKS_URL"),
        ({"LUCIUS_OIDC_ALGORITHMS": "none"}, "LUCIUS_OIDC_ALGORITHMS"),
        ({"LUCIUS_OIDC_ALGORITHMS": "RS256,HS256"}, "LUCIUS_OIDC_ALGORITHMS"),
    ],
)
def test_settings_that_would_be_unsafe_are_refused(changes: dict[str, str], named: str) -> None:
    good = {
        "LUCIUS_AUTH": "required",
        "LUCIUS_OIDC_ISSUER": "https://issuer.example",
        "LUCIUS_OIDC_AUDIENCE": "lucius",
    }
    settings = read_settings(good)
    assert settings.oidc is not None and settings.oidc.algorithms == BOTH
    with pytest.raises(BadSetting, match=named) as refused:
        read_settings({**good, **changes})
    assert "word" not in str(refused.value)


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def key_set(issuer: Issuer, clock: Clock) -> KeySet:
    return KeySet(JwksEndpoint(issuer=issuer.url, jwks_url=None), BOTH, now_ms=clock)


async def test_keys_are_fetched_once_and_again_for_a_new_name_but_not_often() -> None:
    with an_issuer() as issuer:
        clock = Clock()
        keys = key_set(issuer, clock)
        found = await asyncio.gather(*(keys.find("rsa-1", "RS256") for _ in range(20)))
        assert all(key is not None for key in found)
        assert issuer.asked.count("/jwks") == 1
        issuer.serve("/jwks", {"keys": [issuer.rsa_jwk(kid="rsa-2")]})
        for _ in range(5):
            assert await keys.find("rsa-2", "RS256") is None
        assert issuer.asked.count("/jwks") == 1
        clock.ms += UNKNOWN_KID_EVERY_MS
        found = await asyncio.gather(*(keys.find("rsa-2", "RS256") for _ in range(20)))
        assert all(key is not None for key in found)
        assert issuer.asked.count("/jwks") == 2
        # The old one was withdrawn with the same fetch, and asking for it does not start another.
        assert await keys.find("rsa-1", "RS256") is None
        assert issuer.asked.count("/jwks") == 2


@pytest.mark.parametrize(
    "broken",
    [
        (500, b"{}", {}),
        (302, b"", {"Location": "/elsewhere"}),
        (200, b"not json", {}),
        (200, b'{"keys": []}', {}),
        (200, b" " * (DOCUMENT_BYTES_MAX + 1), {}),
    ],
)
async def test_the_last_good_copy_serves_while_the_issuer_is_unwell(
    broken: tuple[int, bytes, dict[str, str]],
) -> None:
    with an_issuer() as issuer:
        issuer.serve("/elsewhere", {"keys": [issuer.rsa_jwk(kid="rsa-2")]})
        clock = Clock()
        keys = key_set(issuer, clock)
        assert await keys.find("rsa-1", "RS256") is not None
        issuer.documents["/jwks"] = broken
        clock.ms += STALE_MS_MAX - 1
        assert await keys.find("rsa-1", "RS256") is not None
        assert await keys.find("rsa-2", "RS256") is None
        assert "/elsewhere" not in issuer.asked
        clock.ms += 1
        with pytest.raises(JwksFault):
            await keys.find("rsa-1", "RS256")
        issuer.serve("/jwks", {"keys": [issuer.rsa_jwk()]})
        with pytest.raises(JwksFault):
            await keys.find("rsa-1", "RS256")
        clock.ms += RETRY_EVERY_MS
        assert await keys.find("rsa-1", "RS256") is not None


async def test_a_discovery_document_of_somebody_else_is_not_followed() -> None:
    with an_issuer() as issuer:
        documents: tuple[Any, ...] = (
            {"issuer": "https://evil.example", "jwks_uri": f"{issuer.url}/jwks"},
            {"issuer": issuer.url, "jwks_uri": "http://evil.example/jwks"},
            {"issuer": issuer.url},
            [],
        )
        for document in documents:
            issuer.serve("/.well-known/openid-configuration", document)
            with pytest.raises(JwksFault):
                await key_set(issuer, Clock()).find("rsa-1", "RS256")
        assert "/jwks" not in issuer.asked


def test_keys_are_pinned_to_what_their_type_allows() -> None:
    with an_issuer() as issuer:

        def pinned(*jwks: dict[str, Any]) -> list[frozenset[str]]:
            return [key.algorithms for key in pinned_keys(json.dumps({"keys": jwks}).encode(), BOTH)]

        assert pinned(issuer.rsa_jwk(alg=None), issuer.ec_jwk()) == [{"RS256"}, {"ES256"}]
        shared = {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "kid": "x", "alg": "HS256"}
        small = rsa.generate_private_key(public_exponent=65537, key_size=1024)
        other_curve = ec.generate_private_key(ec.SECP384R1())
        private = jwt.algorithms.RSAAlgorithm.to_jwk(issuer.rsa, as_dict=True)
        useless = [
            shared,
            {**shared, "alg": "RS256"},
            issuer.rsa_jwk(alg="HS256"),
            issuer.rsa_jwk(alg="ES256"),
            issuer.rsa_jwk(alg="RS512"),
            issuer.rsa_jwk(use="enc"),
            issuer.rsa_jwk(n="!"),
            {**private, "kid": "leaked"},
            jwt.algorithms.RSAAlgorithm.to_jwk(small.public_key(), as_dict=True),
            jwt.algorithms.ECAlgorithm.to_jwk(other_curve.public_key(), as_dict=True),
            {"kty": 7},
            {},
        ]
        assert pinned(issuer.ec_jwk(), *useless) == [{"ES256"}]
        with pytest.raises(JwksFault):
            pinned(*useless)


async def test_only_safe_addresses_are_fetched() -> None:
    for url in (
        "ftp://a/b",
        "http://issuer.example",
        "https://",
        "https://u:p@issuer.example",
        "http://[",
        "",
    ):
        assert not is_fetchable(url)
        with pytest.raises(JwksFault):
            await fetch(url)
    assert is_fetchable("https://issuer.example/x") and is_fetchable("http://127.0.0.1:1/x")
