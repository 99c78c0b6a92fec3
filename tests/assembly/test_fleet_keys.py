"""Keys of several processes on one ledger: from a variable, a file or a folder that they share, and never of
their own."""

import base64
from pathlib import Path

import pytest
import structlog

from lucius.assembly.fleet_keys import agree_on_keys, callback_keys, webhook_keys
from lucius.assembly.process import Part
from lucius.assembly.secrets import NoSigningKeys, rotate_signing_keys, signing_keys
from lucius.core.attempt import AttemptRef
from lucius.jobs.tokens import CallbackTokens, SigningKey
from lucius.ledger.memory import MemoryStore
from lucius.settings import BadSetting, Settings, read_settings

OLD, NEW = f"old:{'o' * 32}", f"new:{'n' * 32}"
WEBHOOK = f"whsec_{base64.b64encode(b'w' * 32).decode()}"
AZURE = {"LUCIUS_TABLE_CONNECTION": "AccountName=one;AccountKey=aHVzaA=="}


def settings(**env: str) -> Settings:
    return read_settings({**AZURE, **env})


def kids(keys: list[SigningKey]) -> list[str]:
    return [key.kid for key in keys]


# -- where keys come from ----------------------------------------------------------------------------------


def test_keys_come_from_a_variable_a_file_or_the_folder(tmp_path: Path) -> None:
    assert kids(callback_keys(settings(LUCIUS_CALLBACK_KEYS=f"{NEW}, {OLD}"), tmp_path)) == ["new", "old"]
    assert not list(tmp_path.iterdir())
    file = tmp_path / "keys.txt"
    file.write_text(f"# rotated in November\n{NEW}\n\n{OLD}\n")
    assert kids(callback_keys(settings(LUCIUS_CALLBACK_KEYS_FILE=str(file)), tmp_path)) == ["new", "old"]
    made = callback_keys(settings(), tmp_path)
    copied = settings(LUCIUS_CALLBACK_KEYS_FILE=str(tmp_path / "keys" / "callback-keys.json"))
    assert callback_keys(copied, tmp_path / "other") == made == signing_keys(tmp_path / "keys")


def test_secrets_of_webhooks_too(tmp_path: Path) -> None:
    assert webhook_keys(settings(LUCIUS_WEBHOOK_SECRETS=WEBHOOK), tmp_path)() == (WEBHOOK,)
    file = tmp_path / "webhooks"
    file.write_text(WEBHOOK)
    current = webhook_keys(settings(LUCIUS_WEBHOOK_SECRETS_FILE=str(file)), tmp_path)
    assert current() == (WEBHOOK,)
    newer = f"whsec_{base64.b64encode(b'x' * 32).decode()}"
    draft = tmp_path / "draft"
    draft.write_text(f"{newer}\n{WEBHOOK}")
    draft.replace(file)
    assert current() == (newer, WEBHOOK)
    file.unlink()
    with structlog.testing.capture_logs() as lines:
        assert current() == (newer, WEBHOOK)
    assert lines[0]["event"] == "webhook_secrets_not_read"


def test_the_internal_secret_comes_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("newer-secret-of-the-invoker\nolder-secret-of-the-invoker\n")
    read = settings(LUCIUS_INTERNAL_SECRET_FILE=str(file)).temporal.secrets
    assert read == ("newer-secret-of-the-invoker", "older-secret-of-the-invoker")


@pytest.mark.parametrize(
    "env",
    [
        {"LUCIUS_CALLBACK_KEYS": "hush"},
        {"LUCIUS_CALLBACK_KEYS": "a:hush"},
        {"LUCIUS_CALLBACK_KEYS": f"a b:{'hush' * 9}"},
        {"LUCIUS_CALLBACK_KEYS": f"a:{'hush' * 9},a:{'hash' * 9}"},
        {"LUCIUS_WEBHOOK_SECRETS": "hush"},
        {"LUCIUS_WEBHOOK_SECRETS": "whsec_aHVzaA=="},
        {"LUCIUS_CALLBACK_KEYS": f"a:{'hush' * 9}", "LUCIUS_CALLBACK_KEYS_FILE": "/k"},
        {"LUCIUS_WEBHOOK_SECRETS": WEBHOOK, "LUCIUS_WEBHOOK_SECRETS_FILE": "/k"},
        {"LUCIUS_INTERNAL_SECRET": "hush" * 9, "LUCIUS_INTERNAL_SECRET_FILE": "/k"},
        {"LUCIUS_INTERNAL_SECRET_FILE": "/there/is/none"},
    ],
)
def test_what_is_no_key_is_refused_without_showing_it(env: dict[str, str]) -> None:
    with pytest.raises(BadSetting, match=next(reversed(env))) as caught:
        read_settings(env)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "hush", "[]", "[{]", '[{"kid": "a", "secret": "hush"}]', "a:b:hush"])
def test_a_wrong_file_is_named_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(text)
    for variable, read in (
        ("LUCIUS_CALLBACK_KEYS_FILE", callback_keys),
        ("LUCIUS_WEBHOOK_SECRETS_FILE", now),
    ):
        with pytest.raises(NoSigningKeys, match=f"^{variable}: {file} must be ") as caught:
            read(settings(**{variable: str(file)}), tmp_path)
        assert "hush" not in str(caught.value)
        with pytest.raises(NoSigningKeys, match=f"^{variable} names no file that can be read: {tmp_path}$"):
            read(settings(**{variable: str(tmp_path)}), tmp_path)


def now(given: Settings, data: Path) -> tuple[str, ...]:
    return webhook_keys(given, data)()


# -- one ledger --------------------------------------------------------------------------------------------


async def test_a_process_with_keys_of_its_own_is_refused_beside_others(tmp_path: Path) -> None:
    store = MemoryStore()
    await agree_on_keys(store, settings(), tmp_path / "one", Part.API)
    await agree_on_keys(store, settings(), tmp_path / "one", Part.RECONCILER)  # on the same folder
    with pytest.raises(NoSigningKeys, match="set LUCIUS_CALLBACK_KEYS or LUCIUS_CALLBACK_KEYS_FILE"):
        await agree_on_keys(store, settings(), tmp_path / "two", Part.API)
    assert not (tmp_path / "two").exists()
    signing_keys(tmp_path / "three" / "keys")
    with pytest.raises(NoSigningKeys, match="LUCIUS_CALLBACK_KEYS"):
        await agree_on_keys(store, settings(), tmp_path / "three", Part.API)


async def test_reconcilers_agree_on_the_secret_of_webhooks_too(tmp_path: Path) -> None:
    store, keyed = MemoryStore(), settings(LUCIUS_CALLBACK_KEYS=OLD)
    await agree_on_keys(store, keyed, tmp_path / "one", Part.RECONCILER)
    await agree_on_keys(store, keyed, tmp_path / "two", Part.API)  # it sends none
    with pytest.raises(NoSigningKeys, match="LUCIUS_WEBHOOK_SECRETS"):
        await agree_on_keys(store, keyed, tmp_path / "two", Part.RECONCILER)
    both = settings(LUCIUS_CALLBACK_KEYS=OLD, LUCIUS_WEBHOOK_SECRETS=WEBHOOK)
    for folder in ("two", "three"):
        await agree_on_keys(store, both, tmp_path / folder, Part.RECONCILER)


async def test_a_rotation_overlaps(tmp_path: Path) -> None:
    store = MemoryStore()
    with structlog.testing.capture_logs() as lines:
        for keys in (OLD, f"{OLD},{NEW}", f"{NEW},{OLD}", NEW):
            await agree_on_keys(store, settings(LUCIUS_CALLBACK_KEYS=keys), tmp_path, Part.API)
    assert lines == []
    rotating = tmp_path / "folder"
    other = MemoryStore()
    await agree_on_keys(other, settings(), rotating, Part.API)
    rotate_signing_keys(rotating / "keys")
    await agree_on_keys(other, settings(), rotating, Part.API)


async def test_keys_that_were_set_replace_those_of_a_folder_and_say_so(tmp_path: Path) -> None:
    store = MemoryStore()
    await agree_on_keys(store, settings(), tmp_path / "one", Part.API)
    with structlog.testing.capture_logs() as lines:
        await agree_on_keys(store, settings(LUCIUS_CALLBACK_KEYS=NEW), tmp_path / "two", Part.API)
    assert lines[0]["event"] == "signing_keys_replaced"
    with pytest.raises(NoSigningKeys):
        await agree_on_keys(store, settings(), tmp_path / "one", Part.API)


async def test_the_ledger_has_no_key(tmp_path: Path) -> None:
    store, given = MemoryStore(), settings(LUCIUS_CALLBACK_KEYS=NEW)
    await agree_on_keys(store, given, tmp_path, Part.API)
    row = await store.get(given.tables.meta, "signing", "callback")
    assert row is not None and b"new:" in row.body and b"n" * 32 not in row.body


async def test_keys_beside_the_ledger_ask_nothing(tmp_path: Path) -> None:
    store, plain = MemoryStore(), read_settings({})
    for folder in ("one", "two"):
        await agree_on_keys(store, plain, tmp_path / folder, Part.RECONCILER)
    apart = read_settings({"LUCIUS_STORE": f"sqlite://{tmp_path}/ledger/lucius.db"})
    await agree_on_keys(store, apart, tmp_path / "one", Part.API)
    with pytest.raises(NoSigningKeys):
        await agree_on_keys(store, apart, tmp_path / "two", Part.API)


def test_tokens_of_one_replica_are_taken_by_another() -> None:
    attempt_ref = AttemptRef(job_id="job_1", step_id="step_01", attempt_no=1, lease_id="l")
    one = CallbackTokens(list(settings(LUCIUS_CALLBACK_KEYS=f"{OLD},{NEW}").keys.callback or ()))
    two = CallbackTokens(list(settings(LUCIUS_CALLBACK_KEYS=f"{NEW},{OLD}").keys.callback or ()))
    assert two.read(one.mint(attempt_ref)) == one.read(two.mint(attempt_ref)) == attempt_ref
