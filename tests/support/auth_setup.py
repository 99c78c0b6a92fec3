"""A deployment that asks every caller for a key, the keys to it, and an issuer of tokens on loopback."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from tests.support.api_setup import Caller, Callers

from lucius.api.app import make_app
from lucius.assembly import Embedded
from lucius.contracts.keys import KeyRequest, Role, names_of
from lucius.core.refusal import Refused
from lucius.ledger.api_keys import CreatedKey

Answered = tuple[int, bytes, dict[str, str]]
REQUIRED = {"LUCIUS_AUTH": "required"}
ALL_ROLES = tuple(Role)


class Guarded:
    """A deployment behind a gate, and a client for every credential."""

    def __init__(self, lucius: Embedded) -> None:
        self.lucius = lucius
        self._app = make_app(lucius.deployment)

    async def key(
        self, *roles: str, tenants: tuple[str, ...] = ("*",), services: tuple[str, ...] = ("*",)
    ) -> CreatedKey:
        """Straight into the store: the rules for wishes are not asked, so that the gate is seen alone."""
        wanted = KeyRequest(
            name="a test",
            tenants=names_of(tenants),
            roles=frozenset(Role(role) for role in roles),
            services=names_of(services),
        )
        made = await self.lucius.deployment.keys.create(wanted)
        assert not isinstance(made, Refused)
        return made

    def caller(self, credential: str | None, **headers: str) -> Caller:
        given = dict(headers)
        if credential is not None:
            given["authorization"] = f"Bearer {credential}"
        transport = httpx2.ASGITransport(self._app, raise_app_exceptions=False)
        client = httpx2.AsyncClient(transport=transport, base_url="http://house", headers=given, timeout=60)
        return Caller(client)

    async def holding(self, *roles: str, **limits: tuple[str, ...]) -> Caller:
        return self.caller((await self.key(*roles, **limits)).text)


async def guarded(callers: Callers, env: dict[str, str] | None = None, **more: Any) -> Guarded:
    deployment = await callers.open({**REQUIRED, **(env or {})}, **more)
    return Guarded(deployment.lucius)


class Issuer:
    """Signs tokens, and serves the keys to check them with over HTTP."""

    AUDIENCE = "lucius-test"

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.documents: dict[str, Answered] = {}
        self.asked: list[str] = []
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                self._send(*issuer.page(self.path))

            def do_POST(self) -> None:
                issuer.asked.append(self.path)
                self._send(*issuer.posted(self.path, self.rfile.read(int(self.headers["Content-Length"]))))

            def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.serve("/.well-known/openid-configuration", {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"})
        self.serve("/jwks", {"keys": [self.rsa_jwk(), self.ec_jwk()]})
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def serve(self, path: str, document: Any, *, status: int = 200, **headers: str) -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.documents[path] = (status, body, headers)

    def page(self, path: str) -> Answered:
        return self.documents.get(path, (404, b"{}", {}))

    def posted(self, path: str, body: bytes) -> Answered:
        return 404, b"{}", {}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def env(self) -> dict[str, str]:
        return {"LUCIUS_OIDC_ISSUER": self.url, "LUCIUS_OIDC_AUDIENCE": self.AUDIENCE}

    def rsa_jwk(self, **more: Any) -> dict[str, Any]:
        jwk: dict[str, Any] = RSAAlgorithm.to_jwk(self.rsa.public_key(), as_dict=True)
        return {**jwk, "kid": "rsa-1", "alg": "RS256", "use": "sig", **more}

    def ec_jwk(self, **more: Any) -> dict[str, Any]:
        jwk: dict[str, Any] = ECAlgorithm.to_jwk(self.ec.public_key(), as_dict=True)
        return {**jwk, "kid": "ec-1", **more}

    def claims(self, **changes: Any) -> dict[str, Any]:
        """`...` leaves a claim out."""
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": self.AUDIENCE,
            "sub": "somebody",
            "exp": now + 600,
            "iat": now,
            "tenants": ["acme"],
            "roles": ["read", "submit"],
        }
        return {name: value for name, value in {**claims, **changes}.items() if value is not ...}

    def token(self, *, key: Any = None, alg: str = "RS256", kid: str | None = "rsa-1", **changes: Any) -> str:
        headers = {} if kid is None else {"kid": kid}
        return jwt.encode(self.claims(**changes), key or self.rsa, alg, headers=headers)

    def forged(self, header: dict[str, Any], signature: bytes = b"", **changes: Any) -> str:
        """A token whose header says anything, with any signature."""
        parts = (json.dumps(header).encode(), json.dumps(self.claims(**changes)).encode(), signature)
        return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)

    def public_pem(self) -> bytes:
        return self.rsa.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )


class LoginIssuer(Issuer):
    """One at which people log in, too: the code flow with PKCE, for pages of any host.
    `refusal`: what it says instead of a code. `given`: the claims of its tokens."""

    CLIENT = "lucius-console"
    ANY_PAGE = {"Access-Control-Allow-Origin": "*"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.refusal = ""
        self.given: dict[str, Any] = {}
        self._codes: dict[str, dict[str, str]] = {}
        document = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/jwks",
            "authorization_endpoint": f"{self.url}/authorize?theme=plain",
            "token_endpoint": f"{self.url}/token",
        }
        body = json.dumps(document).encode()
        self.documents["/.well-known/openid-configuration"] = 200, body, self.ANY_PAGE

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, "LUCIUS_OIDC_CLIENT_ID": self.CLIENT, "LUCIUS_OIDC_SCOPES": "openid lucius"}

    def page(self, path: str) -> Answered:
        if not path.startswith("/authorize?"):
            return super().page(path)
        asked = dict(parse_qsl(urlsplit(path).query))
        wanted = (asked["response_type"], asked["client_id"], asked["scope"], asked["code_challenge_method"])
        assert wanted == ("code", self.CLIENT, "openid lucius", "S256")
        said = {"state": asked["state"], "iss": self.url}
        if self.refusal:
            said |= {"error": "access_denied", "error_description": self.refusal}
        else:
            said["code"] = secrets.token_urlsafe()
            self._codes[said["code"]] = asked
        return 302, b"", {"Location": f"{asked['redirect_uri']}?{urlencode(said)}"}

    def posted(self, path: str, body: bytes) -> Answered:
        form = dict(parse_qsl(body.decode()))
        asked = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if (
            asked is None
            or path != "/token"
            or (form["grant_type"], form["client_id"]) != ("authorization_code", self.CLIENT)
            or (form["redirect_uri"], challenge) != (asked["redirect_uri"], asked["code_challenge"])
        ):
            return 400, b'{"error": "invalid_grant"}', self.ANY_PAGE
        given = {"access_token": self.token(**self.given), "token_type": "Bearer"}
        return 200, json.dumps(given).encode(), self.ANY_PAGE


@contextmanager
def an_issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    try:
        yield issuer
    finally:
        issuer.close()
