"""Rules about long work: it shows that it is alive, and stops when it is told to."""

import asyncio
from itertools import pairwise

from lucius.certify.book import Attempt
from lucius.certify.stage import Stage
from lucius.certify.told import story
from lucius.certify.values import Finding, failed, not_tried, passed

SPANS_WATCHED = 2.2  # leases: enough to see that signs of life go on coming


async def keeps_lease(stage: Stage) -> Finding:
    lease = stage.patience.lease_seconds
    attempt = await stage.hand("slow")
    if await attempt.first("ACK", "PROGRESS", seconds=stage.patience.wait_seconds) is None:
        await stage.free(attempt)
        return failed("the work never began", *story(attempt))
    await stage.result(attempt, SPANS_WATCHED * lease)
    watched_until = asyncio.get_running_loop().time()
    ended = attempt.results[0] if attempt.results else None
    gap = _longest_gap(attempt, ended.at if ended else watched_until)
    await stage.free(attempt)
    if ended is not None and ended.at - attempt.heard[0].at < lease:
        took = ended.at - attempt.heard[0].at
        return not_tried(f"the sample `slow` took {took:.1f} s, shorter than a lease of {lease:g} s")
    if gap > lease:
        return failed(f"silent for {gap:.1f} s under a lease of {lease:g} s", *story(attempt))
    return passed(f"never silent for longer than {gap:.1f} s under a lease of {lease:g} s", *story(attempt))


def _longest_gap(attempt: Attempt, until: float) -> float:
    times = [heard.at for heard in attempt.heard if heard.at <= until] + [until]
    return max((after - before for before, after in pairwise(times)), default=0.0)


async def cancel(stage: Stage) -> Finding:
    attempt = await stage.hand("slow")
    begun = await attempt.first("ACK", "PROGRESS", seconds=stage.patience.wait_seconds)
    if begun is None:
        await stage.free(attempt)
        return failed("the work never began", *story(attempt))
    attempt.stop = True
    seconds = stage.patience.lease_seconds + stage.patience.ack_seconds
    result = await stage.result(attempt, seconds)
    if result is None:
        await stage.result(attempt)
        if not attempt.told_to_stop and not stage.over_http:
            return not_tried("over the bus it never asked whether the attempt still counts, and need not")
        return failed(f"no RESULT within {seconds:g} s of the cancellation", *story(attempt))
    if (result.status, result.error_code) == ("FAILED_RETRY", "STOPPED"):
        return passed(*story(attempt))
    if not any(at < result.at for at in attempt.told_to_stop):
        took = result.at - begun.at
        if took < stage.patience.lease_seconds:
            return not_tried(f"the sample `slow` took {took:.1f} s, too short to be told to stop")
    return failed("told to stop, it answered with something else than FAILED_RETRY, STOPPED", *story(attempt))
