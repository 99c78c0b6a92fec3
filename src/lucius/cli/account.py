"""`lucius login`, `lucius config …` and `lucius open`: which Lucius the commands talk to, and its console.

In: an address and a key. Out: a profile in the config file, which the owner alone can read. What is in the
file beside that profile, comments included, stays as it is.
"""

import getpass
import json
import os
import re
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote

import msgspec
import typer

from lucius.cli.context import PROFILE_ASKED, JsonFlag, Output, context, own_config_path
from lucius.cli.http import EXIT_FAILED, EXIT_UNREACHABLE, Api, ApiFault, job_path
from lucius.cli.ids import by_job
from lucius.cli.profiles import DEFAULT_PROFILE, Config, chosen_target, profile_names, read_config
from lucius.cli.render import plain

OWNER_ONLY: Final = 0o600
_is_profile_name = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_is_table = re.compile(r"\s*\[")

config = typer.Typer(
    help="Profiles: which Lucius the commands talk to.", no_args_is_help=True, rich_markup_mode=None
)

ProfileArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The profile.",
        autocompletion=lambda incomplete: [
            name for name in profile_names(own_config_path()) if name.startswith(incomplete)
        ],
    ),
]


def login(
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="Where Lucius is.")] = None,
) -> None:
    """Try an API key and keep it in a profile, for the commands to come.

    The key is asked for and not shown; from a pipe it is read. --profile names the profile, `default` unless
    given.
    """
    from lucius.client.target import DEFAULT_URL, target_of

    out, profile = Output(as_json=False), PROFILE_ASKED.get() or DEFAULT_PROFILE
    _check_name(profile)
    at = url or os.environ.get("LUCIUS_URL") or DEFAULT_URL
    asked = getpass.getpass(f"API key for {plain(at)}: ") if sys.stdin.isatty() else sys.stdin.readline()
    key = asked.strip()
    target = target_of(at, key or None, url_name="--url", key_name="the key")
    if isinstance(target, str):
        raise typer.BadParameter(target)
    api = Api(target)
    try:
        session = api.get("/v1/session")
    finally:
        api.close()
    if isinstance(session, ApiFault):
        out.say(f"error: {plain(session.message)}")
        raise typer.Exit(session.exit_code)
    if session.doc.get("authenticated") is not True and session.doc.get("auth") == "required":
        out.say(f"error: {plain(session.doc.get('problem') or 'This key is not known there.')}")
        raise typer.Exit(EXIT_UNREACHABLE)
    path = own_config_path()
    _write(out, path, profile, {"url": target.url, **({"api_key": key} if key else {})})
    roles = ", ".join(plain(role) for role in session.doc.get("roles") or ()) or "none"
    out.say(f"{plain(session.doc.get('name') or 'Open to every caller')}; roles: {roles}.")
    out.say(f"Kept as profile {profile} in {path}.")
    if os.environ.get("LUCIUS_URL"):
        out.say("LUCIUS_URL is set and comes first: unset it, or name the profile with --profile.")


@config.command("show")
def config_show(as_json: JsonFlag = False) -> None:
    """Say which Lucius the commands talk to now, and why. Keys are not shown."""
    out, path = Output(as_json=as_json), own_config_path()
    target = chosen_target(os.environ, PROFILE_ASKED.get(), path=path, warn=out.say)
    if isinstance(target, str):
        raise typer.BadParameter(target)
    facts = {
        "url": target.url,
        "from": _source(path),
        "key": "yes" if target.api_key else "none",
        "config_file": str(path),
    }
    if as_json:
        out.json(msgspec.json.encode(facts))
    else:
        out.facts(*((name.replace("_", " "), value) for name, value in facts.items()))


def _source(path: Path) -> str:
    asked = PROFILE_ASKED.get()
    if asked:
        return f"--profile {asked}"
    for variable in ("LUCIUS_URL", "LUCIUS_PROFILE"):
        if os.environ.get(variable):
            return variable
    return f"profile {DEFAULT_PROFILE}" if DEFAULT_PROFILE in profile_names(path) else "the default"


@config.command("list")
def config_list(as_json: JsonFlag = False) -> None:
    """List the profiles. Keys are not shown."""
    out = Output(as_json=as_json)
    profiles = _read(out).profiles
    kept = {
        name: {"url": each.url, "key": bool(each.api_key or each.api_key_command)}
        for name, each in sorted(profiles.items())
    }
    if as_json:
        out.json(msgspec.json.encode({"profiles": kept}))
    elif kept:
        rows: list[tuple[object, ...]] = [
            (name, each["url"], "yes" if each["key"] else "none") for name, each in kept.items()
        ]
        out.table(("PROFILE", "URL", "KEY"), rows)
    else:
        out.say("No profiles. `lucius login` makes one.")


@config.command("set")
def config_set(
    name: ProfileArgument,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="Where Lucius is.")],
    key_command: Annotated[
        str | None,
        typer.Option(
            "--key-command",
            metavar="COMMAND",
            help="Prints the API key, such as `pass show x`.",
        ),
    ] = None,
) -> None:
    """Write a profile without a key of its own. `lucius login` writes one with a key."""
    from lucius.client.target import target_of

    _check_name(name)
    target = target_of(url, None, url_name="--url")
    if isinstance(target, str):
        raise typer.BadParameter(target)
    out = Output(as_json=False)
    fields = {"url": target.url, **({"api_key_command": key_command} if key_command else {})}
    _write(out, own_config_path(), name, fields)
    out.say(f"Kept as profile {name} in {own_config_path()}.")


@config.command("remove")
def config_remove(name: ProfileArgument) -> None:
    """Remove a profile, with its key."""
    out, path = Output(as_json=False), own_config_path()
    if name not in _read(out).profiles:
        out.say(f"error: There is no profile {plain(name)} in {path}.")
        raise typer.Exit(EXIT_FAILED)
    _write(out, path, name, None)
    out.say(f"Removed profile {name} from {path}.")


def open_console(
    job_id: Annotated[
        str | None, typer.Argument(metavar="JOB_ID", help="The page of this job; else the overview.")
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Only print the address.")] = False,
) -> None:
    """Open the console in the browser. Prints its address."""
    with context(as_json=False) as at:
        page = ""
        if job_id is not None:
            found = at.need(by_job(at, job_id, lambda each: at.api.get(job_path(each))))
            page = f"#/jobs/{quote(str(found.doc.get('jobId')), safe='')}"
        else:
            at.need(at.api.get("/v1/session"))
        address = f"{at.api.url}/{page}"
        at.out.data(address)
        if not print_only and not webbrowser.open(address):
            at.out.say("There is no browser here: open that address in one.")


def _check_name(name: str) -> None:
    if _is_profile_name(name) is None:
        raise typer.BadParameter("A profile's name takes letters, digits, - and _.")


def _read(out: Output) -> Config:
    path = own_config_path()
    if not path.is_file():
        return Config()
    found = read_config(path, out.say)
    if isinstance(found, str):
        raise typer.BadParameter(found)
    return found


def _write(out: Output, path: Path, name: str, fields: dict[str, str] | None) -> None:
    """Puts the profile in the place of the one of that name; None removes it."""
    before = _read(out)
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    lines = _without(text.splitlines(), name)
    if fields is not None:
        lines += ["", *_table(name, fields)] if lines else _table(name, fields)
    after = "\n".join(lines).strip("\n") + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.touch(mode=OWNER_ONLY)
        draft.write_text(after, encoding="utf-8")
        kept = read_config(draft, out.say)
        left = {each: profile for each, profile in before.profiles.items() if each != name}
        others = {} if isinstance(kept, str) else {k: v for k, v in kept.profiles.items() if k != name}
        if isinstance(kept, str) or others != left:
            draft.unlink()
            out.say(f"error: {path} is written in a way that this command cannot change; edit it yourself.")
            raise typer.Exit(EXIT_FAILED)
        draft.replace(path)
    except OSError as fault:
        out.say(f"error: Cannot write {path}: {fault.strerror}.")
        raise typer.Exit(EXIT_FAILED) from None


def _without(lines: list[str], name: str) -> list[str]:
    """The lines without the table of this profile."""
    header = re.compile(rf"\s*\[\s*profiles\s*\.\s*\"?{re.escape(name)}\"?\s*\]\s*(#.*)?").fullmatch
    kept: list[str] = []
    inside = False
    for line in lines:
        if _is_table.match(line):
            inside = header(line) is not None
        if not inside:
            kept.append(line)
    return kept


def _table(name: str, fields: dict[str, str]) -> list[str]:
    # A basic string of TOML is one of JSON, but for DEL.
    values = (
        f"{member} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for member, value in fields.items()
    )
    return [f"[profiles.{name}]", *values]
