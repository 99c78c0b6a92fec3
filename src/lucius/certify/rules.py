"""The rules of the certificate, in the order of the page.

`paragraph` names the part of docs/guides/platform-services.md in which the rule stands. `LAST` are those that
judge what was said in the whole run; they are played when everything else is over.
"""

from typing import Final

from lucius.certify.rules_crash import crash_at_work, crash_unanswered, drain, result_repeated
from lucius.certify.rules_duplicates import copies_after, copies_before, copies_during, overlap, stale_lease
from lucius.certify.rules_replies import ack_in_time, attempt_named, correlated, traced, well_formed
from lucius.certify.rules_time import cancel, keeps_lease
from lucius.certify.rules_work import (
    all_lanes,
    final,
    output_written,
    poison,
    result_once,
    retryable,
    unknown_members,
)
from lucius.certify.values import Need, Rule

CONTRACT: Final = "platform-services.md"

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        id="ack-in-time",
        title="A directive is acknowledged in time, before the work",
        paragraph="reply",
        done="Every directive of the run is looked at.",
        expected="An ACK, as the first reply, within --ack-seconds of the dispatch.",
        play=ack_in_time,
    ),
    Rule(
        id="well-formed",
        title="Calls and replies have the form of the contract",
        paragraph="reply",
        done="Every call and every reply of the run is read as Lucius reads it.",
        expected="None is refused.",
        play=well_formed,
    ),
    Rule(
        id="attempt-named",
        title="A reply names its attempt",
        paragraph="reply",
        done="Every reply of the run is compared with its directive.",
        expected="The same jobId, stepId, tenant_id, attempt_no and lease_id.",
        play=attempt_named,
    ),
    Rule(
        id="correlation",
        title="A reply carries the correlation id",
        paragraph="carry-the-trace",
        done="Every reply of the run is compared with its directive.",
        expected="The same correlation_id.",
        play=correlated,
    ),
    Rule(
        id="trace",
        title="A reply continues the trace",
        paragraph="carry-the-trace",
        done="Every reply of the run is compared with its directive.",
        expected="A traceparent of the same trace, in the message or as a header.",
        play=traced,
    ),
    Rule(
        id="result-once",
        title="An attempt gets exactly one RESULT",
        paragraph="reply",
        done="The sample `ok` is handed out; all other attempts are counted too.",
        expected="One RESULT, SUCCEEDED; never more RESULTs than directives.",
        play=result_once,
    ),
    Rule(
        id="output-written",
        title="Results lie where they belong",
        paragraph="write-the-final-result",
        done="The sample `ok` is handed out.",
        expected="A file at output_ref; the artifact in the folder of its attempt in the workspace.",
        play=output_written,
    ),
    Rule(
        id="copy-before",
        title="Two copies of a directive at once are one piece of work",
        paragraph="expect-everything-twice",
        done="The same directive is handed out twice at once.",
        expected="One ACK; RESULTs, if there are several, say the same.",
        play=copies_before,
    ),
    Rule(
        id="copy-during",
        title="A copy that comes during the work is the same piece of work",
        paragraph="expect-everything-twice",
        done="A directive is handed out again while its work goes on.",
        expected="One ACK; RESULTs, if there are several, say the same.",
        play=copies_during,
        needs=(Need.SLOW,),
    ),
    Rule(
        id="copy-after",
        title="A copy that comes after the RESULT does no work",
        paragraph="expect-everything-twice",
        done="A directive is handed out again after its RESULT.",
        expected="No ACK, no PROGRESS, no other RESULT; the artifact stays as it is.",
        play=copies_after,
    ),
    Rule(
        id="stale-lease",
        title="Work whose lease is lost is left alone",
        paragraph="stop",
        done="The ACK is answered with 409 STALE_ATTEMPT.",
        expected="No PROGRESS any more and no success; nothing, or FAILED_RETRY.",
        play=stale_lease,
        needs=(Need.SLOW,),
    ),
    Rule(
        id="overlap",
        title="Two attempts of one step do not disturb each other",
        paragraph="expect-everything-twice",
        done="While the first attempt works, its lease is lost and the second is handed out.",
        expected="The second succeeds under its own lease and writes to its own place.",
        play=overlap,
        needs=(Need.SLOW,),
    ),
    Rule(
        id="result-repeated",
        title="A RESULT that did not get through is sent again",
        paragraph="repeat",
        done="The RESULT is answered with 503, twice.",
        expected="The same RESULT again, until it is taken.",
        play=result_repeated,
        needs=(Need.HTTP,),
    ),
    Rule(
        id="crash-at-work",
        title="A crash during the work loses nothing",
        paragraph="expect-everything-twice",
        done="The service is killed at work and started; the directive comes again, then the next attempt.",
        expected="A RESULT for both.",
        play=crash_at_work,
        needs=(Need.START, Need.SLOW),
    ),
    Rule(
        id="crash-unanswered",
        title="A crash before the RESULT got through loses nothing",
        paragraph="expect-everything-twice",
        done="The service is killed while its RESULT is refused with 503; then as above.",
        expected="A RESULT for both.",
        play=crash_unanswered,
        needs=(Need.START, Need.HTTP),
    ),
    Rule(
        id="poison",
        title="What is no directive does no harm",
        paragraph="leave-the-rest-aside",
        done="Things that are no directives are handed out, then a good one.",
        expected="The service lives on and carries out the good one.",
        play=poison,
    ),
    Rule(
        id="unknown-members",
        title="Unknown members are ignored",
        paragraph="leave-the-rest-aside",
        done="A directive with members of a later version is handed out.",
        expected="It is carried out.",
        play=unknown_members,
    ),
    Rule(
        id="all-lanes",
        title="All lanes are served",
        paragraph="ask",
        done="A directive is published on each lane.",
        expected="Each is carried out.",
        play=all_lanes,
        needs=(Need.BUS,),
    ),
    Rule(
        id="lease-kept",
        title="Long work keeps its lease",
        paragraph="keep-the-lease",
        done="The sample `slow` is watched for two leases.",
        expected="A sign of life in every span of lease_seconds.",
        play=keeps_lease,
        needs=(Need.SLOW,),
    ),
    Rule(
        id="cancel",
        title="Work stops when it is told to",
        paragraph="stop",
        done="The job is cancelled while the sample `slow` is at work.",
        expected="RESULT FAILED_RETRY with the code STOPPED, within a lease and --ack-seconds.",
        play=cancel,
        needs=(Need.SLOW,),
    ),
    Rule(
        id="failure-retryable",
        title="A failure that another attempt may mend is FAILED_RETRY",
        paragraph="reply",
        done="The sample `retryable` is handed out.",
        expected="RESULT FAILED_RETRY with an error code.",
        play=retryable,
        needs=(Need.RETRYABLE,),
    ),
    Rule(
        id="failure-final",
        title="A failure that no attempt can mend is FAILED_FINAL",
        paragraph="reply",
        done="The sample `final` is handed out.",
        expected="RESULT FAILED_FINAL with an error code.",
        play=final,
        needs=(Need.FINAL,),
    ),
    Rule(
        id="drain",
        title="SIGTERM ends the service quietly",
        paragraph="end-quietly",
        done="SIGTERM is sent while the sample `slow` is at work.",
        expected="What is under way is answered, and the process ends with 0 or 143.",
        play=drain,
        needs=(Need.START, Need.SLOW),
    ),
)

LAST: Final = frozenset({"ack-in-time", "well-formed", "attempt-named", "correlation", "trace"})
