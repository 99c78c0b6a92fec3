"""Rules about the same work twice: copies of a directive, attempts that are over, attempts that overlap."""

from lucius.certify.rules_work import artifact_problem, local_path
from lucius.certify.testbed import ServiceTestbed
from lucius.certify.transcript import ObservedAttempt, timeline
from lucius.certify.values import RuleFinding, failed, not_tried, passed


async def copies_before(testbed: ServiceTestbed) -> RuleFinding:
    attempt = await testbed.dispatch("ok", copies=2)
    await testbed.result(attempt)
    await testbed.until_taken()
    await testbed.settle()
    return _once(attempt)


async def copies_during(testbed: ServiceTestbed) -> RuleFinding:
    attempt = await testbed.dispatch("slow")
    if await attempt.first("ACK", "PROGRESS", seconds=testbed.timeouts.wait_seconds) is None:
        await testbed.free(attempt)
        return failed("the work never began", *timeline(attempt))
    await testbed.send(attempt)
    await testbed.settle()
    # One that does one thing at a time takes the copy when the work is over: then it is a copy after the end.
    await testbed.free(attempt)
    await testbed.until_taken()
    await testbed.settle()
    return _once(attempt)


async def copies_after(testbed: ServiceTestbed) -> RuleFinding:
    attempt = await testbed.dispatch("ok")
    first = await testbed.result(attempt)
    artifact = local_path({"uri": first.output_uri}) if first and first.output_uri else None
    before = artifact.stat().st_mtime_ns if artifact is not None and artifact.is_file() else None
    await testbed.again(attempt)
    await testbed.settle()
    if artifact is not None and before is not None and artifact.stat().st_mtime_ns != before:
        return failed(f"the artifact was written again: {artifact.as_uri()}", *timeline(attempt))
    return _once(attempt)


def _once(attempt: ObservedAttempt) -> RuleFinding:
    """A RESULT may be repeated for a copy; work may not."""
    if not attempt.results:
        return failed("no RESULT", *timeline(attempt))
    acks = len(attempt.of("ACK"))
    if acks > 1:
        return failed(f"taken up {acks} times, by its ACKs", *timeline(attempt))
    ended = attempt.results[0].at
    if any(received.at > ended for received in attempt.of("PROGRESS")):
        return failed("worked on after its RESULT, by its PROGRESS", *timeline(attempt))
    if any(result.says != attempt.results[0].says for result in attempt.results):
        return failed("its RESULTs differ", *timeline(attempt))
    return passed(*timeline(attempt))


async def stale_lease(testbed: ServiceTestbed) -> RuleFinding:
    attempt = await testbed.dispatch("slow", prepare=_make_stale)
    if await attempt.first("ACK", "PROGRESS", "RESULT", seconds=testbed.timeouts.wait_seconds) is None:
        return failed("the directive was never taken up", *timeline(attempt))
    if not await attempt.until(lambda: bool(attempt.stopped_at), testbed.timeouts.lease_seconds):
        await testbed.free(attempt)
        if testbed.over_http:
            return failed("nothing it said was a message of the contract", *timeline(attempt))
        return not_tried("over the bus it never asked whether the attempt still counts, and need not")
    if await _left_alone(testbed, attempt):
        return passed(*timeline(attempt))
    await testbed.result(attempt)
    return failed("it worked on after it was told that the attempt is over", *timeline(attempt))


async def _left_alone(testbed: ServiceTestbed, attempt: ObservedAttempt) -> bool:
    """Silent for a lease; or, if it had to come to a point at which it can stop, ended without success."""
    await testbed.settle()
    seen = len(attempt.received)
    await attempt.until(lambda: bool(attempt.results), testbed.timeouts.lease_seconds)
    if not attempt.results and any(received.kind == "PROGRESS" for received in attempt.received[seen:]):
        await testbed.result(attempt, testbed.timeouts.ack_seconds)
        return bool(attempt.results) and attempt.results[0].status == "FAILED_RETRY"
    return all(result.status == "FAILED_RETRY" for result in attempt.results)


def _make_stale(attempt: ObservedAttempt) -> None:
    attempt.stale = True


async def overlap(testbed: ServiceTestbed) -> RuleFinding:
    old = await testbed.dispatch("slow")
    if await old.first("ACK", "PROGRESS", seconds=testbed.timeouts.wait_seconds) is None:
        await testbed.free(old)
        return failed("the first attempt was never taken up", *timeline(old))
    old.stale = True
    # It waits behind the old one where the service does one thing at a time, so its ACK has no clock.
    new = await testbed.dispatch("ok", after=old, clocked=False)
    result = await testbed.result(new, 2 * testbed.timeouts.work_seconds)
    evidence = (*timeline(old), *timeline(new))
    if result is None or result.status != "SUCCEEDED":
        return failed("the second attempt did not succeed beside the first", *evidence)
    if problem := artifact_problem(new, result):
        return failed(problem, *evidence)
    old_uris = {it.output_uri for it in old.of("RESULT")} - {None}
    if result.output_uri in old_uris:
        return failed("both attempts wrote to the same place", *evidence)
    if not testbed.over_http:
        await testbed.settle(testbed.timeouts.lease_seconds)
    return passed(*evidence)
