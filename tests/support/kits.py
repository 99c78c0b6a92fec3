"""The worker kits as a user installs them: the npm package built, in node_modules; the Go example."""

import shutil
import subprocess
from pathlib import Path

KITS = Path(__file__).parents[2] / "kits"
TSC = KITS.parent / "node_modules/.bin/tsc"
SECONDS_MAX = 240


def built_typescript(folder: Path) -> Path:
    """A folder with the package `lucius-worker` and the example, which `node hello.mjs` runs."""
    source, package = KITS / "typescript", folder / "node_modules/lucius-worker"
    package.mkdir(parents=True)
    run(TSC, "-p", source, "--outDir", package / "dist", folder=source)
    shutil.copy(source / "package.json", package)
    shutil.copy(source / "example/hello.mjs", folder)
    return folder


def cloned(folder: Path) -> Path:
    """A clone as the guide has it beside a worker, with the packages that its build needs fetched already."""
    clone = folder / "lucius"
    shutil.copytree(KITS, clone / "kits", ignore=shutil.ignore_patterns("node_modules", "dist"))
    modules = clone / "kits/typescript/node_modules"
    for name in ("typescript", "undici-types", "@types/node"):
        shutil.copytree(KITS.parent / "node_modules" / name, modules / name)
    return clone


def built_go(folder: Path) -> Path:
    """The program of the example."""
    program = folder / "hello"
    run("go", "build", "-o", program, "./example/hello", folder=KITS / "go")
    return program


def run(*command: object, folder: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
