"""Planning: every objection at once, the same as intake's, and nothing written."""

import itertools
from typing import Any

import pytest
from tests.conformance.ledger_setup import Clock, Deployment, World

from lucius.contracts.envelope import ERRORS_MAX, Envelope, parse_envelope
from lucius.core.refusal import Refused
from lucius.core.states import Mode
from lucius.jobs.planning import PROBLEMS_MAX, CommandPlan, CommandPlanner
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.memory import MemoryStore

GOOD: dict[str, Any] = {
    "tenant_id": "acme",
    "request_type": "OCR_EMBEDDING",
    "input_ref": {"uri": "s3://in/1.pdf"},
    "output_ref": {"uri": "s3://out/1.json"},
    "payload": {"ocr": {"language": "de"}},
    "schema_version": "1",
}

# One thing that is wrong each, in the order in which intake looks at them, with the code and the pointer.
FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "member": ({"colour": "red"}, "INVALID_ENVELOPE", "/colour"),
    "correlation": ({"correlation_id": 7}, "INVALID_ENVELOPE", "/correlation_id"),
    "type": ({"request_type": "PAINT"}, "UNKNOWN_REQUEST_TYPE", "/request_type"),
    "doc": ({"mode": "BURST"}, "DOC_ID_REQUIRED", "/doc_id"),
    "secret": ({"payload": {"ocr": {}, "api_key": "hush"}}, "INVALID_PAYLOAD", "/payload/api_key"),
    "input": ({"input_ref": {"uri": "ftp://h/x"}}, "REF_NOT_ALLOWED", "/input_ref/uri"),
    "output": ({"output_ref": {"uri": "s3://u:p@b/x"}}, "REF_NOT_ALLOWED", "/output_ref/uri"),
    "callback": (
        {"callback_urls": {"completed": "http://h"}},
        "REF_NOT_ALLOWED",
        "/callback_urls/completed",
    ),
}


@pytest.fixture
def world() -> World:
    return World(MemoryStore(), LayoutName.LEDGER)


@pytest.fixture
def deployment(world: World) -> Deployment:
    return world.deployment()


def planning(deployment: Deployment) -> CommandPlanner:
    return CommandPlanner(deployment.submitter, deployment.admission, deployment.ledger, now_ms=Clock())


async def plan_of(world: World, document: Any, **more: Any) -> CommandPlan:
    before = await world.rows()
    plan = await planning(world.deployment()).plan(document, **more)
    assert await world.rows() == before
    return plan


def found(plan: CommandPlan) -> set[tuple[str, str | None]]:
    return {(problem.code.value, problem.pointer) for problem in plan.problems}


async def test_a_good_command_is_planned_whole(world: World) -> None:
    plan = await plan_of(world, GOOD)
    assert plan.accepted and plan.problems == ()
    assert plan.steps[0].payload == {"language": "de"}
    assert (plan.mode, plan.protocol_id) == (Mode.DEFAULT, "ocr_embedding_v1")
    assert plan.limits is not None and plan.limits.refused is None


@pytest.mark.parametrize("names", list(itertools.combinations(FAULTS, 2)), ids="+".join)
async def test_no_fault_hides_another(world: World, names: tuple[str, str]) -> None:
    document, expected = dict(GOOD), set()
    for name in names:
        changes, code, pointer = FAULTS[name]
        document |= changes
        expected.add((code, pointer))
    assert found(await plan_of(world, document)) == expected


async def test_all_faults_together(world: World) -> None:
    document = dict(GOOD)
    for changes, _, _ in FAULTS.values():
        document |= changes
    plan = await plan_of(world, document)
    assert found(plan) == {(code, pointer) for _, code, pointer in FAULTS.values()}
    assert "hush" not in str(plan) and "u:p" not in str(plan)


@pytest.mark.parametrize("name", FAULTS)
async def test_a_plan_agrees_with_intake(deployment: Deployment, world: World, name: str) -> None:
    document = GOOD | FAULTS[name][0]
    plan = await plan_of(world, document)
    envelope = parse_envelope(document)
    refused = deployment.submitter.resolve(envelope) if isinstance(envelope, Envelope) else envelope
    assert isinstance(refused, Refused)
    assert [problem.code for problem in plan.problems] == [refused.code]


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("value", [None, 7, [], {}, "", "\x00", True])
async def test_any_member_may_be_anything(world: World, name: str, value: Any) -> None:
    """Whatever stands in one member, the others are still judged, and nothing is told of what stands in."""
    document = GOOD | {name: value, "mode": "BURST"}
    plan = await plan_of(world, document)
    fine = name == "payload" and value == {}
    assert ("DOC_ID_REQUIRED", "/doc_id") in found(plan)
    others = {pointer for _, pointer in found(plan)} - {"/doc_id"}
    assert all(pointer is not None and pointer.startswith(f"/{name}") for pointer in others)
    assert bool(others) is not fine
    if name == "tenant_id":
        assert (plan.limits, plan.lane, plan.mode) == (None, None, None)
    if name == "request_type":
        assert (plan.protocol_id, plan.steps) == (None, ())


async def test_a_version_that_is_not_ours(world: World) -> None:
    plan = await plan_of(world, GOOD | {"schema_version": "2", "colour": 1, "request_type": "PAINT"})
    assert found(plan) == {
        ("UNSUPPORTED_SCHEMA_VERSION", "/schema_version"),
        ("INVALID_ENVELOPE", "/colour"),
        ("UNKNOWN_REQUEST_TYPE", "/request_type"),
    }


async def test_the_nearest_types_are_named_where_one_is_not_known(world: World) -> None:
    (problem,) = (await plan_of(world, GOOD | {"request_type": "OCR_EMBEDDING_SIX"})).problems
    assert "OCR_EMBEDDING_SIS" in problem.message
    assert problem.message.count(",") == 2


async def test_problems_are_bounded_and_too_many_of_one_kind_hide_no_other(world: World) -> None:
    document = GOOD | {f"m{number:03d}": 1 for number in range(3 * ERRORS_MAX)}
    plan = await plan_of(world, document | {"request_type": 7, "input_ref": {"uri": "ftp://h/x"}})
    assert ("REF_NOT_ALLOWED", "/input_ref/uri") in found(plan)
    assert plan.protocol_id is None
    assert ERRORS_MAX < len(plan.problems) <= PROBLEMS_MAX
    urls = {f"u{number}": "x" for number in range(3 * ERRORS_MAX)}
    plan = await plan_of(world, GOOD | {"callback_urls": urls, "correlation_id": 7, "request_type": "PAINT"})
    assert ("UNKNOWN_REQUEST_TYPE", "/request_type") in found(plan)
    assert len(plan.problems) <= PROBLEMS_MAX


async def test_a_key_of_the_header_that_disagrees(world: World) -> None:
    plan = await plan_of(world, GOOD | {"idempotency_key": "a", "request_type": "PAINT"}, key_header="b")
    assert found(plan) == {
        ("INVALID_ENVELOPE", "/idempotency_key"),
        ("UNKNOWN_REQUEST_TYPE", "/request_type"),
    }
    assert plan.duplicate_of is None


async def test_a_job_that_is_there_is_named_even_if_it_would_be_refused_now(
    world: World, deployment: Deployment
) -> None:
    envelope = parse_envelope(GOOD)
    assert isinstance(envelope, Envelope)
    accepted = await deployment.submitter.submit(envelope)
    assert not isinstance(accepted, Refused)
    plan = await plan_of(world, GOOD)
    assert (plan.accepted, plan.duplicate_of) == (True, accepted.job_id)
