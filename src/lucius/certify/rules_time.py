"""Rules about long work: it shows that it is alive, and stops when it is told to."""

import asyncio
from itertools import pairwise

from lucius.certify.testbed import ServiceTestbed
from lucius.certify.transcript import ObservedAttempt, timeline
from lucius.certify.values import RuleFinding, failed, not_tried, passed

SPANS_WATCHED = 2.2  # leases: enough to see that signs of life go on coming


async def keeps_lease(testbed: ServiceTestbed) -> RuleFinding:
    lease = testbed.timeouts.lease_seconds
    attempt = await testbed.dispatch("slow")
    if await attempt.first("ACK", "PROGRESS", seconds=testbed.timeouts.wait_seconds) is None:
        await testbed.free(attempt)
        return failed("the work never began", *timeline(attempt))
    await testbed.result(attempt, SPANS_WATCHED * lease)
    watched_until = asyncio.get_running_loop().time()
    ended = attempt.results[0] if attempt.results else None
    gap = _longest_gap(attempt, ended.at if ended else watched_until)
    await testbed.free(attempt)
    if ended is not None and ended.at - attempt.received[0].at < lease:
        took = ended.at - attempt.received[0].at
        return not_tried(f"the sample `slow` took {took:.1f} s, shorter than a lease of {lease:g} s")
    if gap > lease:
        return failed(f"silent for {gap:.1f} s under a lease of {lease:g} s", *timeline(attempt))
    return passed(
        f"never silent for longer than {gap:.1f} s under a lease of {lease:g} s", *timeline(attempt)
    )


def _longest_gap(attempt: ObservedAttempt, until: float) -> float:
    times = [received.at for received in attempt.received if received.at <= until] + [until]
    return max((after - before for before, after in pairwise(times)), default=0.0)


async def cancel(testbed: ServiceTestbed) -> RuleFinding:
    attempt = await testbed.dispatch("slow")
    begun = await attempt.first("ACK", "PROGRESS", seconds=testbed.timeouts.wait_seconds)
    if begun is None:
        await testbed.free(attempt)
        return failed("the work never began", *timeline(attempt))
    attempt.stop = True
    seconds = testbed.timeouts.lease_seconds + testbed.timeouts.ack_seconds
    result = await testbed.result(attempt, seconds)
    if result is None:
        await testbed.result(attempt)
        if not attempt.stopped_at and not testbed.over_http:
            return not_tried("over the bus it never asked whether the attempt still counts, and need not")
        return failed(f"no RESULT within {seconds:g} s of the cancellation", *timeline(attempt))
    if (result.status, result.error_code) == ("FAILED_RETRY", "STOPPED"):
        return passed(*timeline(attempt))
    if not any(at < result.at for at in attempt.stopped_at):
        took = result.at - begun.at
        if took < testbed.timeouts.lease_seconds:
            return not_tried(f"the sample `slow` took {took:.1f} s, too short to be told to stop")
    return failed(
        "told to stop, it answered with something else than FAILED_RETRY, STOPPED", *timeline(attempt)
    )
