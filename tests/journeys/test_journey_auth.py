"""A server that asks who is calling: the first key, a worker's, a revocation, a rotation, bad addresses."""

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller, check_problem

from lucius_lab import forks

REQUIRED = {"LUCIUS_AUTH": "required"}


Holder = Callable[[Lucius, str | None], Awaitable[Caller]]


def keys(lucius: Lucius, *arguments: str, key: str | None = None) -> subprocess.CompletedProcess[str]:
    """A `lucius keys …` command: on the store, or through the API with a key."""
    where = ["--data", str(lucius.data)] if key is None else []
    env = {**os.environ, "LUCIUS_URL": lucius.url, "LUCIUS_API_KEY": key or ""}
    return forks.run("keys", *arguments, *where, env=env)


@pytest.fixture
async def holder() -> AsyncIterator[Holder]:
    """A client with a key, or without one; closed with its test."""
    async with AsyncExitStack() as stack:

        async def open_one(lucius: Lucius, key: str | None) -> Caller:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            client = httpx2.AsyncClient(base_url=lucius.url, headers=headers, timeout=60)
            return Caller(await stack.enter_async_context(client))

        yield open_one


async def test_from_the_first_key_to_a_finished_job_and_a_revocation(
    launch: "Launch", holder: Holder
) -> None:
    lucius = launch(env=REQUIRED, start=False)
    first = keys(lucius, "create", "root", "--tenant", "*", "--role", "admin")
    assert first.returncode == 0, first.stderr
    root = first.stdout.strip()
    lucius.start()
    assert "authentication is required" in lucius.stderr
    assert "there is no key yet" not in lucius.stderr

    def given(*arguments: str) -> str:
        done = keys(lucius, "create", *arguments, key=root)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    caller_key = given("app", "--tenant", "Acme", "--role", "submit", "--role", "read")
    worker_key = given("ocr", "--tenant", "*", "--role", "work", "--service", "ocr")
    bare, caller = await holder(lucius, None), await holder(lucius, caller_key)
    worker = await holder(lucius, worker_key)
    check_problem(await bare.http.get("/v1/jobs"), 401, "UNAUTHENTICATED")
    for path in ("/livez", "/readyz", "/openapi.json", "/docs"):
        assert (await bare.http.get(path)).status_code == 200
    for path in ("/livez", "/readyz"):
        asked = await bare.http.head(path)
        assert (asked.status_code, asked.content) == (200, b"")
    job_id = await caller.submit(tenant_id="acme")
    check_problem(await caller.post("/v1/orchestrate", {}), 422, "INVALID_ENVELOPE")
    await worker.finish(job_id, "ocr")
    assert (await caller.job(job_id, wait=20))["state"] == "SUCCEEDED"
    check_problem(await worker.http.get(f"/v1/jobs/{job_id}"), 403, "FORBIDDEN")

    listed = json.loads(keys(lucius, "list", "--json", key=root).stdout)["items"]
    (app,) = [item for item in listed if item["name"] == "app"]
    # Revoked in the file by another process, while the server runs.
    assert keys(lucius, "revoke", app["keyId"]).returncode == 0
    began = time.monotonic()
    while (response := await caller.http.get("/v1/jobs")).status_code == 200:
        assert time.monotonic() - began < 2
    check_problem(response, 401, "UNAUTHENTICATED")
    refused = keys(lucius, "list", key=caller_key)
    assert refused.returncode == 4
    for secret in (root, caller_key, worker_key):
        assert secret not in lucius.stderr + refused.stderr
        assert secret.rpartition("_")[2].encode() not in (lucius.data / "lucius.db").read_bytes()


async def test_callbacks_signed_before_a_rotation_are_taken_after_it(
    launch: "Launch", holder: Holder
) -> None:
    lucius = launch()
    caller = await holder(lucius, None)
    job_ids = [await caller.submit(request_type="OCR") for _ in range(2)]
    before = await caller.directive(job_ids[0], "ocr")
    done = keys(lucius, "rotate-callback")
    assert done.returncode == 0, done.stderr
    lucius.kill()
    lucius.start()
    assert await caller.reply(before, "RESULT") == {"outcome": "applied", "stop": False}


def refused_start(tmp_path: Path, *options: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    arguments = ["dev", "--port", "0", "--data", str(tmp_path / "data"), "--services", "none", *options]
    return forks.run(*arguments, env={**os.environ, **env})


@pytest.mark.parametrize("command", ["dev", "api"])
def test_signing_keys_that_cannot_be_used_are_named(tmp_path: Path, command: str) -> None:
    keys = tmp_path / "data" / "keys" / "callback-keys.json"
    keys.parent.mkdir(parents=True)
    keys.write_text("[{]")
    done = forks.run(command, "--port", "0", "--data", str(tmp_path / "data"), env=dict(os.environ))
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"{keys} holds no signing keys that can be read. Restore it from a copy"), said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
@pytest.mark.parametrize("auth", ["", "open"])
def test_an_open_server_binds_to_loopback_alone(tmp_path: Path, host: str, auth: str) -> None:
    done = refused_start(tmp_path, "--host", host, env={"LUCIUS_AUTH": auth})
    assert done.returncode == 2
    assert f"{host} is not a loopback address" in done.stderr and "LUCIUS_AUTH=required" in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"LUCIUS_AUTH": "yes"}, "LUCIUS_AUTH"),
        ({"LUCIUS_OIDC_ISSUER": "https://issuer.example"}, "LUCIUS_OIDC_ISSUER"),
        ({**REQUIRED, "LUCIUS_OIDC_ISSUER": "https://issuer.example"}, "LUCIUS_OIDC_AUDIENCE"),
    ],
)
def test_unsafe_settings_stop_the_start(tmp_path: Path, env: dict[str, str], named: str) -> None:
    done = refused_start(tmp_path, env=env)
    assert done.returncode == 2 and named in done.stderr


async def test_a_guarded_server_may_bind_anywhere_and_says_what_is_missing(
    launch: "Launch", holder: Holder
) -> None:
    lucius: Any = launch("--host", "0.0.0.0", env=REQUIRED)
    assert "there is no key yet" in lucius.stderr and "LUCIUS_PUBLIC_URL" in lucius.stderr
    told = re.search(r"make the first one with: lucius (.*)", lucius.stderr)
    assert told is not None
    made = forks.run(*shlex.split(told[1]), folder=lucius.data.parent)
    assert made.returncode == 0, made.stderr
    first = await holder(lucius, made.stdout.strip())
    listed = await first.http.get("/v1/jobs")
    assert (listed.status_code, listed.json()["items"]) == (200, [])
    stranger = await holder(lucius, None)
    check_problem(await stranger.http.get("/v1/jobs"), 401, "UNAUTHENTICATED")


def test_an_open_server_says_that_it_is(shared: Lucius) -> None:
    assert "open to this machine only" in shared.stderr
