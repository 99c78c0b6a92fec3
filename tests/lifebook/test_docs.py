"""What the pages say is so: the tutorial's code runs, and only the composition root reads a clock."""

import ast
import re
from pathlib import Path
from typing import Any

from tests.lifebook.api_setup import Deployment
from tests.lifebook.servers import TOP

from lucius.lifebook.workflows import REGISTRY, WorkflowRegistry

DOCS = TOP / "docs" / "lifebook"
SOURCE = TOP / "src" / "lucius" / "lifebook"
# Those that start processes or wait for them look at a clock to give up; nothing is decided by it.
CLOCKS_ALLOWED = {"build.py", "local.py"}
CLOCKS = re.compile(
    r"\b(time\.(time|time_ns|monotonic)|datetime\.(now|today)|utcnow|uuid[14]|secrets\.|random\.)"
)


def _blocks(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


async def test_the_workflows_of_the_tutorial_run() -> None:
    names: dict[str, Any] = {}
    for block in _blocks("tutorial.md"):
        exec(compile(block, "tutorial.md", "exec"), names)
    found = REGISTRY.get("summarise")
    assert found is not None
    assert REGISTRY.get("read-letter") is not None
    deployment = Deployment(workflows=WorkflowRegistry([found]))
    await deployment.balances.grant("demo", found.credits * 2)
    asked = {"workspace_id": "demo", "user_id": "ann", "workflow_id": "summarise"}
    good, bad = [
        (await deployment.ask("POST", "/v1/runs", 202, json={**asked, "input": {"uri": uri}}))["job_id"]
        for uri in ("s3://bucket/letter.pdf", "https://example.com/letter.pdf")
    ]
    await deployment.work()
    done = await deployment.ask("GET", f"/v1/runs/{good}", 200)
    assert (done["status"], done["credits_spent"]) == ("completed", "1.25")
    assert done["results"][1] == {"summary": "of s3://bucket/letter.pdf.txt"}
    dead = await deployment.ask("GET", f"/v1/runs/{bad}", 200)
    assert (dead["status"], dead["last_error_code"]) == ("dead", "NOT_IN_S3")


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in DOCS.glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert "://" in link or (page.parent / link).exists(), f"{page.name}: {link}"


def test_only_the_composition_root_reads_a_clock_or_draws_chance() -> None:
    found = [
        f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        for path in SOURCE.glob("*.py")
        if path.name not in CLOCKS_ALLOWED
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute | ast.Name) and CLOCKS.search(ast.unparse(node))
    ]
    assert found == []


def test_the_pages_name_no_setting_that_is_not_there() -> None:
    from lucius.lifebook.settings import DEFAULTS

    named = set()
    for page in (*DOCS.glob("*.md"), *(TOP / "docs" / "decisions").glob("06*.md")):
        named |= set(re.findall(r"LIFEBOOK_[A-Z_]+", Path(page).read_text(encoding="utf-8")))
    assert named <= set(DEFAULTS)
