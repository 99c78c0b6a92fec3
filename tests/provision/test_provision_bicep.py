"""The Bicep files say what the plan says. They are read loosely: what is checked is names and numbers.

A parser reads them in tests/deploy/test_bicep.py.
"""

import re
from pathlib import Path

from lucius.bus.service_bus.names import SERVICE_PROPERTY
from lucius.core.routing import LANES, reply_topic, topic
from lucius.ledger.names import Tables
from lucius.provision.plan import DELIVERIES_MAX, DUPLICATE_WINDOW_SECONDS, LOCK_SECONDS, wanted_tables
from lucius.registry.builtin import BuiltinRegistry
from lucius.settings import read_settings
from lucius.settings.names import VARIABLES

FOLDER = Path(__file__).parents[2] / "deploy" / "azure"
FILES = sorted(FOLDER.glob("*.bicep"))
UNITS = {"S": 1, "M": 60, "H": 3600}


def read(name: str) -> str:
    """Without comments."""
    text = (FOLDER / f"{name}.bicep").read_text(encoding="utf-8")
    return re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)


def items(text: str, name: str) -> list[str]:
    """The texts of a list that a variable or a parameter holds."""
    found = re.search(rf"^(?:var|param) {name}(?: array)? = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return re.findall(r"'([^']*)'", found[1])


def default(text: str, name: str) -> str:
    found = re.search(rf"^(?:var|param) {name}(?: \w+)? = '?([^'\n]*)'?$", text, re.MULTILINE)
    assert found is not None
    return found[1]


def seconds(span: str) -> int:
    found = re.fullmatch(r"PT(\d+)([SMH])", span)
    assert found is not None
    return int(found[1]) * UNITS[found[2]]


def block(text: str, kind: str) -> list[str]:
    """The bodies of the resources of a kind."""
    return re.findall(rf"^resource \w+ '{re.escape(kind)}@[^']*' = (.*?)^\}}", text, re.MULTILINE | re.DOTALL)


def test_the_tables_are_those_of_the_plan() -> None:
    text = read("storage")
    names = [f"luciusZ{name}" for name in items(text, "tables")]
    assert names == [thing.name for thing in wanted_tables("lucius", Tables())]
    assert "name: '${tablePrefix}Z${tableName}'" in text
    assert default(read("main"), "tablePrefix") == read_settings({}).table_account.prefix


def test_the_topics_are_those_of_the_plan() -> None:
    text = read("service-bus")
    assert int(default(text, "lanes")) == LANES
    named = re.findall(r"name: '([a-z-]+\$\{lane\})'", text)
    assert named == [topic(0)[:-1] + "${lane}", reply_topic(0)[:-1] + "${lane}"]
    topics = block(text, "Microsoft.ServiceBus/namespaces/topics")
    assert len(topics) == 2
    for body in topics:
        assert "range(0, lanes)" in body
        assert "requiresDuplicateDetection: true" in body
        assert "duplicateDetectionHistoryTimeWindow: duplicateWindow" in body
    assert seconds(default(text, "duplicateWindow")) == DUPLICATE_WINDOW_SECONDS


def test_the_subscriptions_are_those_of_the_plan() -> None:
    text, settings = read("service-bus"), read_settings({})
    subscriptions = block(text, "Microsoft.ServiceBus/namespaces/topics/subscriptions")
    assert len(subscriptions) == 2
    for body in subscriptions:
        assert "lockDuration: lockDuration" in body
        assert "maxDeliveryCount: deliveriesMax" in body
        assert "deadLetteringOnMessageExpiration: true" in body
        assert "requiresSession: sessions" in body
    assert default(read("main"), "serviceBusSessions") == "false"
    assert "sessions: serviceBusSessions" in read("main")
    assert not settings.service_bus.sessions
    assert seconds(default(text, "lockDuration")) == LOCK_SECONDS
    assert int(default(text, "deliveriesMax")) == DELIVERIES_MAX == settings.service_bus.deliveries_max
    assert default(read("main"), "replySubscription") == settings.service_bus.reply_subscription
    services = {step.service for protocol in BuiltinRegistry().all() for step in protocol.steps}
    assert items(read("main"), "services") == sorted(services)


def test_a_service_takes_what_bears_its_name() -> None:
    text = read("service-bus")
    (rule,) = block(text, "Microsoft.ServiceBus/namespaces/topics/subscriptions/rules")
    assert "name: '$Default'" in rule
    assert f"{SERVICE_PROPERTY}: services[i / lanes]" in rule
    to_services = block(text, "Microsoft.ServiceBus/namespaces/topics/subscriptions")[0]
    assert "parent: topic[i % lanes]" in to_services
    assert "name: services[i / lanes]" in to_services
    assert text.count("range(0, lanes * length(services))") == 2
    assert text.count(f"@batchSize({LANES})") == 2


def test_the_outputs_are_settings_that_are_read() -> None:
    named = re.findall(r"^output (LUCIUS_\w+) string", read("main"), re.MULTILINE)
    assert len(named) == 9
    assert [name for name in named if name not in VARIABLES] == []


def test_every_module_is_given_what_it_asks_for() -> None:
    modules = re.findall(
        r"^module \w+ '([\w-]+)\.bicep' = (?:\[for [^:]+: )?\{(.*?)^\}",
        read("main"),
        re.MULTILINE | re.DOTALL,
    )
    assert {name for name, _ in modules} == {path.stem for path in FILES} - {"main"}
    for name, body in modules:
        asked = re.findall(r"^param (\w+) \w+$", read(name), re.MULTILINE)
        given = re.findall(r"^    (\w+): ", body, re.MULTILINE)
        assert sorted(given) == sorted(asked)
    used = re.findall(r"(\w+)\.outputs\.(\w+)", read("main"))
    assert len(used) == 8
    told = {each for path in FILES for each in re.findall(r"^output (\w+) ", read(path.stem), re.MULTILINE)}
    assert {name for _, name in used} <= told
