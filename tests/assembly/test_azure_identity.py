"""Who a process is to Azure: a managed identity over loopback, and what is said when there is none."""

import ast
import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import uvicorn
from azure.core.exceptions import ClientAuthenticationError

from lucius.assembly.azure.identity import AzureIdentity, NoIdentity, make_identity, storage_tokens
from lucius.settings import IdentitySettings
from lucius.telemetry.logs import blank_text

CANARY = "canary-5c0ffee"
SCOPE = "https://azconfig.io/.default"
VARIABLES = (
    "AZURE_TENANT_ID",
    "AZURE_CLIENT_ID",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "IDENTITY_ENDPOINT",
    "IDENTITY_HEADER",
    "IMDS_ENDPOINT",
    "MSI_ENDPOINT",
)


SOURCE = Path(__file__).parents[2] / "src" / "lucius"
# Who may know which of Microsoft's packages: import-linter tells only that they are Azure's.
KNOWN_TO = {
    "azure.identity": {"assembly/azure/identity.py"},
    "azure.appconfiguration": {"registry/app_configuration/azure.py"},
    "azure.keyvault": {"registry/app_configuration/azure.py"},
    "azure.data": {
        "ledger/azure_tables/entity.py",
        "ledger/azure_tables/shown.py",
        "ledger/azure_tables/wire.py",
    },
    "azure.servicebus": {
        "bus/service_bus/connection.py",
        "bus/service_bus/message.py",
        "bus/service_bus/receiver.py",
        "bus/service_bus/sender.py",
        "bus/service_bus/sessions.py",
        "provision/service_bus.py",
        "provision/service_bus_rules.py",
    },
}


def test_each_package_is_known_in_one_place() -> None:
    found: dict[str, set[str]] = {name: set() for name in KNOWN_TO}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for package in KNOWN_TO:
                if any(f"{name}.".startswith(f"{package}.") for name in names):
                    found[package].add(path.relative_to(SOURCE).as_posix())
    assert found == KNOWN_TO


class TokenServer:
    """As much of a managed identity's endpoint as an App Service has."""

    def __init__(self) -> None:
        self.status = 200
        self.asked: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.asked.append({"query": scope["query_string"].decode(), "header": headers["x-identity-header"]})
        told: dict[str, Any] = {"error": "no", "error_description": f"no token with {CANARY}"}
        if self.status == 200:
            told = {
                "access_token": f"token-{CANARY}",
                "expires_on": int(time.time()) + 3600,
                "resource": "https://azconfig.io",
                "token_type": "Bearer",
            }
        start = {"type": "http.response.start", "status": self.status}
        await send({**start, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps(told).encode()})


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def token_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TokenServer]:
    app = TokenServer()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}/token")
        monkeypatch.setenv("IDENTITY_HEADER", f"header-{CANARY}")
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        yield app
        server.should_exit = True
        await task


@pytest.mark.parametrize("kind", ["managed", "default", None])
async def test_a_managed_identity_gives_a_token(token_server: TokenServer, kind: str | None) -> None:
    async with make_identity(IdentitySettings(kind=kind, client_id="somebody")) as identity:
        assert (await identity.get_token(SCOPE)).token == f"token-{CANARY}"
        assert (await identity.get_token_info(SCOPE)).token == f"token-{CANARY}"
    assert token_server.asked[0]["header"] == f"header-{CANARY}"
    assert "resource=https://azconfig.io" in unquote(token_server.asked[0]["query"])
    assert "client_id=somebody" in token_server.asked[0]["query"]


async def test_a_refusal_is_short_and_holds_no_secret(
    token_server: TokenServer, caplog: pytest.LogCaptureFixture
) -> None:
    token_server.status = 400
    with caplog.at_level(logging.DEBUG):
        async with make_identity(IdentitySettings(kind="managed")) as identity:
            with pytest.raises(ClientAuthenticationError) as fault:
                await identity.get_token(SCOPE)
            with pytest.raises(ClientAuthenticationError):
                await identity.get_token_info(SCOPE)
            shown = "\n".join([str(fault.value), repr(fault.value), repr(identity), caplog.text])
    assert str(fault.value).startswith("the managed identity gives no token (")
    assert fault.value.__suppress_context__
    assert CANARY not in shown
    assert len(token_server.asked) > 0


async def test_what_a_workload_needs_is_named() -> None:
    with pytest.raises(NoIdentity, match="AZURE_FEDERATED_TOKEN_FILE"):
        make_identity(IdentitySettings(kind="workload"))


async def test_a_workload_that_cannot_sign_in_says_so_in_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text(CANARY)
    monkeypatch.setenv("AZURE_TENANT_ID", "a-tenant")
    monkeypatch.setenv("AZURE_CLIENT_ID", "somebody")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", "https://127.0.0.1:1")
    with caplog.at_level(logging.DEBUG):
        async with make_identity(IdentitySettings(kind="workload")) as identity:
            with pytest.raises(ClientAuthenticationError) as fault:
                await identity.get_token(SCOPE)
    assert str(fault.value).startswith("the workload identity gives no token (")
    assert CANARY not in "\n".join([str(fault.value), repr(fault.value), caplog.text])


async def test_a_credential_may_be_brought_along() -> None:
    class Broken:
        closed = False

        async def get_token(self, *scopes: str, **more: Any) -> Any:
            raise OSError(CANARY)

        async def close(self) -> None:
            self.closed = True

    broken = Broken()
    async with AzureIdentity("own", broken) as identity:  # type: ignore[arg-type]
        with pytest.raises(ClientAuthenticationError) as fault:
            await identity.get_token(SCOPE)
    assert str(fault.value) == "the own identity gives no token (OSError)"
    assert broken.closed


async def test_tokens_for_storage_are_asked_for_its_own_scope(token_server: TokenServer) -> None:
    token = await storage_tokens(IdentitySettings(kind="managed"))()
    assert token["token"] == f"token-{CANARY}"
    assert token["expires_at"] is not None
    assert token["expires_at"].timestamp() > time.time() + 3000
    assert "resource=https://storage.azure.com" in unquote(token_server.asked[0]["query"])


@pytest.mark.parametrize(
    "text",
    [
        f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={CANARY}==;EndpointSuffix=core.windows.net",
        f"Endpoint=sb://n;SharedAccessKeyName=k;SharedAccessKey={CANARY}=;EntityPath=x",
        f"Endpoint=https://n.azconfig.io;Id=x;Secret={CANARY}",
        f"BlobEndpoint=https://a;SharedAccessSignature=sv=1&sig={CANARY}",
    ],
)
def test_a_connection_string_in_a_log_is_blanked(text: str) -> None:
    blanked = blank_text(f"cannot open {text} now")
    assert CANARY not in blanked
    assert blanked.startswith(f"cannot open {text[:8]}")
    assert blanked.endswith(" now")
