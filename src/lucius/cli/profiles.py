"""Which Lucius a command talks to: the environment, or a profile from the config file.

In: the environment, the name given with `--profile`, the config file. Out: a target, or in plain words what
is wrong. The key of a profile goes with the address of that profile: it is never sent to another that the
environment happens to name.

    [profiles.prod]
    url = "https://lucius.example.com"
    api_key_command = ["pass", "show", "lucius/prod"]

First match: `--profile NAME`; `LUCIUS_URL`; `LUCIUS_PROFILE`; the profile called `default`; this machine. A
profile without a key takes `LUCIUS_API_KEY`.
"""

import shlex
import stat
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from lucius.client.target import ApiTarget

CONFIG_BYTES_MAX: Final = 256 * 1024
KEY_COMMAND_SECONDS_MAX: Final = 30
KEY_CHARS_MAX: Final = 16 * 1024
DEFAULT_PROFILE: Final = "default"

Warn = Callable[[str], None]


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str
    api_key: str | None = None
    api_key_command: str | list[str] | None = None


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    profiles: dict[str, Profile] = {}


def config_path(env: Mapping[str, str], home: Path) -> Path:
    named = env.get("LUCIUS_CONFIG")
    if named:
        return Path(named).expanduser()
    return Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "lucius" / "config.toml"


def chosen_target(env: Mapping[str, str], asked: str | None, *, path: Path, warn: Warn) -> "ApiTarget | str":
    """The target of this command, or why there is none. `asked` is what `--profile` named."""
    from lucius.client.target import DEFAULT_URL, target_of

    named = asked or (None if env.get("LUCIUS_URL") else env.get("LUCIUS_PROFILE"))
    environment = env.get("LUCIUS_API_KEY")
    has_config = bool(env.get("LUCIUS_CONFIG")) or path.is_file()
    if named is None and (env.get("LUCIUS_URL") or not has_config):
        return target_of(env.get("LUCIUS_URL") or DEFAULT_URL, environment)
    config = read_config(path, warn)
    if isinstance(config, str):
        return config
    profile = config.profiles.get(named or DEFAULT_PROFILE)
    if profile is None:
        return target_of(DEFAULT_URL, environment) if named is None else _unknown(named, config, path)
    key = _key_of(profile, named or DEFAULT_PROFILE)
    if isinstance(key, _Trouble):
        return key.text
    where = f"of profile {named or DEFAULT_PROFILE}"
    return target_of(
        profile.url,
        environment if key is None else key,
        url_name=f"The url {where}",
        key_name="LUCIUS_API_KEY" if key is None else f"the api_key {where}",
    )


def read_config(path: Path, warn: Warn) -> Config | str:
    """The config file, or what is wrong with it. No text echoes a value: any of them may be a key."""
    try:
        with path.open("rb") as file:
            raw = file.read(CONFIG_BYTES_MAX + 1)
            mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return (
            f"There is no config file {path}. `lucius login` or `lucius config set` makes it; LUCIUS_CONFIG "
            "names another."
        )
    except OSError as error:
        return f"Cannot read {path}: {error.strerror or 'not readable'}."
    if len(raw) > CONFIG_BYTES_MAX:
        return f"{path} is larger than {CONFIG_BYTES_MAX // 1024} KiB."
    try:
        document = tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        return f"{path} is not TOML."
    try:
        config = msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        return f"{path}: {error}."
    holds_key = any(profile.api_key is not None for profile in config.profiles.values())
    if holds_key and mode & 0o077:
        warn(f"warning: {path} holds a key and others can read it; do `chmod 600 {shlex.quote(str(path))}`.")
    return config


def profile_names(path: Path) -> list[str]:
    """The profiles there are, for completion; none when the file cannot be read."""
    config = read_config(path, lambda text: None) if path.is_file() else Config()
    return sorted(config.profiles) if isinstance(config, Config) else []


def _unknown(name: str, config: Config, path: Path) -> str:
    known = ", ".join(sorted(config.profiles)) or "none"
    return f"There is no profile {name!r} in {path}. Known: {known}."


class _Trouble(msgspec.Struct, frozen=True):
    text: str


def _key_of(profile: Profile, name: str) -> "str | _Trouble | None":
    if profile.api_key is not None and profile.api_key_command is not None:
        return _Trouble(f"Profile {name} has both api_key and api_key_command; keep one.")
    if profile.api_key_command is None:
        return profile.api_key
    command = profile.api_key_command
    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError:
        words = []
    if not words:
        return _Trouble(f"The api_key_command of profile {name} is not a command.")
    return _key_from(words, name)


def _key_from(words: list[str], name: str) -> str | _Trouble:
    """What the command prints. No shell is in between, and what it says on stderr the user sees."""
    what = f"The api_key_command of profile {name}"
    try:
        done = subprocess.run(  # noqa: S603 (the user's own command, from the user's own file)
            words, stdout=subprocess.PIPE, timeout=KEY_COMMAND_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return _Trouble(f"{what} took longer than {KEY_COMMAND_SECONDS_MAX} s.")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return _Trouble(f"{what} cannot be run: {reason or 'not a command'}.")
    if done.returncode != 0:
        return _Trouble(f"{what} ended with {done.returncode}.")
    key = done.stdout[:KEY_CHARS_MAX].decode(errors="replace").strip()
    return key or _Trouble(f"{what} printed nothing.")
