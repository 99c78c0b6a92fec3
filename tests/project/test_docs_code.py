"""The blocks of code in the documentation: each is in a language and checked as such, or it is output.

Commands of `lucius` are read by the command line itself: a command or an option that there is not is a fault
of the page. A block that can be run says in a comment before it what runs it: a journey, which pastes it as
it is; a test that does the same in other words; or why none can.
"""

import ast
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from typer.core import TyperGroup

from lucius.cli.lab import LabCommands
from lucius.cli.main import app
from lucius.cli.tree import command_tree
from lucius.core.model import StepPolicy
from lucius.registry.documents import parse_protocol

HOME = Path(__file__).parents[2]
DOCS = HOME / "docs"
PAGES = [path for path in sorted([*HOME.glob("*.md"), *DOCS.rglob("*.md")]) if "decisions" not in path.parts]
SHELLS = {"bash", "sh", "console"}
# Languages that are shown and not run: each with what looks at it instead.
SHOWN = {"mermaid": "drawn from tables", "text": "output", "": "output"}
_BLOCK = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1.*?^\s*\2$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(HOME)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        indent = found[1]
        body = "\n".join(line.removeprefix(indent) for line in found[3].splitlines())
        yield Block(page, text.count("\n", 0, found.start()) + 1, found[2].strip(), body)


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def of(*languages: str) -> list[Any]:
    return [pytest.param(block, id=block.place) for block in BLOCKS if block.language in languages]


def commands_of(block: Block) -> Iterator[list[str]]:
    """The words of each call of `lucius` in a block."""
    text = block.text
    if block.language == "console":
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    text = _HERE_DOCUMENT.sub("", text.replace("\\\n", " "))
    for line in text.splitlines():
        for piece in re.split(r"\|\||&&|[|;]|\$\(|`", re.sub(r"'[^']*'|\"[^\"]*\"", _quoted, line)):
            words = _words(piece.replace("\x00", " "))
            while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
                words = words[1:]
            if words and re.fullmatch(r"(?:.*/)?lucius", words[0]):
                yield words[1:]


def _quoted(found: re.Match[str]) -> str:
    """What is quoted splits no command: its blanks and signs are put away."""
    return re.sub(r"[^\w./:*=,{}@+-]", "_", found.group()[1:-1]) or "_"


def _words(piece: str) -> list[str]:
    piece = re.split(r"\s#|\s[<>]|\s2>|\s&\s", f" {piece} ".replace(")", " "), maxsplit=1)[0]
    try:
        return shlex.split(piece)
    except ValueError:
        return []


def fault_of(words: list[str]) -> str | None:
    """Why the command line would not take these words; None: it would."""
    command, path = command_tree(app), ["lucius"]
    while isinstance(command, TyperGroup) and not isinstance(command, LabCommands):
        while words and words[0].startswith("-"):
            words = words[2 if words[0] == "--profile" else 1 :]
        if not words:
            return None
        path.append(words[0])
        command = command.commands.get(words[0])
        if command is None:
            return f"there is no command {' '.join(path)}"
        words = words[1:]
    if isinstance(command, LabCommands):
        return None
    options = {name: param for param in command.params for name in (*param.opts, *param.secondary_opts)}
    arguments, at = 0, 0
    while at < len(words):
        word = words[at]
        name = word.partition("=")[0]
        if word.startswith("-") and word != "-" and not word.startswith("-_"):
            if name in ("--help", "-h"):
                return None
            if name not in options:
                return f"{' '.join(path)} has no option {name}"
            param = options[name]
            at += 1 if getattr(param, "is_flag", False) or "=" in word else 2
            continue
        arguments, at = arguments + 1, at + 1
    takes = [param for param in command.params if param.param_type_name == "argument"]
    if arguments > len(takes) and not any(param.nargs == -1 for param in takes):
        return f"{' '.join(path)} takes {len(takes)} arguments, not {arguments}"
    return None


RUN = {"bash", "sh", "console", "python", "js", "ts", "go", "sql"}
NOT_RUN = {"needs an agent", "needs Docker", "needs Kubernetes", "needs AWS", "downloads a model"}
_MARK = re.compile(r"<!-- (journey|tested|not run): (.+) -->")


def _run_by(block: Block) -> str | None:
    """What is wrong with what a block says about who runs it; None: nothing."""
    before = block.page.read_text(encoding="utf-8").splitlines()[block.line - 2].strip()
    mark = _MARK.fullmatch(before)
    if mark is None:
        return "does not say what runs it"
    kind, said = mark.groups()
    if kind == "journey":
        return None if f'"{said}"' in JOURNEYS else f"no test has the journey {said!r}"
    if kind == "tested":
        return None if (HOME / said).exists() else f"there is no {said}"
    return None if said in NOT_RUN else f"{said!r} is no reason"


def _journeys() -> str:
    """The tests that paste blocks: each journey is named there, in quotes."""
    paths = (*HOME.glob("tests/journeys/test_*_commands.py"), *HOME.glob("tests/certify/test_*_page.py"))
    named = [*paths, HOME / "tests/certify/test_first_service.py"]
    return "\n".join(path.read_text(encoding="utf-8") for path in named)


JOURNEYS = _journeys()


@pytest.mark.parametrize("block", of(*RUN))
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    assert _run_by(block) is None, f"{block.place}: {_run_by(block)}"


def test_every_block_says_what_it_is() -> None:
    checked = {"bash", "sh", "console", "python", "json", "jsonl", "yaml", "toml", *SHOWN, *OTHERS}
    assert {block.language for block in BLOCKS} <= checked, [
        block.place for block in BLOCKS if block.language not in checked
    ]
    assert len(BLOCKS) > 100


# Files of other programs, which tests of their own look at.
OTHERS = {
    "go": "tests/certify",
    "hcl": "tests/deploy",
    "js": "tests/certify",
    "sql": "tests/journeys/test_journey_ledger_queries.py",
    "ts": "tests/certify",
}


@pytest.mark.parametrize("block", of("bash", "sh"))
def test_a_script_is_one(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"{block.place}: {done.stderr}"


@pytest.mark.parametrize("block", of(*SHELLS))
def test_a_command_of_a_page_is_one_that_there_is(block: Block) -> None:
    for words in commands_of(block):
        assert fault_of(words) is None, f"{block.place}: lucius {' '.join(words)}: {fault_of(words)}"


def test_commands_that_there_are_not_are_noticed() -> None:
    def faults(line: str) -> list[str | None]:
        return [fault_of(words) for words in commands_of(Block(HOME, 1, "bash", line))]

    assert faults("lucius jobs list --state QUEUED --limit 3 | cat") == [None]
    assert faults("export X=$(lucius keys create a --tenant '*' --role read)  # first") == [None]
    assert faults("cd x && .venv/bin/lucius jobs lst") == ["there is no command lucius jobs lst"]
    assert faults("LUCIUS_URL=x lucius run --colour red") == ["lucius run has no option --colour"]
    assert faults("lucius lane a b c") == ["lucius lane takes 2 arguments, not 3"]


@pytest.mark.parametrize("block", of("python"))
def test_python_is_python(block: Block) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compile(block.text, block.place, "exec", flags=flags | ast.PyCF_ONLY_AST, dont_inherit=True)


@pytest.mark.parametrize("block", of("json", "jsonl"))
def test_json_is_json(block: Block) -> None:
    for text in block.text.splitlines() if block.language == "jsonl" else [block.text]:
        json.loads(text)


@pytest.mark.parametrize("block", of("toml"))
def test_toml_is_toml(block: Block) -> None:
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("block", of("yaml"))
def test_yaml_is_yaml_and_a_protocol_is_one(block: Block) -> None:
    for document in yaml.safe_load_all(block.text):
        if isinstance(document, dict) and "protocol_id" in document:
            parsed = parse_protocol(document, defaults=StepPolicy())
            assert not isinstance(parsed, tuple), f"{block.place}: {parsed}"
