"""Builds the wheel and the sdist, checks them, installs each into an environment of its own, runs the sample.

In: the folder to put them in, and the environment that has `build`, `twine` and `pipx`. Out: both files, and
how long each step took. Nothing of the repository is on the path of what is tried: a module or a file that
was left out of a distribution is found here.

Usage: python tools/dist.py [--to dist] [--tools .venv-dist] [--only wheel|sdist] [--build-only]
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOME = Path(__file__).parents[1]
SAMPLE_SECONDS_MAX = 120
SETTINGS = ("LUCIUS_", "PYTHON", "VIRTUAL_ENV")


def run(*words: object, cwd: Path = HOME, env: dict[str, str] | None = None) -> str:
    line = [str(word) for word in words]
    done = subprocess.run(line, cwd=cwd, env=env, capture_output=True, text=True)  # noqa: S603 - ours
    if done.returncode:
        sys.exit(f"error: {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def built(tools: Path, folder: Path) -> list[Path]:
    """The sdist, and the wheel made from it: what is missing in the first is missing in the second."""
    for old in folder.glob("lucius-*"):
        old.unlink()
    run(tools / "bin/python", "-m", "build", "--outdir", folder, HOME)
    files = sorted(folder.glob("lucius-*"))
    run(tools / "bin/python", "-m", "twine", "check", "--strict", *files)
    return files


def outside() -> dict[str, str]:
    """The environment of a user who has nothing of this repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}


def tried(file: Path, scratch: Path) -> None:
    venv, here = scratch / "venv", scratch / "here"
    here.mkdir()
    began = time.monotonic()
    run(HOME / "tools/make-venv", "python3", venv)
    run(HOME / "tools/install-packages", venv, file, cwd=here, env=outside())
    installed = time.monotonic()
    lucius = venv / "bin" / "lucius"
    version = run(lucius, "--version", cwd=here, env=outside()).split()[1]
    if f"-{version}" not in file.name:
        sys.exit(f"error: {file.name} says that it is {version}")
    up, done = sample_seconds(lucius, here)
    times = f"installed in {installed - began:.0f} s, up after {up:.1f} s, sample done after {done:.1f} s"
    say(f"{file.name}: {times}")


def sample_seconds(lucius: Path, here: Path) -> tuple[float, float]:
    """How long `lucius dev` takes to be up, and until its sample has been through all steps."""
    began = time.monotonic()
    with (here / "log").open("wb") as log:
        line = [lucius, "dev", "--json", "--port", "0"]
        dev = subprocess.Popen(line, cwd=here, env=outside(), stdout=subprocess.PIPE, stderr=log)  # noqa: S603
    try:
        line = dev.stdout.readline() if dev.stdout else b""
        if not line:
            sys.exit(f"error: lucius dev ended\n{(here / 'log').read_text()}")
        up = time.monotonic() - began
        env = {**outside(), "LUCIUS_URL": json.loads(line)["url"]}
        while not json.loads(run(lucius, "jobs", "list", "--state", "SUCCEEDED", "--json", env=env))["items"]:
            if time.monotonic() - began > SAMPLE_SECONDS_MAX:
                sys.exit(f"error: the sample did not succeed\n{(here / 'log').read_text()}")
            time.sleep(0.1)
        done = time.monotonic() - began
        dev.send_signal(signal.SIGTERM)
        if dev.wait(timeout=60):
            sys.exit(f"error: lucius dev ended with {dev.returncode}\n{(here / 'log').read_text()}")
    finally:
        dev.kill()
    return up, done


def certified(wheel: Path, scratch: Path) -> None:
    """A service from its skeleton: installed as its requirements say, tested, and certified."""
    here, program = scratch / "here", scratch / "venv" / "bin"
    began = time.monotonic()
    run(program / "lucius", "service", "new", "hello", "--step-type", "HELLO", cwd=here, env=outside())
    service = here / "hello"
    if wheel.name not in (service / "requirements.txt").read_text():
        sys.exit("error: the skeleton does not take the wheel that its command was installed from")
    venv = scratch / "service"
    run(HOME / "tools/make-venv", "python3", venv)
    run(HOME / "tools/install-packages", venv, "-r", "requirements.txt", "pytest", cwd=service, env=outside())
    installed = time.monotonic()
    env = {**outside(), "PATH": f"{venv / 'bin'}:{os.environ['PATH']}"}
    run(venv / "bin/python", "-m", "pytest", "-q", cwd=service, env=env)
    names = ("--service", "hello", "--step-type", "HELLO", "--sample", "certify.json")
    start = "lucius service run service:handle"
    run(venv / "bin/lucius", "certify", *names, "--start", start, cwd=service, env=env)
    times = f"installed in {installed - began:.0f} s, certified {time.monotonic() - installed:.0f} s later"
    say(f"a service from its skeleton: {times}")


def tried_without_installing(tools: Path, wheel: Path, scratch: Path) -> None:
    """As `pipx run` does it from a wheel."""
    env = {**outside(), "PIPX_HOME": str(scratch / "pipx"), "PIPX_BIN_DIR": str(scratch / "bin")}
    began = time.monotonic()
    run(
        tools / "bin/python",
        "-m",
        "pipx",
        "run",
        "--spec",
        wheel,
        "lucius",
        "--version",
        cwd=scratch,
        env=env,
    )
    say(f"{wheel.name}: pipx run took {time.monotonic() - began:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", type=Path, default=HOME / "dist")
    parser.add_argument("--tools", type=Path, default=HOME / ".venv-dist")
    parser.add_argument("--only", choices=("wheel", "sdist"))
    parser.add_argument("--build-only", action="store_true")
    wanted = parser.parse_args()
    folder = wanted.to.resolve()
    files = built(wanted.tools.resolve(), folder)
    say("\n".join(f"{file.relative_to(folder.parent)}: {file.stat().st_size // 1024} KiB" for file in files))
    for file in () if wanted.build_only else files:
        is_wheel = file.suffix == ".whl"
        if wanted.only and (wanted.only == "wheel") is not is_wheel:
            continue
        scratch = Path(tempfile.mkdtemp(prefix="lucius-dist-"))
        try:
            tried(file, scratch)
            if is_wheel:
                certified(file, scratch)
                tried_without_installing(wanted.tools.resolve(), file, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
