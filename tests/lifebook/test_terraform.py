"""The Terraform files: that they say what the code and the contract say, and pass checkov."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import hcl2
import pytest
from tests.lifebook.deployed import deployed
from tests.lifebook.servers import TOP

from lucius.lifebook import schema
from lucius.lifebook.runs import AcceptedRun, RunRequest
from lucius.lifebook.settings import DEFAULTS

FOLDER = TOP / "deploy" / "terraform" / "lifebook"
FILES = sorted(FOLDER.glob("*.tf"))
CHECKOV = TOP / ".venv-checks" / "bin" / "checkov"
CHECK_SECONDS_MAX = 200


def _plain(value: Any) -> Any:
    """Without the quotes and marks of the parser."""
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items() if not key.startswith("__")}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.strip('"') if isinstance(value, str) else value


def _blocks(kind: str) -> dict[str, Any]:
    """All blocks of a kind, by their labels."""
    found: dict[str, Any] = {}
    for path in FILES:
        with path.open(encoding="utf-8") as text:
            document = _plain(hcl2.load(text))
        for block in document.get(kind, []):
            if kind in ("resource", "data"):
                for one, named in block.items():
                    found |= {f"{one}.{name}": body for name, body in named.items()}
            else:
                found |= block
    return found


RESOURCES = _blocks("resource")
LOCALS = _blocks("locals")
VARIABLES = _blocks("variable")


def test_the_tables_are_those_that_the_code_makes() -> None:
    for name, made in (
        ("jobs", schema.table_definition(schema.TABLE)),
        ("balances", schema.balances_definition(schema.BALANCES_TABLE)),
    ):
        table = RESOURCES[f"aws_dynamodb_table.{name}"]
        assert table["name"] == made["TableName"]
        assert table["billing_mode"] == made["BillingMode"]
        assert table["hash_key"] == made["KeySchema"][0]["AttributeName"]
        assert [(each["name"], each["type"]) for each in table["attribute"]] == [
            (each["AttributeName"], each["AttributeType"]) for each in made["AttributeDefinitions"]
        ]
        indexes = table.get("global_secondary_index", [])
        wanted = made.get("GlobalSecondaryIndexes", [])
        assert [_index(each) for each in indexes] == [_wanted_index(each) for each in wanted]
        (ttl,) = table["ttl"]
        assert (ttl["attribute_name"], ttl["enabled"]) == (schema.TTL_ATTRIBUTE, True)


def _index(found: dict[str, Any]) -> tuple[Any, ...]:
    names = found.get("non_key_attributes")
    return (found["name"], found["hash_key"], found["range_key"], found["projection_type"], names)


def _wanted_index(made: dict[str, Any]) -> tuple[Any, ...]:
    one, other = (key["AttributeName"] for key in made["KeySchema"])
    projection = made["Projection"]
    kind, names = projection["ProjectionType"], projection.get("NonKeyAttributes")
    return (made["IndexName"], one, other, kind, names)


def test_the_visibility_is_six_times_the_time_a_call_may_take() -> None:
    queue, worker = RESOURCES["aws_sqs_queue.jobs"], RESOURCES["aws_lambda_function.worker"]
    assert queue["visibility_timeout_seconds"] == "${local.visibility_seconds}"
    assert worker["timeout"] == "${var.function_timeout_seconds}"
    factor = re.fullmatch(r"\$\{(\d+) \* var\.function_timeout_seconds\}", LOCALS["visibility_seconds"])
    assert factor is not None
    assert int(factor[1]) >= 6
    longest = VARIABLES["function_timeout_seconds"]["default"]
    assert int(factor[1]) * longest <= 43_200  # what SQS allows


def test_the_queues_are_those_of_the_contract() -> None:
    queue, dead = RESOURCES["aws_sqs_queue.jobs"], RESOURCES["aws_sqs_queue.dead"]
    assert (queue["name"], dead["name"]) == (schema.QUEUE, schema.DLQ)
    assert "maxReceiveCount" in queue["redrive_policy"]
    assert VARIABLES["max_receive_count"]["default"] == schema.RECEIVES_MAX
    for each in (queue, dead):
        assert each["message_retention_seconds"] == schema.MESSAGE_DAYS_MAX * 86_400


def test_the_worker_is_fed_as_it_must_be() -> None:
    mapping, worker = (
        RESOURCES["aws_lambda_event_source_mapping.jobs"],
        RESOURCES["aws_lambda_function.worker"],
    )
    assert mapping["function_response_types"] == ["ReportBatchItemFailures"]
    assert mapping["scaling_config"] == [{"maximum_concurrency": "${var.maximum_concurrency}"}]
    assert worker["function_name"] == "${local.function_names.worker}"
    assert LOCALS["function_names"]["worker"] == schema.WORKER_FUNCTION
    for name, resource in RESOURCES.items():
        assert "reserved_concurrent_executions" not in resource, name


@pytest.mark.parametrize("name", ["worker", "sweep", "trigger"])
def test_the_handlers_are_there(name: str) -> None:
    module, _, function = RESOURCES[f"aws_lambda_function.{name}"]["handler"].rpartition(".")
    path = TOP / "src" / Path(*module.split(".")).with_suffix(".py")
    assert re.search(rf"^def {function}\(", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_variable_of_the_functions_is_a_setting() -> None:
    assert set(LOCALS["environment"]) <= set(DEFAULTS)


def test_the_depth_of_the_dead_letter_queue_alarms() -> None:
    alarm = RESOURCES["aws_cloudwatch_metric_alarm.dlq_depth"]
    assert alarm["alarm_name"] == "lifebook-orchestrator-dlq-depth"
    assert RESOURCES["aws_sns_topic.alerts"]["name"] == "lifebook-alerts"
    assert alarm["alarm_actions"] == ["${aws_sns_topic.alerts.arn}"]
    assert alarm["dimensions"] == {"QueueName": "${aws_sqs_queue.dead.name}"}
    assert (alarm["metric_name"], alarm["comparison_operator"], alarm["threshold"]) == (
        "ApproximateNumberOfMessagesVisible",
        "GreaterThanThreshold",
        0,
    )


PARTS_OF_TRANSACTIONS = {"Put": "PutItem", "Update": "UpdateItem", "Delete": "DeleteItem"}


def _done(method: Any, arguments: dict[str, Any]) -> set[str]:
    """The actions that a call of the SDK is, as policies name them."""
    if method.__name__ == "transact_write_items":
        writes = {name for write in arguments["TransactItems"] for name in write}
        return {f"dynamodb:{PARTS_OF_TRANSACTIONS[name]}" for name in writes}
    service = method.__self__.meta.service_model.service_name
    return {f"{service}:{''.join(word.capitalize() for word in method.__name__.split('_'))}"}


@pytest.mark.xdist_group("lifebook")
async def test_the_worker_and_the_sweep_may_do_what_they_do(
    ministack: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with deployed(ministack, LIFEBOOK_BACKOFF="1ms") as place:
        lifebook, asked = place.lifebook, {"jobs": set[str](), "dead": set[str](), "table": set[str]()}
        dead_url = await lifebook.queue._url("dlq")
        await lifebook.queue._url("queue")  # in AWS both are named by their addresses
        call = lifebook.aws.call

        async def noted(method: Any, **arguments: Any) -> Any:
            url = arguments.get("QueueUrl")
            where = "table" if url is None else "dead" if url == dead_url else "jobs"
            asked[where] |= _done(method, arguments)
            return await call(method, **arguments)

        monkeypatch.setattr(lifebook.aws, "call", noted)
        await lifebook.queue._send_body("poison")
        for given in ({}, {"fails": 9}):
            run = RunRequest(workspace_id="ws", user_id="u", workflow_id="told", input=given, max_attempts=1)
            assert isinstance(await lifebook.runs.submit(run), AcceptedRun)
        worker = lifebook.worker()
        for _ in range(20):
            found = await lifebook.queue.receive(messages_max=10, wait_seconds=1, visibility_ms=60_000)
            for delivery in found:
                await worker.settle(delivery, await worker.handle(delivery))
            if not found and (await lifebook.queue.depths()).dead == 2:
                break
        await lifebook.sweeper.sweep()
        assert (await lifebook.queue.depths()).dead == 2
    roles = _blocks("data")
    statements = [
        statement
        for name in ("common", "worker")
        for statement in roles[f"aws_iam_policy_document.{name}"]["statement"]
    ]
    places = {"jobs": "aws_sqs_queue.jobs.", "dead": "aws_sqs_queue.dead.", "table": "aws_dynamodb_table."}
    for where, resource in places.items():
        allowed = {
            action
            for statement in statements
            if any(resource in each for each in statement["resources"])
            for action in statement["actions"]
        }
        assert asked[where], where
        assert asked[where] <= allowed, (where, asked[where] - allowed)


def test_no_part_may_do_everything() -> None:
    """Stars stand for the key itself in its own policy, and for X-Ray, which has no resources to name."""
    for name, document in _blocks("data").items():
        if name.startswith("aws_iam_policy_document."):
            for statement in document["statement"]:
                _check_statement(name, statement)


def _check_statement(name: str, statement: dict[str, Any]) -> None:
    if name != "aws_iam_policy_document.key":
        assert not any(action.endswith("*") for action in statement["actions"]), (name, statement)
        if statement.get("resources") == ["*"]:
            assert all(action.startswith("xray:") for action in statement["actions"]), (name, statement)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_files_are_formatted(path: Path) -> None:
    """As `terraform fmt` would: two spaces a level, and the signs of neighbouring attributes below each
    other."""
    depth = 0
    group: list[tuple[int, int, int]] = []
    for number, line in enumerate([*path.read_text(encoding="utf-8").splitlines(), ""], start=1):
        where = f"{path.name}:{number}"
        assert line == line.rstrip(), where
        bare = line.strip()
        closes = len(bare) - len(bare.lstrip("}])"))
        depth -= min(closes, 1)
        assert not bare or (line.startswith("  " * depth) and not line.startswith("  " * depth + " ")), where
        found = re.match(r"( *[A-Za-z_\"-]+)( +)= (?!.*[\[({]$)", line)
        if found is None or (group and group[0][0] != depth):
            _check_group(group, where)
            group = []
        if found is not None:
            group.append((depth, len(found[1]), len(found[1]) + len(found[2])))
        depth += bool(re.search(r"[\[({]$", bare))
    assert depth == 0


def _check_group(group: list[tuple[int, int, int]], where: str) -> None:
    if group:
        longest = max(name for _, name, _ in group)
        assert {sign for _, _, sign in group} == {longest + 1}, f"above {where}"


def test_checkov_finds_nothing() -> None:
    done = subprocess.run(
        [CHECKOV, "-d", FOLDER, "--framework", "terraform", "--quiet", "--skip-download", "-o", "json"],
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS_MAX,
    )
    told = json.loads(done.stdout)
    assert told["results"]["failed_checks"] == []
    assert told["summary"]["passed"] > 100
    assert told["summary"]["parsing_errors"] == 0
