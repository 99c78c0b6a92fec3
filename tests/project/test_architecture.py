"""The page about the architecture shows the packages and the layers that there are."""

import re
import tomllib
from pathlib import Path

HOME = Path(__file__).parents[2]
PAGE = HOME / "docs" / "explanation" / "architecture.md"
PRODUCT = HOME / "src" / "lucius"

_BLOCK = re.compile(r"^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# `api/          …` two spaces in, or `sqlite/  postgres/` among what lies four spaces in.
_PACKAGE = re.compile(r"^  (\w+)/", re.MULTILINE)
_ADAPTER = re.compile(r"(\w+)/")
WITH_ADAPTERS = ("ledger", "bus", "registry", "engines")


def packages_in(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/__init__.py")}


def blocks_of_page() -> list[str]:
    return _BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def tree_of_page() -> str:
    return next(block for block in blocks_of_page() if block.startswith("src/lucius/\n"))


def test_the_tree_of_the_page_has_every_package() -> None:
    assert set(_PACKAGE.findall(tree_of_page())) == packages_in(PRODUCT)


def test_the_tree_of_the_page_has_every_adapter() -> None:
    tree = tree_of_page()
    for name in WITH_ADAPTERS:
        below = tree.partition(f"\n  {name}/")[2].partition("\n")[2]
        inner = "\n".join(re.match(r"(?: {4}.*\n)*", below)[0].splitlines())  # type: ignore[index]
        assert set(_ADAPTER.findall(inner)) >= packages_in(PRODUCT / name), name


def test_the_layers_of_the_page_are_those_that_lint_checks() -> None:
    checked = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))
    layers = next(
        contract["layers"]
        for contract in checked["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    )
    shown = next(block for block in blocks_of_page() if block.startswith("lucius_lab\n")).split("\n")[:-1]
    assert shown == [layer.replace("lucius.", "") for layer in layers]
