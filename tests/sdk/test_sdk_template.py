"""The guide says where each component of a service's template is: the modules that it names are there."""

import importlib
import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "platform-services.md"
COMPONENTS = {
    "servicebus_consumer.py",
    "directive_model.py",
    "idempotency_store.py",
    "ack_client.py",
    "result_client.py",
    "workspace_io.py",
    "error_model.py",
    "health.py",
}


def test_every_component_of_the_template_has_its_modules() -> None:
    table = GUIDE.read_text().split("### What a service is made of\n")[1].split("\n##")[0]
    rows = re.findall(r"^\| (`\w+\.py`.*?) \|.*\| (.*) \|$", table, re.MULTILINE)
    named = {name for first, _ in rows for name in re.findall(r"`(\w+\.py)`", first)}
    assert named == COMPONENTS
    for first, second in rows:
        modules = re.findall(r"`(lucius\.[a-z_.]+)`", second)
        assert modules, first
        for module in modules:
            importlib.import_module(module)
