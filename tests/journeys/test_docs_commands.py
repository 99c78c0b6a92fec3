"""What the pages of the documentation show is pasted and run, as a reader does it.

In: blocks of code that a page marks as belonging to a journey. `tests/project/test_docs_code.py` sees to it
that each block is run here or elsewhere, or says why it cannot be.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lucius_lab.processes import PartProcess

pytestmark = [pytest.mark.xdist_group("docs_commands"), pytest.mark.timeout(300)]

HOME = Path(__file__).parents[2]
DOCS = HOME / "docs"
SECONDS_MAX = 120
URL = "http://127.0.0.1:8420"
LETTER = "Dear Ms Vane,\nthe harbour office opens at nine. The lamp is lit at dusk.\n"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def blocks(page: str, journey: str) -> list[str]:
    text = (HOME / page).read_text(encoding="utf-8")
    found = re.findall(
        rf"^<!-- journey: {journey} -->\n```(?:bash|sh|console|python)\n(.*?)^```",
        text,
        re.DOTALL | re.MULTILINE,
    )
    assert found, f"{page} has no block of the journey {journey}"
    return [block.replace(".venv/bin/", "") for block in found]


def block(page: str, journey: str) -> str:
    (only,) = blocks(page, journey)
    return only


def output_after(page: str, journey: str) -> str:
    """What the page says that a block prints."""
    text = (HOME / page).read_text(encoding="utf-8")
    behind = text.partition(f"<!-- journey: {journey} -->\n```bash\n")[2].partition("\n```\n")[2]
    found = re.search(r"^```\n(.*?)^```", behind, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def words(page: str, journey: str) -> list[str]:
    """Of a block that starts one part of Lucius, whose terminal it keeps."""
    command, *rest = shlex.split(block(page, journey), comments=True)
    assert command == "lucius"
    return rest


class Reader:
    """Someone with a terminal, in a folder, whose Lucius is at some port."""

    def __init__(self, folder: Path, url: str, **env: str) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")}
        self._url = url
        self._env = {**kept, "PATH": PATH, "LUCIUS_URL": url, "HOME": str(folder), **env}

    def pastes(self, text: str, *, code: int = 0) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"exec 2>&1\n{text.replace(URL, self._url)}"],
            cwd=self.folder,
            env=self._env,
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def types(self, text: str, *arguments: str) -> str:
        """Runs a script in Python."""
        (self.folder / "script.py").write_text(text)
        return self.pastes(f"python script.py {shlex.join(arguments)}")


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(ends: ExitStack, folder: Path, *arguments: str, **env: str) -> PartProcess:
    server = PartProcess(folder, arguments[0], *arguments, port_option="--port", env=env)
    ends.callback(server.kill)
    server.start()
    return server


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Beside a Lucius as the page about protocols starts it, with the built-in services."""
    folder = tmp_path_factory.mktemp("reader")
    page = "docs/reference/protocols.md"
    Reader(folder, "").pastes(block(page, "ask file"))
    with ExitStack() as stack:
        server = started(stack, folder, *words(page, "ask server"))
        (folder / ".lucius/letter.txt").write_text(LETTER)
        yield Reader(folder, server.url)
        assert server.stop() == 0


def test_a_job_of_your_own(reader: Reader) -> None:
    (printed,) = (reader.pastes(text) for text in blocks("README.md", "letter"))
    assert printed.endswith(output_after("README.md", "letter").strip())


def test_a_protocol_of_your_own(reader: Reader) -> None:
    page = "docs/reference/protocols.md"
    assert output_after(page, "ask file").rstrip() in reader.pastes(block(page, "ask file"))
    assert reader.pastes(block(page, "ask")).endswith(output_after(page, "ask").strip())
    assert reader.pastes(block(page, "ask refused"), code=1) == output_after(page, "ask refused")
    edited = reader.folder / "protocols/ask.yaml"
    edited.write_text(edited.read_text().replace("max_attempts", "max_atempts"))
    assert output_after(page, "ask edited").strip() in reader.pastes(block(page, "ask edited"), code=1)
    reader.pastes(block(page, "ask file"))


def test_a_schedule(reader: Reader) -> None:
    page = "docs/guides/schedules.md"
    described = re.search(r"```yaml\n(.*?)```", (HOME / page).read_text(), re.DOTALL)
    assert described is not None
    (reader.folder / "nightly.yaml").write_text(described[1])
    printed = reader.pastes(block(page, "schedule"))
    assert "invoices-of-the-night" in printed and "job_" in printed
    assert "invoices-of-the-night" not in reader.pastes("lucius schedules list")


def test_a_pause(reader: Reader) -> None:
    printed = reader.pastes(block("docs/guides/flow-control.md", "pause"))
    assert "no licence until Monday" in printed


def test_the_client_in_both_forms(reader: Reader) -> None:
    data = (reader.folder / ".lucius").as_uri()
    calls, blocking = (
        text.replace("s3://in/letter.pdf", f"{data}/letter.txt").replace("s3://out", data)
        for text in blocks("docs/guides/client.md", "client")
    )
    awaited = f"import asyncio\n\nasync def main():\n{textwrap.indent(calls, '    ')}\nasyncio.run(main())\n"
    assert reader.types(awaited).startswith("file://")
    assert reader.types(blocking).splitlines()[-1].endswith(" JOB_SUCCEEDED")


def test_an_examination_and_a_question_of_readiness(reader: Reader) -> None:
    text = block("docs/guides/doctor.md", "doctor").replace("/srv/lucius", str(reader.folder / ".lucius"))
    assert reader.pastes(text).strip()
    assert '"status":"ok"' in reader.pastes(block("docs/guides/embedded.md", "ready")).replace(" ", "")


def test_a_shell_completes(reader: Reader) -> None:
    bash, zsh, fish = block("docs/reference/cli.md", "completion").splitlines()
    loaded = reader.pastes(f"{bash}\ncomplete -p lucius")
    assert "lucius" in loaded
    written = re.search(r"<\((.*?)\)", zsh)
    assert written is not None and "#compdef lucius" in reader.pastes(written[1])
    (reader.folder / ".config/fish/completions").mkdir(parents=True)
    reader.pastes(fish)
    assert "complete" in (reader.folder / ".config/fish/completions/lucius.fish").read_text()


def test_an_export_is_checked_by_any_program_and_goes_into_another_ledger(
    tmp_path: Path, ends: ExitStack
) -> None:
    server = started(ends, tmp_path, "dev", "--no-sample")
    (tmp_path / ".lucius/letter.txt").write_text(LETTER)
    reader = Reader(tmp_path, server.url)
    reader.pastes("lucius run OCR .lucius/letter.txt")
    assert server.stop() == 0
    page = "docs/guides/backup.md"
    text = block(page, "export")
    assert text.count("--store postgresql://lucius@db.example/lucius") == 1
    # On PostgreSQL itself: `make transfer-journey`.
    reader.pastes(text.replace("--store postgresql://lucius@db.example/lucius", "--data again"))
    assert (tmp_path / "again/lucius.db").is_file()
    reader.types(block(page, "chain"), "ledger.jsonl")
    written = (tmp_path / "ledger.jsonl").read_text()
    (tmp_path / "changed.jsonl").write_text(written.replace("letter.txt", "better.txt", 1))
    with pytest.raises(AssertionError, match="line "):
        reader.types(block(page, "chain"), "changed.jsonl")


@pytest.mark.parametrize("page", ["docs/guides/platform-services.md", "docs/tutorials/worked-session.md"])
def test_a_worker_without_any_package(page: str, tmp_path: Path, ends: ExitStack) -> None:
    shutil.copytree(HOME / "examples", tmp_path / "examples")
    server = started(ends, tmp_path, *words(page, "summarise server"))
    command = [sys.executable, *shlex.split(block(page, "summarise worker"))[1:]]
    log = ends.enter_context((tmp_path / "worker.log").open("wb"))
    env = {**os.environ, "LUCIUS_URL": server.url}
    worker = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log)
    ends.callback(worker.wait, SECONDS_MAX)
    ends.callback(worker.kill)
    printed = Reader(tmp_path, server.url).pastes(block(page, "summarise"))
    assert printed.endswith(output_after(page, "summarise"))


def test_tls_on_ones_own_machine(tmp_path: Path, ends: ExitStack) -> None:
    page = "docs/guides/tls.md"
    Reader(tmp_path, "").pastes(block(page, "tls certificate"))
    *settings, command, part = block(page, "tls server").split()
    assert (command, part) == ("lucius", "api")
    server = started(ends, tmp_path, part, **dict(setting.split("=", 1) for setting in settings))
    asked = block(page, "tls").replace("https://127.0.0.1:8420", server.url)
    assert "No jobs." in Reader(tmp_path, server.url).pastes(asked)


def test_keys_from_the_first_to_a_revocation(tmp_path: Path, ends: ExitStack) -> None:
    page = "docs/guides/security.md"
    first, exported, *later = (line.removeprefix("$ ") for line in block(page, "keys").splitlines())
    assert exported == "export LUCIUS_API_KEY=lk_…"
    server = started(ends, tmp_path, "dev", "--services", "none", "--no-sample", LUCIUS_AUTH="required")
    reader = Reader(tmp_path, server.url)
    root = re.search(r"^lk_\S+$", reader.pastes(first), re.MULTILINE)
    assert root is not None
    reader = Reader(tmp_path, server.url, LUCIUS_API_KEY=root[0])
    *made, revoked = later
    printed = reader.pastes("\n".join(made))
    rows = {
        line.split()[1]: line.split()[0] for line in printed.splitlines() if re.match(r"[0-9a-f]{16} ", line)
    }
    assert {"root", "billing", "ocr-worker"} == set(rows)
    reader.pastes(revoked.replace("9f3c5a7e1b2d4860", rows["billing"]))
    ((agent,),) = (
        re.findall(r"^lk_\S+$", reader.pastes(block("docs/guides/agents.md", "agent key")), re.MULTILINE),
    )
    assert "No jobs." in Reader(tmp_path, server.url, LUCIUS_API_KEY=agent).pastes("lucius jobs list")
    assert reader.pastes(block(page, "callback key").removeprefix("$ ")).strip()


def test_parts_of_a_service_in_python_are_as_they_are_shown() -> None:
    page = "docs/guides/platform-services.md"
    whole, declared = blocks(page, "python service")
    names: dict[str, object] = {}
    exec(compile(whole, page, "exec", dont_inherit=True), names)
    prelude = (
        "from pydantic import BaseModel\n"
        "from lucius.sdk import Final, Retryable, Task, service\n"
        "model = None\n"
    )
    exec(compile(prelude + declared, page, "exec", dont_inherit=True), names)
    assert {"summarise", "ocr", "model_loaded"} <= set(names)
