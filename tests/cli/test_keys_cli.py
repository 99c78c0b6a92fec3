"""`lucius keys …`: the key alone on stdout, words on stderr, and the first key without a server."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.played_api import Done, PlayedApi

from lucius.assembly.secrets import key_ledger, signing_keys, webhook_secrets
from lucius.assembly.stores import STORE_NAME, open_store
from lucius.contracts.keys import split_key
from lucius.settings import read_settings
from lucius_lab.emulators.own_azurite import own_azurite

SHOWN = {
    "keyId": "0123456789abcdef",
    "name": "ci",
    "tenants": ["acme"],
    "roles": ["read"],
    "services": [],
    "created_at": "2026-01-02T03:04:05.000Z",
    "revoked_at": None,
}
KEY = "lk_0123456789abcdef_" + "7" * 64


def test_the_first_key_is_made_listed_and_revoked_in_the_store_itself(
    command_line: "Callable[..., Done]", tmp_path: Path
) -> None:
    data = str(tmp_path / "new" / "data")
    done = command_line("keys", "create", "root", "--tenant", "*", "--role", "admin", "--data", data)
    assert done.code == 0, done.err
    parts = split_key(done.out.strip())
    assert parts is not None and done.out.count("\n") == 1
    assert parts[1] not in done.err
    listed = command_line("keys", "list", "--data", data)
    assert listed.code == 0 and parts[0] in listed.out and parts[1] not in listed.out
    (item,) = json.loads(command_line("keys", "list", "--data", data, "--json").out)["items"]
    assert (item["name"], item["tenants"], item["roles"], item["revoked_at"]) == (
        "root",
        ["*"],
        ["admin"],
        None,
    )
    revoked = command_line("keys", "revoke", parts[0], "--data", data)
    assert (revoked.code, revoked.out) == (0, "")
    (item,) = json.loads(command_line("keys", "list", "--data", data, "--json").out)["items"]
    assert item["revoked_at"] is not None
    missing = command_line("keys", "revoke", "f" * 16, "--data", data)
    assert missing.code == 1 and "There is no key" in missing.err


@pytest.mark.xdist_group("azurite")
async def test_keys_are_made_in_the_tables_that_run_beside_the_folder(
    command_line: "Callable[..., Done]", tmp_path: Path
) -> None:
    settings = read_settings({})
    create = ("keys", "create", "root", "--tenant", "*", "--role", "admin", "--data", str(tmp_path))
    async with own_azurite(settings, tmp_path) as found:
        done = await asyncio.to_thread(command_line, *create)
        assert done.code == 0, done.err
        store = await open_store(found, "ledger", tmp_path)
        kept = await key_ledger(store, settings, lambda: 0).all()
        await store.close()
        assert [key.key_id for key in kept] == [done.out.split("_")[1]]
    for arguments in (create, ("keys", "list", "--data", str(tmp_path))):
        done = await asyncio.to_thread(command_line, *arguments)
        assert done.code == 2 and "start that first" in done.err
    assert not (tmp_path / STORE_NAME).exists()


def test_the_api_is_asked_and_its_answer_shown_once(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    played_api.on("POST", "/v1/admin/keys", played_api.said(201, {**SHOWN, "key": KEY}))
    played_api.on("GET", "/v1/admin/keys", played_api.said(200, {"items": [SHOWN], "next_cursor": None}))
    revoke_path = "/v1/admin/keys/0123456789abcdef:revoke"
    played_api.on("POST", revoke_path, played_api.said(200, SHOWN))
    done = command_line("keys", "create", "ci", "--tenant", "acme", "--role", "read", "--role", "submit")
    assert (done.code, done.out) == (0, f"{KEY}\n")
    assert KEY not in done.err and "0123456789abcdef" in done.err
    sent = json.loads(played_api.asked[0].body)
    assert sent == {"name": "ci", "tenants": ["acme"], "roles": ["read", "submit"]}
    as_json = command_line("keys", "create", "ci", "--tenant", "acme", "--role", "read", "--json")
    assert json.loads(as_json.out)["key"] == KEY
    assert "acme" in command_line("keys", "list").out
    assert "is revoked" in command_line("keys", "revoke", "0123456789abcdef").err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("keys", "create", "x", "--role", "read"), "--tenant"),
        (("keys", "create", "x", "--tenant", "a"), "--role"),
        (("keys", "create", "x", "--tenant", "a", "--role", "root"), "--role"),
        (("keys", "create", "x", "--tenant", "*", "--role", "work"), "--service"),
        (
            ("keys", "create", "x", "--tenant", "a", "--role", "work", "--service", "ocr"),
            "--tenant must be *",
        ),
        (("keys", "create", " ", "--tenant", "a", "--role", "read"), "NAME"),
        (("keys", "list", "--data", "nowhere"), "there is no Lucius store"),
        (("keys", "rotate-callback", "--data", "nowhere"), "nowhere"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    command_line: "Callable[..., Done]",
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command_line(*arguments)
    assert (done.code, done.out) == (2, "")
    assert word in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_callback_key_is_rotated(command_line: "Callable[..., Done]", tmp_path: Path) -> None:
    before = signing_keys(tmp_path / "keys")
    done = command_line("keys", "rotate-callback", "--data", str(tmp_path))
    assert done.code == 0, done.err
    after = signing_keys(tmp_path / "keys")
    assert after[1:] == before
    assert done.out.strip() == after[0].kid
    assert after[0].secret not in done.out + done.err


def test_a_webhook_secret_is_rotated(command_line: "Callable[..., Done]", tmp_path: Path) -> None:
    secrets = webhook_secrets(tmp_path / "keys", lambda: 0)
    before = secrets.current()
    done = command_line("keys", "rotate-webhook", "--data", str(tmp_path), "--json")
    assert done.code == 0, done.err
    fresh = json.loads(done.out)["secret"]
    assert secrets.current() == (fresh, *before), "a running server sees it, and still signs with the old one"
    assert fresh not in done.err


def test_a_key_that_sees_no_job_is_told_as_one(command_line: "Callable[..., Done]", tmp_path: Path) -> None:
    create = ("keys", "create", "root", "--tenant", "*", "--data", str(tmp_path), "--role", "admin")
    assert "sees no job" in command_line(*create).err
    assert "sees no job" not in command_line(*create, "--role", "read").err
