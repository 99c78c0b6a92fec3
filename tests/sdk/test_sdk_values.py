"""The sdk's small values: directives, services, the memory of what was done."""

import msgspec

from lucius.sdk import Directive, DirectiveSeen, MemoryDedupe, Service, Task, parse_directive, service

LEAST = {
    "jobId": "job_1",
    "stepId": "step_01",
    "tenant_id": "tenant_a",
    "step_type": "OCR",
    "attempt_no": 1,
    "lease_id": "lease-1",
}


async def nothing(task: Task) -> None:
    assert task.directive


def parsed(**more: object) -> Directive:
    directive = parse_directive({**LEAST, **more})
    assert directive is not None
    return directive


def test_a_directive_needs_only_its_identity_and_ignores_what_it_does_not_know() -> None:
    directive = parsed(invented_later={"x": 1}, lease_expires_at="2026-01-27T10:02:00.000Z")
    assert directive.key == ("job_1", "step_01", 1, "lease-1")
    assert (directive.payload, directive.upstream) == (None, ())


def test_a_message_without_its_identity_is_no_directive() -> None:
    for name in LEAST:
        assert parse_directive({member: value for member, value in LEAST.items() if member != name}) is None
    assert parse_directive({**LEAST, "attempt_no": "1"}) is None


def test_a_directive_hides_its_token() -> None:
    assert "hidden" not in repr(parsed(callback_token="hidden"))
    assert parsed(callback_token="hidden").callback_token == "hidden"


def test_upstream_steps_name_what_they_made() -> None:
    ref = {"uri": "s3://b/ocr/1/output.txt", "etag": "1"}
    upstream = parsed(
        upstream=[
            {"stepId": "step_01", "step_type": "OCR", "result_ref": ref},
            {"stepId": "step_02", "step_type": "EMBEDDING", "result_ref": None},
        ]
    ).upstream
    assert [step.uri for step in upstream] == ["s3://b/ocr/1/output.txt", None]
    assert msgspec.to_builtins(upstream[0])["result_ref"] == ref


def test_the_decorator_names_a_handler() -> None:
    assert service("ocr")(nothing) == Service("ocr", nothing)


async def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    dedupe = MemoryDedupe(results_max=2)
    seen = [parsed(attempt_no=number) for number in range(3)]
    for directive in seen:
        await dedupe.begin(directive.key)
        await dedupe.finish(directive, {"n": directive.attempt_no})
    assert await dedupe.begin(seen[2].key) == {"n": 2}
    assert await dedupe.begin(seen[1].key) == {"n": 1}
    assert await dedupe.begin(seen[0].key) is DirectiveSeen.NEW
    assert [undelivered.result for undelivered in await dedupe.undelivered(9)] == [{"n": 1}, {"n": 2}]
