"""Rules about ends: of the service, of the connection, and the quiet end of both."""

from lucius.certify.testbed import ServiceTestbed
from lucius.certify.transcript import ObservedAttempt, timeline
from lucius.certify.values import RuleFinding, failed, not_tried, passed

UNANSWERED = 2
REPEAT_SECONDS_MAX = 20.0
# By a shell's custom, 143 is what a process says that was ended by SIGTERM after it had tidied up.
QUIET_CODES = (0, 143)


async def result_repeated(testbed: ServiceTestbed) -> RuleFinding:
    attempt = await testbed.dispatch("ok", prepare=_leave_unanswered)
    result = await testbed.result(attempt, testbed.timeouts.work_seconds + REPEAT_SECONDS_MAX)
    if result is None:
        return failed("a RESULT that was met with a 503 was not sent again", *timeline(attempt))
    if any(tried.says != result.says for tried in attempt.of("RESULT")):
        return failed("what was sent again was another RESULT", *timeline(attempt))
    return passed(*timeline(attempt))


def _leave_unanswered(attempt: ObservedAttempt) -> None:
    attempt.results_unanswered = UNANSWERED


async def crash_at_work(testbed: ServiceTestbed) -> RuleFinding:
    attempt = await testbed.dispatch("slow")
    if await attempt.first("ACK", "PROGRESS", seconds=testbed.timeouts.wait_seconds) is None:
        await testbed.free(attempt)
        return failed("the work never began", *timeline(attempt))
    if (gone := await testbed.crash()) is not None:
        return failed(f"killed at work, it did not come back: {gone}")
    return await _after_crash(testbed, attempt)


async def crash_unanswered(testbed: ServiceTestbed) -> RuleFinding:
    """The work is done, and its RESULT never got through: only a redelivery can bring it."""
    attempt = await testbed.dispatch("ok", prepare=_refuse_results)
    if await attempt.first("RESULT", seconds=testbed.timeouts.work_seconds) is None:
        return failed("no RESULT", *timeline(attempt))
    if (gone := await testbed.crash()) is not None:
        return failed(f"killed before its RESULT was taken, it did not come back: {gone}")
    attempt.results_unanswered = 0
    return await _after_crash(testbed, attempt)


def _refuse_results(attempt: ObservedAttempt) -> None:
    attempt.results_unanswered = 1_000_000


async def _after_crash(testbed: ServiceTestbed, attempt: ObservedAttempt) -> RuleFinding:
    """The broker delivers once more what was not settled; then the orchestrator begins the next attempt."""
    received = len(attempt.received)
    await testbed.again(attempt)
    await attempt.until(lambda: len(attempt.received) > received, testbed.timeouts.wait_seconds)
    result = await testbed.free(attempt) if len(attempt.received) > received else None
    new = await testbed.dispatch("ok", after=attempt)
    second = await testbed.result(new)
    evidence = (*timeline(attempt), *timeline(new))
    if result is None:
        return failed("the directive came again after the crash, and no RESULT followed", *evidence)
    if second is None or second.status != "SUCCEEDED":
        return failed("the next attempt after the crash did not succeed", *evidence)
    return passed(*evidence)


async def drain(testbed: ServiceTestbed) -> RuleFinding:
    process = testbed.process
    if process is None:
        return not_tried("there is no command that starts the service")
    attempt = await testbed.dispatch("slow")
    if await attempt.first("ACK", "PROGRESS", seconds=testbed.timeouts.wait_seconds) is None:
        await testbed.free(attempt)
        return failed("the work never began", *timeline(attempt))
    process.ask_to_stop()
    # A poll that was under way takes nothing with it; after that, whatever it takes is its own.
    await testbed.polls_called_off()
    more = await testbed.dispatch("ok", clocked=False)
    # It may finish its work. Two leases later it is cancelled, so that the run does not wait for long
    # samples.
    if await testbed.result(attempt, 2 * testbed.timeouts.lease_seconds) is None:
        attempt.stop = True
    ended = await process.ended(testbed.timeouts.drain_seconds)
    await testbed.withdraw()
    has_more = bool(more.handed) if testbed.over_http else bool(more.received)
    taken = [attempt, more] if has_more else [attempt]
    evidence = tuple(line for it in taken for line in timeline(it))
    if not ended:
        await process.kill()
        return failed(f"still there {testbed.timeouts.drain_seconds:g} s after SIGTERM", *evidence)
    if process.returncode not in QUIET_CODES:
        return failed(f"it ended with {process.returncode} after SIGTERM: {process.said}", *evidence)
    if left := [it for it in taken if not it.results]:
        return failed(f"it ended and left {len(left)} directives unanswered", *evidence)
    return passed(f"it ended with {process.returncode}", *evidence)
