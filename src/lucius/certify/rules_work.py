"""Rules about one piece of work: it is done, once, in its place, and its failures say what they are."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from lucius.certify.testbed import ServiceTestbed
from lucius.certify.transcript import ObservedAttempt, ObservedReply, timeline
from lucius.certify.values import Json, RuleFinding, failed, not_tried, passed
from lucius.core.routing import LANES, lane_of

_UNKNOWN = {
    "certify_unknown": {"nested": [1, {"deep": None}]},
    "schema_hint": "a newer orchestrator says more",
    "priority": 7,
}


async def result_once(testbed: ServiceTestbed) -> RuleFinding:
    attempt = await testbed.dispatch("ok")
    result = await testbed.result(attempt)
    await testbed.settle()
    if result is None:
        return failed(f"no RESULT within {testbed.timeouts.work_seconds:g} s", *timeline(attempt))
    if result.status != "SUCCEEDED":
        return failed(f"the sample `ok` ended with {result.status}", *timeline(attempt))
    # Every attempt of the whole run counts, not only this one.
    many = [it for it in testbed.transcript.attempts.values() if len(it.results) > max(1, len(it.handed))]
    if many:
        return failed(f"{len(many)} attempts got more RESULTs than directives", *timeline(many[0]))
    return passed(*timeline(attempt))


async def output_written(testbed: ServiceTestbed) -> RuleFinding:
    attempt = await testbed.dispatch("ok")
    result = await testbed.result(attempt)
    if result is None or result.status != "SUCCEEDED":
        return failed("the sample `ok` did not succeed", *timeline(attempt))
    final = local_path(attempt.directive["output_ref"])
    if final is None:
        return not_tried("output_ref is no file that could be looked at here")
    if not final.is_file():
        return failed(f"nothing was written to output_ref, {final.as_uri()}", *timeline(attempt))
    problem = artifact_problem(attempt, result)
    return failed(problem, *timeline(attempt)) if problem else passed(*timeline(attempt))


def artifact_problem(attempt: ObservedAttempt, result: ObservedReply) -> str | None:
    """What is wrong with the place of the artifact; nothing, where none is named or it lies elsewhere."""
    uri, directive = result.output_uri, attempt.directive
    workspace = str(directive["workspace_ref"]["uri"])
    if uri is None or not uri.startswith(workspace):
        return None
    place = f"{directive['step_type'].lower()}/{directive['attempt_no']}/"
    if not uri.removeprefix(workspace).startswith(place):
        return f"output_ref is {uri.removeprefix(workspace)}, which is not below {place} of the workspace"
    path = local_path({"uri": uri})
    return None if path is None or path.is_file() else f"nothing lies at output_ref, {uri}"


def local_path(ref: dict[str, Json]) -> Path | None:
    parts = urlsplit(str(ref.get("uri")))
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


async def unknown_members(testbed: ServiceTestbed) -> RuleFinding:
    attempt = await testbed.dispatch("ok", more=_UNKNOWN)
    result = await testbed.result(attempt)
    if result is None or result.status != "SUCCEEDED":
        return failed("a directive with unknown members was not carried out", *timeline(attempt))
    return passed(*timeline(attempt))


async def poison(testbed: ServiceTestbed) -> RuleFinding:
    await testbed.poison({"type": "DIRECTIVE"})
    await testbed.poison({"type": "DIRECTIVE", "jobId": 7, "stepId": None, "attempt_no": "one"})
    await testbed.poison(["not", "a", "directive"])
    if not testbed.over_http:
        await testbed.poison(b"\x00 not even JSON")
    attempt = await testbed.dispatch("ok", clocked=False)
    result = await testbed.result(attempt, testbed.timeouts.wait_seconds + testbed.timeouts.work_seconds)
    if result is None or result.status != "SUCCEEDED":
        return failed("after directives that are none, a good one was not carried out", *timeline(attempt))
    return passed("directives that are none were left aside", *timeline(attempt))


async def retryable(testbed: ServiceTestbed) -> RuleFinding:
    return await _fails(testbed, "retryable", "FAILED_RETRY")


async def final(testbed: ServiceTestbed) -> RuleFinding:
    return await _fails(testbed, "final", "FAILED_FINAL")


async def _fails(testbed: ServiceTestbed, name: str, status: str) -> RuleFinding:
    attempt = await testbed.dispatch(name)
    result = await testbed.result(attempt)
    if result is None:
        return failed(f"no RESULT within {testbed.timeouts.work_seconds:g} s", *timeline(attempt))
    if result.status != status:
        return failed(f"the sample `{name}` ended with {result.status}", *timeline(attempt))
    if result.error_code is None:
        return failed("the RESULT has no error.code", *timeline(attempt))
    return passed(f"error.code {result.error_code}", *timeline(attempt))


async def all_lanes(testbed: ServiceTestbed) -> RuleFinding:
    """A tenant for each lane."""
    tenants: dict[int, str] = {}
    number = 0
    while len(tenants) < LANES:
        number += 1
        tenants.setdefault(lane_of(f"certify-lane-{number}"), f"certify-lane-{number}")
    attempts = [await testbed.dispatch("ok", tenant=tenant, clocked=False) for tenant in tenants.values()]
    for attempt in attempts:
        await testbed.result(attempt)
    dumb = [attempt.directive["lane"] for attempt in attempts if not attempt.results]
    if dumb:
        return failed(f"no RESULT for directives of the lanes {', '.join(map(str, sorted(dumb)))}")
    return passed(f"a directive of each of the {LANES} lanes was carried out")
