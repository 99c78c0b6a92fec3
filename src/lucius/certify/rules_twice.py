"""Rules about the same work twice: copies of a directive, attempts that are over, attempts that overlap."""

from lucius.certify.book import Attempt
from lucius.certify.rules_work import artifact_problem, local_path
from lucius.certify.stage import Stage
from lucius.certify.told import story
from lucius.certify.values import Finding, failed, not_tried, passed


async def copies_before(stage: Stage) -> Finding:
    attempt = await stage.hand("ok", copies=2)
    await stage.result(attempt)
    await stage.until_taken()
    await stage.settle()
    return _once(attempt)


async def copies_during(stage: Stage) -> Finding:
    attempt = await stage.hand("slow")
    if await attempt.first("ACK", "PROGRESS", seconds=stage.patience.wait_seconds) is None:
        await stage.free(attempt)
        return failed("the work never began", *story(attempt))
    await stage.send(attempt)
    await stage.settle()
    # One that does one thing at a time takes the copy when the work is over: then it is a copy after the end.
    await stage.free(attempt)
    await stage.until_taken()
    await stage.settle()
    return _once(attempt)


async def copies_after(stage: Stage) -> Finding:
    attempt = await stage.hand("ok")
    first = await stage.result(attempt)
    artifact = local_path({"uri": first.output_uri}) if first and first.output_uri else None
    before = artifact.stat().st_mtime_ns if artifact is not None and artifact.is_file() else None
    await stage.again(attempt)
    await stage.settle()
    if artifact is not None and before is not None and artifact.stat().st_mtime_ns != before:
        return failed(f"the artifact was written again: {artifact.as_uri()}", *story(attempt))
    return _once(attempt)


def _once(attempt: Attempt) -> Finding:
    """A RESULT may be repeated for a copy; work may not."""
    if not attempt.results:
        return failed("no RESULT", *story(attempt))
    acks = len(attempt.of("ACK"))
    if acks > 1:
        return failed(f"taken up {acks} times, by its ACKs", *story(attempt))
    ended = attempt.results[0].at
    if any(heard.at > ended for heard in attempt.of("PROGRESS")):
        return failed("worked on after its RESULT, by its PROGRESS", *story(attempt))
    if any(result.says != attempt.results[0].says for result in attempt.results):
        return failed("its RESULTs differ", *story(attempt))
    return passed(*story(attempt))


async def stale_lease(stage: Stage) -> Finding:
    attempt = await stage.hand("slow", prepare=_make_stale)
    if await attempt.first("ACK", "PROGRESS", "RESULT", seconds=stage.patience.wait_seconds) is None:
        return failed("the directive was never taken up", *story(attempt))
    if not await attempt.until(lambda: bool(attempt.told_to_stop), stage.patience.lease_seconds):
        await stage.free(attempt)
        if stage.over_http:
            return failed("nothing it said was a message of the contract", *story(attempt))
        return not_tried("over the bus it never asked whether the attempt still counts, and need not")
    if await _left_alone(stage, attempt):
        return passed(*story(attempt))
    await stage.result(attempt)
    return failed("it worked on after it was told that the attempt is over", *story(attempt))


async def _left_alone(stage: Stage, attempt: Attempt) -> bool:
    """Silent for a lease; or, if it had to come to a point at which it can stop, ended without success."""
    await stage.settle()
    seen = len(attempt.heard)
    await attempt.until(lambda: bool(attempt.results), stage.patience.lease_seconds)
    if not attempt.results and any(heard.kind == "PROGRESS" for heard in attempt.heard[seen:]):
        await stage.result(attempt, stage.patience.ack_seconds)
        return bool(attempt.results) and attempt.results[0].status == "FAILED_RETRY"
    return all(result.status == "FAILED_RETRY" for result in attempt.results)


def _make_stale(attempt: Attempt) -> None:
    attempt.stale = True


async def overlap(stage: Stage) -> Finding:
    old = await stage.hand("slow")
    if await old.first("ACK", "PROGRESS", seconds=stage.patience.wait_seconds) is None:
        await stage.free(old)
        return failed("the first attempt was never taken up", *story(old))
    old.stale = True
    # It waits behind the old one where the service does one thing at a time, so its ACK has no clock.
    new = await stage.hand("ok", after=old, clocked=False)
    result = await stage.result(new, 2 * stage.patience.work_seconds)
    evidence = (*story(old), *story(new))
    if result is None or result.status != "SUCCEEDED":
        return failed("the second attempt did not succeed beside the first", *evidence)
    if problem := artifact_problem(new, result):
        return failed(problem, *evidence)
    old_uris = {it.output_uri for it in old.of("RESULT")} - {None}
    if result.output_uri in old_uris:
        return failed("both attempts wrote to the same place", *evidence)
    if not stage.over_http:
        await stage.settle(stage.patience.lease_seconds)
    return passed(*evidence)
