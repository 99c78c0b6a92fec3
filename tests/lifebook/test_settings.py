"""Settings, triggers' keys, and workflows as they are declared."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lucius.lifebook.build import load_balances, load_workflows
from lucius.lifebook.credits import MemoryBalances
from lucius.lifebook.machine import backoff_ms
from lucius.lifebook.refusals import RunRefused
from lucius.lifebook.runs import RunRequest
from lucius.lifebook.settings import VARIABLES, BadVariable, read_settings
from lucius.lifebook.triggers import FileDrop, of_file_drop, of_schedule
from lucius.lifebook.workflows import BadWorkflow, StepRun, WorkflowRegistry, step, workflow, workflow_of


def test_without_variables_everything_is_as_the_contract_says() -> None:
    settings = read_settings({})
    assert settings.table == "lifebook-orchestrator-jobs"
    assert settings.queue == "lifebook-orchestrator-queue"
    assert settings.max_attempts == 5
    assert settings.policy.receives_max == 5
    assert [backoff_ms(settings.policy, attempt) // 1000 for attempt in (1, 2, 3, 4, 5, 99)] == [
        *(30, 120, 600),
        *(1800, 1800, 1800),
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LIFEBOOK_MAX_ATTEMPTS", "0"),
        ("LIFEBOOK_MAX_ATTEMPTS", "five"),
        ("LIFEBOOK_BACKOFF", "30s,,2m"),
        ("LIFEBOOK_BACKOFF", "13h"),
        ("LIFEBOOK_LEASE", "10ms"),
        ("LIFEBOOK_LEASE", "13h"),
        ("LIFEBOOK_CREDITS", "bank"),
        ("LIFEBOOK_CREDITS", "bank:"),
        ("LIFEBOOK_CREDITS", "bank.:make"),
        ("LIFEBOOK_CREDITS_MAX", "-1"),
        ("LIFEBOOK_CREDITS_MAX", "lots"),
        ("LIFEBOOK_ANALYTICS", "file:"),
        ("LIFEBOOK_ANALYTICS", "kafka:x"),
        ("LIFEBOOK_FAIR_QUEUE", "yes"),
        ("LIFEBOOK_WEBHOOK_SECRET", "short"),
        ("LIFEBOOK_FILE_DROPS", "[{}]"),
        ("LIFEBOOK_QEUE", "x"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(BadVariable, match=name):
        read_settings({name: value})


def test_balances_of_ones_own_are_made_by_name() -> None:
    settings = read_settings({"LIFEBOOK_CREDITS": "lucius.lifebook.credits:MemoryBalances"})
    assert (settings.balances, settings.policy.credits_held) == (None, True)
    assert settings.balances_maker is not None
    assert isinstance(load_balances(settings.balances_maker), MemoryBalances)


@pytest.mark.parametrize(
    "place", ["nowhere_at_all:make", "lucius.lifebook.credits:nothing", "lucius.lifebook.credits:Balance"]
)
def test_what_makes_no_balances_is_refused(place: str) -> None:
    with pytest.raises(BadVariable, match="LIFEBOOK_CREDITS"):
        load_balances(place)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("\nnobody\n", "NameError.*workflow_module_2.py, line 2"),
        ("import nowhere_1", "nowhere_1"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    (tmp_path / "workflow_module_2.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadVariable, match=f"workflow_module_2 cannot be imported: .*{told}"):
        load_workflows(("workflow_module_2",))


def test_every_setting_has_a_meaning() -> None:
    assert all(variable.meaning for variable in VARIABLES)
    assert len({variable.name for variable in VARIABLES}) == len(VARIABLES)


def test_secrets_do_not_show() -> None:
    secret = "whsec_" + "c2VjcmV0LXNlY3JldC1zZWNyZXQtMTIz"
    assert secret not in repr(read_settings({"LIFEBOOK_WEBHOOK_SECRET": secret}))


def test_steps_run_in_the_order_in_which_they_stand() -> None:
    registry = WorkflowRegistry()

    @workflow("two", max_attempts=3, registry=registry)
    class Two:
        @step(credits="0.5", timeout_seconds=2)
        async def zebra(self, run: StepRun) -> Any:
            return None

        def helper(self) -> None:
            return None

        @step()
        def apple(self, run: StepRun) -> Any:
            return None

    found = registry.get("two")
    assert found is not None
    assert [(each.name, each.credits, each.timeout_ms) for each in found.steps] == [
        ("zebra", Decimal("0.5"), 2_000),
        ("apple", Decimal(0), None),
    ]
    assert found.credits == Decimal("0.5")
    with pytest.raises(BadWorkflow, match="two workflows"):
        workflow("two", registry=registry)(Two)


@pytest.mark.parametrize(
    "declare",
    [
        lambda: workflow_of(type("Empty", (), {}), "x"),
        lambda: workflow_of(type("Empty", (), {}), ""),
        lambda: step(credits="-1"),
        lambda: step(credits="a lot"),
        lambda: step(timeout_seconds=0),
        lambda: workflow_of(type("Empty", (), {}), "x", max_attempts=0),
    ],
)
def test_a_workflow_that_cannot_run_is_refused_when_it_is_declared(declare: Any) -> None:
    with pytest.raises(BadWorkflow):
        declare()


def test_a_schedule_that_fires_twice_is_one_run() -> None:
    event = {
        "workspace_id": "w",
        "user_id": "u",
        "workflow_id": "x",
        "scheduled_time": "2026-01-01T00:00:00Z",
    }
    first, second = of_schedule(event), of_schedule({**event, "unknown": 1})
    assert isinstance(first, RunRequest)
    assert first == second
    later = of_schedule({**event, "scheduled_time": "2026-01-02T00:00:00Z"})
    assert isinstance(later, RunRequest)
    assert later.idempotency_key != first.idempotency_key
    assert isinstance(of_schedule({"workspace_id": 1}), RunRefused)


def test_a_dropped_file_goes_to_the_longest_prefix() -> None:
    def drop(prefix: str) -> FileDrop:
        return FileDrop(bucket="b", prefix=prefix, workspace_id="w", user_id="u", workflow_id=f"f{prefix}")

    thing = {"key": "a/b/" + "x" * 400, "sequencer": "1"}
    event = {"Records": [{"s3": {"bucket": {"name": "b"}, "object": thing}}, {"s3": {}}]}
    found, bad = of_file_drop(event, (drop(""), drop("a/b/"), drop("a/")))
    assert isinstance(found, RunRequest)
    assert found.workflow_id == "fa/b/"
    assert len(found.idempotency_key or "") < 200
    assert isinstance(bad, RunRefused)
