"""A worker in TypeScript and in Go, from an empty folder to its certificate: docs/guides/worker-kits.md."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.kits import KITS, TSC, built_typescript, cloned, run

pytestmark = [pytest.mark.xdist_group("certify"), pytest.mark.timeout(900)]

PAGE = KITS.parent / "docs" / "guides" / "worker-kits.md"
SECONDS_MAX = 240
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
# What is installed is on this machine already; nothing is asked of a registry.
OFFLINE = {
    **{f"npm_config_{name}": "false" for name in ("audit", "fund", "update_notifier")},
    "npm_config_offline": "true",
    "GOFLAGS": "-mod=mod",
    "GOPROXY": "off",
}
SOME_RULES = " --rule result-once --rule failure-final"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def block(journey: str) -> str:
    found = re.search(rf"<!-- journey: {journey} -->\n```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def pasted(text: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env={**os.environ, **OFFLINE, "PATH": PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("begin", "certify"),
    [("typescript", "typescript certify"), ("go", "go certify")],
    ids=["typescript", "go"],
)
def test_the_page_from_an_empty_folder_to_a_certified_worker(
    begin: str, certify: str, tmp_path: Path
) -> None:
    """Every rule is tried in `test_certify_kits.py`."""
    cloned(tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir()
    pasted(block(begin), mine)
    (samples,) = blocks(PAGE, "json")
    (mine / "certify.json").write_text(samples)
    report = pasted(block(certify).strip() + SOME_RULES, mine)
    assert report.splitlines()[-1] == "hello (HELLO) over http: 2 passed"


@pytest.mark.parametrize("page", [PAGE, KITS / "typescript/README.md"], ids=["guide", "package"])
def test_typescript_of_the_pages_compiles_strictly(page: Path, tmp_path: Path) -> None:
    built_typescript(tmp_path)
    (text,) = blocks(page, "ts")
    (tmp_path / "mine.ts").write_text(text)
    (tmp_path / "package.json").write_text(json.dumps({"type": "module"}))
    strict = json.loads((KITS / "typescript/tsconfig.json").read_text())["compilerOptions"]
    types = {"typeRoots": [str(TSC.parents[1] / "@types")]}
    settings = {**strict, **types, "rootDir": ".", "outDir": "built"}
    (tmp_path / "tsconfig.json").write_text(json.dumps({"compilerOptions": settings, "files": ["mine.ts"]}))
    run(TSC, "-p", ".", folder=tmp_path)
    assert "lucius-worker" in (tmp_path / "built/mine.js").read_text()


@pytest.mark.parametrize("page", [PAGE, KITS / "go/README.md"], ids=["guide", "module"])
def test_go_of_the_pages_builds_and_is_formatted(page: Path, tmp_path: Path) -> None:
    cloned(tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir()
    (text,) = blocks(page, "go")
    if not text.startswith("package"):  # the start of a file is left out
        text = f'package main\n\nimport (\n\t"context"\n\t"strings"\n\n\t"lucius/worker"\n)\n\n{text}'
    (mine / "main.go").write_text(text)
    *begun, _, _ = block("go").strip().splitlines()
    pasted("\n".join(begun) + "\ngo vet . && go build -o hello .", mine)
    assert pasted("gofmt -l .", mine) == ""
