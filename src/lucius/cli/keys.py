"""`lucius keys …`: who may come in.

`create`, `list` and `revoke` ask the API, which takes the admin role. With `--data` they work on the store in
that folder, running or not: that is how the first key is made. A key is printed once, on stdout, and nothing
else goes there. `rotate-callback` gives the signing of callback tokens a new key, `rotate-webhook` that of
webhooks a new secret.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
import typer

from lucius.cli.context import JsonFlag, Output, context
from lucius.cli.http import EXIT_FAILED
from lucius.cli.ids import KEYS, by_id, path_of
from lucius.cli.options import id_given
from lucius.cli.render import Doc, TableForm, TextLayout, docs_in, plain, set_table
from lucius.contracts.keys import key_view, parse_key_wish
from lucius.core.refusal import Refused

if TYPE_CHECKING:  # `--data` alone needs a store, and a store takes a while to import
    from lucius.ledger.api_keys import ApiKeyStore
    from lucius.settings import Settings

T = TypeVar("T")

# Stands in a data folder whose ledger was ever kept in the tables of an Azurite of its own.
AZURITE_NOTE: Final = Path("azurite") / "process.json"

KEYS_PATH: Final = "/v1/admin/keys"

DAY_CHARS: Final = len("2026-01-31")
KEY_TABLE: Final = TableForm(
    headings=("KEY ID", "NAME", "TENANTS", "ROLES", "SERVICES", "CREATED", "REVOKED"),
    whole=("KEY ID", "CREATED", "REVOKED"),
    cut=("NAME",),
)

app = typer.Typer(help="API keys: who may come in.", no_args_is_help=True, rich_markup_mode=None)

DataOption = Annotated[
    Path | None,
    typer.Option("--data", file_okay=False, help="Work on the store in this folder, not through the API."),
]
KeyArgument = Annotated[
    str, typer.Argument(metavar="KEY_ID", callback=id_given, help="As `keys list` shows it.")
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for; `keys list` shows it.")],
    tenants: Annotated[
        list[str], typer.Option("--tenant", metavar="TENANT", help="A tenant it sees; '*' for all.")
    ],
    roles: Annotated[
        list[str], typer.Option("--role", metavar="ROLE", help="submit, read, control, work or admin.")
    ],
    services: Annotated[
        list[str] | None,
        typer.Option("--service", metavar="SERVICE", help="For work: whose directives; '*' for all."),
    ] = None,
    data: DataOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a key and print it: once, and never again."""
    wish: dict[str, Any] = {"name": name, "tenants": tenants, "roles": roles}
    if services:
        wish["services"] = services
    refused = parse_key_wish(wish)
    if isinstance(refused, Refused):
        raise typer.BadParameter(
            "; ".join(_in_words(error.pointer, error.message) for error in refused.errors)
        )
    if data is None:
        with context(as_json=as_json) as at:
            made: Doc = at.need(at.api.post(KEYS_PATH, msgspec.json.encode(wish))).doc
    else:
        made = _at_store(data, lambda keys: _create(keys, wish), fresh=True)
    out = Output(as_json=as_json)
    if as_json:
        out.json(msgspec.json.encode(made))
    else:
        out.data(plain(made.get("key")))
    if not set(made.get("roles") or ()) - {"admin"}:
        out.say("It makes keys and sees no job: roles do not include one another. Add --role read for that.")
    out.say(
        f"This is the only time the key is shown. `lucius keys revoke {plain(made.get('keyId'))}` ends it."
    )


@app.command("list")
def list_keys(data: DataOption = None, as_json: JsonFlag = False) -> None:
    """List the keys there are and were. Secrets are not shown: they are not stored."""
    if data is None:
        with context(as_json=as_json) as at:
            listed: Doc = at.need(at.api.get(KEYS_PATH)).doc
    else:
        listed = _at_store(data, _list)
    out = Output(as_json=as_json)
    if as_json:
        out.json(msgspec.json.encode(listed))
        return
    layout = out.layout()
    rows = [_row(key, layout) for key in docs_in(listed.get("items"))]
    if rows:
        out.data(set_table(KEY_TABLE, rows, layout))
    else:
        out.say("No keys.")


@app.command()
def revoke(key_id: KeyArgument, data: DataOption = None, as_json: JsonFlag = False) -> None:
    """Revoke a key. Within two seconds it opens nothing."""
    if data is None:
        with context(as_json=as_json) as at:
            answer = by_id(at, KEYS, key_id, lambda found: at.api.post(path_of(KEYS, found, ":revoke")))
            revoked: Doc = at.need(answer).doc
    else:
        revoked = _at_store(data, lambda keys: _revoke(keys, key_id))
    out = Output(as_json=as_json)
    if as_json:
        out.json(msgspec.json.encode(revoked))
    else:
        out.say(f"Key {plain(revoked.get('keyId'))} ({plain(revoked.get('name'))}) is revoked.")


@app.command("rotate-callback")
def rotate_callback(
    data: Annotated[
        Path, typer.Option("--data", exists=True, file_okay=False, help="The folder whose key to rotate.")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Sign callback tokens with a new key. Tokens that are out stay good; a running server takes the new key
    up when it is started again."""
    from lucius.assembly.secrets import SIGNING_FOLDER, rotate_signing_keys

    out = Output(as_json=as_json)
    _check_kept_here(out, "LUCIUS_CALLBACK_KEYS")
    try:
        kid = rotate_signing_keys(data / SIGNING_FOLDER).kid
    except (OSError, msgspec.DecodeError) as fault:
        out.say(f"error: The signing keys in {plain(str(data))} cannot be used: {plain(str(fault))}.")
        raise typer.Exit(EXIT_FAILED) from None
    if as_json:
        out.json(msgspec.json.encode({"kid": kid}))
    else:
        out.data(kid)
    out.say("Restart the server to sign with it. Tokens signed before stay good.")


@app.command("rotate-webhook")
def rotate_webhook(
    data: Annotated[
        Path, typer.Option("--data", exists=True, file_okay=False, help="The folder whose secret to rotate.")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Sign webhooks with a new secret, beside the one before until the next rotation. Prints the new secret
    once, for the receivers; a running server signs with it at once."""
    from lucius.assembly.clock_and_ids import now_ms
    from lucius.assembly.secrets import SIGNING_FOLDER, webhook_secrets

    out = Output(as_json=as_json)
    _check_kept_here(out, "LUCIUS_WEBHOOK_SECRETS")
    try:
        secret = webhook_secrets(data / SIGNING_FOLDER, now_ms).rotate()
    except (OSError, msgspec.DecodeError) as fault:
        out.say(f"error: The webhook secrets in {plain(str(data))} cannot be used: {plain(str(fault))}.")
        raise typer.Exit(EXIT_FAILED) from None
    if as_json:
        out.json(msgspec.json.encode({"secret": secret}))
    else:
        out.data(secret)
    out.say("Webhooks carry signatures with the old and the new secret until the next rotation.")


def _check_kept_here(out: Output, variable: str) -> None:
    """A key of the data folder changes nothing where a variable or a file gives the keys."""
    for name in (variable, f"{variable}_FILE"):
        if os.environ.get(name, "").strip():
            out.say(f"error: {name} gives the keys: put the new one in front there, and keep the old one.")
            raise typer.Exit(EXIT_FAILED)


def _row(key: Doc, layout: TextLayout) -> tuple[object, ...]:
    """On a terminal the days are enough, and leave the rest its room."""
    chars = None if layout.columns is None else DAY_CHARS
    days = (plain(at)[:chars] if (at := key.get(name)) else None for name in ("created_at", "revoked_at"))
    lists = (
        ", ".join(plain(text) for text in key.get(name) or ()) for name in ("tenants", "roles", "services")
    )
    return (
        key.get("keyId"),
        key.get("name"),
        *(text or None for text in lists),
        *days,
    )


def _in_words(pointer: str, message: str) -> str:
    """A fault of the wish in terms of the options."""
    options = {"/name": "NAME", "/tenants": "--tenant", "/roles": "--role", "/services": "--service"}
    return f"{options.get(pointer, pointer)} {message}"


async def _create(keys: "ApiKeyStore", wish: dict[str, Any]) -> Doc | Refused:
    checked = parse_key_wish(wish)
    made = checked if isinstance(checked, Refused) else await keys.create(checked)
    return made if isinstance(made, Refused) else {**key_view(made.key), "key": made.text}


async def _list(keys: "ApiKeyStore") -> Doc:
    return {"items": [key_view(key) for key in await keys.all()], "next_cursor": None}


async def _revoke(keys: "ApiKeyStore", key_id: str) -> Doc | str:
    from lucius.contracts.keys import is_key_id

    key = await keys.revoke(key_id) if is_key_id(key_id) else None
    return f"There is no key {plain(key_id)[:80]}." if key is None else key_view(key)


def _at_store(
    data: Path, work: Callable[["ApiKeyStore"], Awaitable[Doc | Refused | str]], *, fresh: bool = False
) -> Doc:
    """Does the work on the store in a folder. `fresh`: one that is not there yet is made."""
    from lucius.assembly.azure.app_configuration import export_settings
    from lucius.ledger.store import StoreError
    from lucius.settings import BadSetting

    try:
        export_settings(os.environ, data)
        done: Doc | Refused | str = asyncio.run(_open_and(data, work, fresh=fresh))
    except BadSetting as fault:
        raise typer.BadParameter(str(fault)) from None
    except (StoreError, OSError) as fault:
        done = f"The store cannot be used: {fault}."
    if isinstance(done, Refused):
        done = done.message
    if isinstance(done, str):
        Output(as_json=False).say(f"error: {plain(done)}")
        raise typer.Exit(EXIT_FAILED)
    return done


async def _open_and(data: Path, work: Callable[["ApiKeyStore"], Awaitable[T]], *, fresh: bool) -> T:
    from lucius.assembly.secrets import key_ledger
    from lucius.assembly.stores import STORE_NAME, ledger_folder, open_store
    from lucius.settings import StoreKind, read_settings

    settings = read_settings(os.environ)
    if settings.store is StoreKind.SQLITE:
        if settings.store_url is None and (beside := _own_azurite(settings, data)) is not None:
            settings = beside
        elif not (ledger_folder(settings, data) / STORE_NAME).exists():
            if (data / AZURITE_NOTE).exists():
                message = "its tables run with `lucius dev --profile azure-local`: start that first."
                raise typer.BadParameter(f"--data {data}: {message}")
            if not fresh:
                raise typer.BadParameter(f"--data {data}: there is no Lucius store in it.")
    store = await open_store(settings, "ledger", data)
    try:
        return await work(key_ledger(store, settings, lambda: time.time_ns() // 1_000_000))
    finally:
        await store.close()


def _own_azurite(settings: "Settings", data: Path) -> "Settings | None":
    """Settings that lead to the tables which `lucius dev --profile azure-local` runs on this folder."""
    from lucius.cli.lab import lab_offers

    if not (data / AZURITE_NOTE).exists():
        return None
    found: Settings | None = lab_offers("azurite")(settings, data)
    return found
