"""The worker kits: their types are those of the schemas, they build, and what is published is whole."""

import json
import sys
from pathlib import Path

from tests.support.kits import KITS, built_typescript, run


def test_their_types_are_those_of_the_schemas() -> None:
    run(sys.executable, KITS.parent / "tools/kit_types.py", "--check", folder=KITS)


def test_the_go_module_is_formatted_and_sound_and_needs_nothing() -> None:
    assert run("gofmt", "-l", ".", folder=KITS / "go") == ""
    run("go", "vet", "./...", folder=KITS / "go")
    assert "require" not in (KITS / "go/go.mod").read_text()


def test_the_npm_package_holds_what_is_imported_and_its_types(tmp_path: Path) -> None:
    package = built_typescript(tmp_path) / "node_modules/lucius-worker"
    named = json.loads((package / "package.json").read_text())
    assert "dependencies" not in named
    assert named["files"] == ["dist", "README.md"]
    for path in named["exports"]["."].values():
        assert (package / path).is_file()
    script = "import('lucius-worker').then((kit) => console.log(Object.keys(kit).sort().join()))"
    assert run("node", "-e", script, folder=tmp_path).strip() == "Final,Retryable,Stopped,Task,Worker"
