"""`lucius service new`: a platform service to start from, which keeps the contract as it is.

In: a name, a step type, a language, a bus. Out: a folder with the service, its tests, a Dockerfile, a
protocol and the samples of its certificate. The templates lie beside this module; `@NAME@` and its like are
filled in.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Annotated, Final
from urllib.parse import unquote, urlsplit

import msgspec
import typer

from lucius.cli.context import Output
from lucius.cli.http import EXIT_FAILED
from lucius.cli.options import one_of
from lucius.guard import own_python

ENDING: Final = ".tmpl"
HTTP: Final = "http"
PYTHON: Final = "python"
EXECUTABLE: Final = 0o755

VENDOR: Final = "vendor"

LENGTH_MAX: Final = 63
_is_requirement = re.compile(r"lucius([=<>!~]=?[0-9A-Za-z.*+!,<>=~]+)?").fullmatch
_is_name = re.compile(r"[a-z][a-z0-9_-]*").fullmatch
_is_step_type = re.compile(r"[A-Z][A-Z0-9_]*").fullmatch


class Language(msgspec.Struct, frozen=True, kw_only=True):
    start: str
    test: str
    work: str  # the file that its author changes
    needs: str


class SkeletonBus(msgspec.Struct, frozen=True, kw_only=True):
    """How work comes to the service. `option` goes to each command that has to do with it."""

    package: str
    option: str = ""
    address: str
    """For the README: which variables say where, and where a place to try it comes from."""


SKELETON_BUSES: Final = {
    HTTP: SkeletonBus(
        package="lucius",
        address="`LUCIUS_URL` says where Lucius is (http://127.0.0.1:8420 unless set), `LUCIUS_API_KEY` is "
        "the key of a caller with the\nrole `work`.",
    ),
    "nats": SkeletonBus(
        package="lucius[nats]",
        option=" --bus nats",
        address="`LUCIUS_NATS_URL` says where NATS is; `lucius dev --bus nats` brings a server along, and "
        "prints what a service needs to find it.\nThe certificate brings one of its own.",
    ),
    "servicebus": SkeletonBus(
        package="lucius[azure]",
        option=" --bus servicebus",
        address="`LUCIUS_SERVICEBUS_CONNECTION` or `LUCIUS_SERVICEBUS_NAMESPACE` says where Service Bus is, "
        "where each topic has a\nsubscription `@NAME@` "
        "(`lucius provision azure --check --service @NAME@` tells what is missing). On one machine, "
        "the emulator of\n`lucius[lab]` prints a connection string: "
        "`python -m lucius_lab.emulators.service_bus`. "
        "The certificate brings one of\nits own where no variable is set.",
    ),
}

LANGUAGES: Final = {
    PYTHON: Language(
        start="lucius service run service:handle",
        test="pytest",
        work="service.py",
        needs="the package `@PACKAGE@` and, for its tests, `pytest`",
    ),
    "node": Language(
        start="node service.mjs", test="node --test", work="work.mjs", needs="Node 20 and nothing else"
    ),
    "go": Language(
        # Not `go run`, which keeps signals to itself.
        start="./service",
        test="go test ./...",
        work="work.go",
        needs="Go 1.19 and nothing else; `go build -o service .` comes first",
    ),
    "shell": Language(
        start="./service.sh", test="./test.sh", work="work.sh", needs="bash, curl, jq, pkill and setsid"
    ),
}


def service_new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the service leases under: hello.")],
    step_type: Annotated[str, typer.Option("--step-type", metavar="T", help="What it does: HELLO.")],
    lang: Annotated[str, typer.Option(help="python, node, go or shell.")] = "python",
    bus: Annotated[
        str, typer.Option(help="How its work comes: http, nats or servicebus; another than http with python.")
    ] = "http",
    lucius: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Where a service in Python has the package from: a wheel, a folder with sources, or such as "
            "lucius==0.1.0. Unless given: the wheel that this command came from, else an index.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(file_okay=False, help="Where to; a folder of that name unless given.")
    ] = None,
) -> None:
    """Write a platform service to start from, with tests, a Dockerfile and a protocol.

    As it is it keeps every rule of `lucius certify`. Only the work itself is yours to write.
    """
    if _is_name(name) is None:
        raise typer.BadParameter("NAME takes small letters, digits, - and _, a letter first.")
    if _is_step_type(step_type) is None:
        raise typer.BadParameter("--step-type takes capitals, digits and _, a letter first.")
    for named, text in (("NAME", name), ("--step-type", step_type)):
        if len(text) > LENGTH_MAX:
            raise typer.BadParameter(f"{named} takes at most {LENGTH_MAX} characters, not {len(text)}.")
    lang = one_of("--lang", lang, list(LANGUAGES))
    bus = one_of("--bus", bus, list(SKELETON_BUSES))
    if bus != HTTP and lang != PYTHON:
        raise typer.BadParameter(
            f"--bus {bus} needs --lang python: the skeleton in {lang} speaks HTTP alone."
        )
    target = folder or Path(name)
    out = Output(as_json=False)
    try:
        if target.exists() and any(target.iterdir()):
            out.say(f"error: {target} is not empty, and nothing in it shall be overwritten.")
            raise typer.Exit(EXIT_FAILED)
        write_skeleton(target, name=name, step_type=step_type, lang=lang, bus=bus)
        if lang == PYTHON:
            source = package_source(lucius)
            if source is not None:
                require_from(target, source, SKELETON_BUSES[bus].package)
    except OSError as fault:
        out.say(f"error: Cannot write to {target}: {fault.strerror}.")
        raise typer.Exit(EXIT_FAILED) from None
    out.data(str(target))
    out.say(f"Yours to write is {target / LANGUAGES[lang].work}. See {target / 'README.md'}.")


def write_skeleton(target: Path, *, name: str, step_type: str, lang: str, bus: str = HTTP) -> None:
    language, carried = LANGUAGES[lang], SKELETON_BUSES[bus]
    words = {
        "@NEEDS@": language.needs,
        "@ADDRESS@": carried.address,
        "@START@": language.start + carried.option,
        "@BUS@": carried.option,
        "@BUS_WORDS@": "".join(f', "{word}"' for word in carried.option.split()),
        "@PACKAGE@": carried.package,
        "@NAME@": name,
        "@ID@": name.replace("-", "_"),
        "@STEP_TYPE@": step_type,
        "@STEP@": step_type.lower(),
        "@TEST@": language.test,
        "@WORK@": language.work,
    }
    root = files("lucius.cli").joinpath("skeletons")
    for part in ("common", lang):
        for place, template in _templates(root.joinpath(part)):
            path = target / _filled(str(place), words).removesuffix(ENDING)
            path.parent.mkdir(parents=True, exist_ok=True)
            text = _filled(template.read_text(encoding="utf-8"), words)
            path.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                path.chmod(EXECUTABLE)


def package_source(asked: str | None) -> Path | str | None:
    """Where the package comes from: a wheel, a folder of sources, a requirement; None: an index has it."""
    if asked is None:
        own = _own_wheel()
        return own if own is not None and own.is_file() else None
    place = Path(asked)
    if place.suffix == ".whl" or place.is_dir() or "/" in asked:
        if place.is_dir() and not (place / "pyproject.toml").is_file():
            raise typer.BadParameter(f"--lucius {asked}: there is no pyproject.toml in that folder.")
        if not place.exists():
            raise typer.BadParameter(f"--lucius {asked}: there is no such file or folder.")
        return place
    if _is_requirement(asked) is None:
        raise typer.BadParameter(f"--lucius {asked}: must be a wheel, a folder or such as lucius==0.1.0.")
    return asked


def _own_wheel() -> Path | None:
    """The wheel that this Lucius was installed from, as the installer wrote it down."""
    try:
        noted = distribution("lucius").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    url = json.loads(noted).get("url", "") if noted else ""
    return Path(unquote(urlsplit(url).path)) if url.startswith("file:") and url.endswith(".whl") else None


def require_from(target: Path, source: Path | str, package: str) -> None:
    """Makes the skeleton take the package from there. A wheel lies beside the service, for its image, too."""
    extra = package.removeprefix("lucius")
    if isinstance(source, str):
        version = source.removeprefix("lucius")
        requirement = f"lucius{extra}{version}"
    else:
        vendor = target / VENDOR
        vendor.mkdir()
        wheel = _wheel_of(source, vendor)
        requirement = f"./{VENDOR}/{wheel.name}{extra}"
        dockerfile = target / "Dockerfile"
        text = dockerfile.read_text(encoding="utf-8")
        text = text.replace(
            "COPY requirements.txt ./\n", f"COPY requirements.txt ./\nCOPY {VENDOR} ./{VENDOR}\n"
        )
        dockerfile.write_text(text, encoding="utf-8")
    (target / "requirements.txt").write_text(f"{requirement}\n", encoding="utf-8")


def _wheel_of(source: Path, vendor: Path) -> Path:
    if source.is_file():
        return Path(shutil.copy(source, vendor))
    line = own_python(
        "-m", "pip", "--quiet", "wheel", "--no-deps", "--wheel-dir", str(vendor), str(source.resolve())
    )
    done = subprocess.run(line, capture_output=True, text=True, check=False)  # noqa: S603 (our own arguments)
    built = sorted(vendor.glob("lucius-*.whl"))
    if done.returncode or not built:
        reason = done.stderr.strip().splitlines()[-1:] or ["pip built no wheel of lucius"]
        raise typer.BadParameter(f"--lucius {source}: {reason[0]}")
    return built[0]


def _templates(folder: Traversable) -> Iterator[tuple[PurePosixPath, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            yield from ((PurePosixPath(entry.name) / place, below) for place, below in _templates(entry))
        elif entry.name.endswith(ENDING):
            yield PurePosixPath(entry.name), entry


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text
