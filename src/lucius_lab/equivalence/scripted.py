"""The written scripts: one for each way in which a job can go."""

from lucius_lab.equivalence.script import (
    HOUR_MS,
    SHORT_MS,
    SOON_MS,
    Adopt,
    Age,
    BusFaults,
    Control,
    ControlWish,
    Early,
    ExpireMove,
    Orphan,
    Publish,
    Repeat,
    Reply,
    Rerun,
    Say,
    Script,
    Untold,
    patient,
)

ACK, PROGRESS = Reply(say=Say.ACK), Reply(say=Say.PROGRESS)
DONE, RETRY, FINAL = Reply(say=Say.DONE), Reply(say=Say.RETRY), Reply(say=Say.FINAL)
PAUSE, RESUME, CANCEL = (
    Control(wish=ControlWish.PAUSE),
    Control(wish=ControlWish.RESUME),
    Control(wish=ControlWish.CANCEL),
)
EXPIRE, REPEAT, RERUN, AGE, ORPHAN = ExpireMove(), Repeat(), Rerun(), Age(), Orphan()

USUAL = patient()
LATER = patient(backoff_ms=HOUR_MS)
SOON = patient(backoff_ms=SOON_MS)
ONCE = patient(attempts=1)
UNACKED = patient(ack_ms=SHORT_MS)
LEASED = patient(lease_ms=SHORT_MS)
HELD = patient(publish_ms=HOUR_MS)


def _refused(times: int) -> BusFaults:
    return BusFaults(fates=(Publish.REFUSED,) * times)


ANSWERS = (
    Script(name="three steps in order", steps=3, policy=USUAL, moves=(ACK, DONE) * 3),
    Script(name="results imply their acks", steps=3, policy=USUAL, moves=(DONE,) * 3),
    Script(
        name="acks untold",
        steps=2,
        policy=USUAL,
        acks_told=False,
        moves=(ACK, PROGRESS, DONE, ACK, PROGRESS, DONE),
    ),
    Script(
        name="calls by activities", steps=2, policy=SOON, local_calls=False, moves=(ACK, RETRY, DONE, DONE)
    ),
    Script(
        name="over the bus",
        steps=2,
        policy=USUAL,
        moves=tuple(Reply(say=say, by_bus=True) for say in (Say.ACK, Say.PROGRESS, Say.DONE, Say.DONE)),
    ),
    Script(name="progress implies its ack", policy=USUAL, moves=(PROGRESS, DONE)),
    Script(
        name="progress goes back",
        policy=USUAL,
        moves=(ACK, PROGRESS, Reply(say=Say.PROGRESS, percent=20), Reply(say=Say.PROGRESS, percent=90), DONE),
    ),
    Script(name="answered before it was noted", steps=2, policy=USUAL, moves=(Early(say=Say.DONE), DONE)),
    Script(name="acknowledged before it was noted", policy=USUAL, moves=(Early(say=Say.ACK), DONE)),
    Script(name="failed before it was noted", policy=USUAL, moves=(Early(say=Say.RETRY), DONE)),
    Script(name="the command again", steps=2, policy=USUAL, moves=(REPEAT, ACK, REPEAT, DONE, DONE, REPEAT)),
)

FAILURES = (
    Script(name="a retry at once", steps=2, policy=USUAL, moves=(ACK, RETRY, ACK, DONE, DONE)),
    Script(name="a retry a little later", policy=SOON, moves=(RETRY, RETRY, DONE)),
    Script(name="retries run out", steps=2, policy=USUAL, moves=(RETRY, ACK, RETRY, RETRY)),
    Script(name="no retries at all", policy=ONCE, moves=(ACK, RETRY)),
    Script(name="a final failure", steps=3, policy=USUAL, moves=(DONE, ACK, FINAL)),
    Script(name="a final failure after a retry", policy=USUAL, moves=(RETRY, FINAL)),
    Script(name="failed again and again, each step", steps=3, policy=SOON, moves=(RETRY, DONE) * 3),
)

LOSSES = (
    Script(name="no ack comes", policy=UNACKED, moves=(EXPIRE, DONE)),
    Script(name="no ack ever comes", steps=2, policy=UNACKED, moves=(EXPIRE,) * 3),
    Script(name="no result comes", policy=LEASED, moves=(ACK, EXPIRE, DONE)),
    Script(name="no result ever comes", policy=LEASED, moves=(ACK, EXPIRE) * 3),
    Script(name="progress, then silence", policy=LEASED, moves=(ACK, PROGRESS, EXPIRE, ACK, DONE)),
    Script(
        name="silence, then an untold ack",
        policy=LEASED,
        acks_told=False,
        moves=(ACK, EXPIRE, ACK, PROGRESS, DONE),
    ),
    Script(
        name="the directive is lost", policy=UNACKED, moves=(BusFaults(fates=(Publish.LOST,)), EXPIRE, DONE)
    ),
    Script(name="the bus refuses twice", policy=USUAL, moves=(_refused(2), ACK, DONE)),
    Script(
        name="the bus refuses in the middle",
        steps=2,
        policy=USUAL,
        moves=(ACK, _refused(1), DONE, DONE),
    ),
    Script(name="the bus refuses for good", policy=patient(publishes=2), moves=(_refused(2),)),
    Script(
        name="the bus took it and did not say so",
        policy=USUAL,
        moves=(BusFaults(fates=(Publish.UNANSWERED,)), ACK, DONE),
    ),
    Script(name="the bus doubles it", policy=USUAL, moves=(BusFaults(fates=(Publish.DOUBLED,)), ACK, DONE)),
    Script(name="an orphan under way", steps=2, policy=USUAL, moves=(ACK, ORPHAN, DONE, DONE)),
    Script(name="an orphan unacknowledged", policy=UNACKED, moves=(ORPHAN, EXPIRE, ORPHAN, DONE)),
    Script(name="an orphan that waits", policy=LATER, moves=(RETRY, ORPHAN, PAUSE, ORPHAN, RESUME, CANCEL)),
)

DUPLICATES = (
    Script(
        name="everything twice",
        steps=2,
        policy=USUAL,
        moves=tuple(Reply(say=say, times=2) for say in (Say.ACK, Say.DONE, Say.ACK, Say.DONE)),
    ),
    Script(
        name="everything twice over the bus",
        steps=2,
        policy=USUAL,
        moves=tuple(Reply(say=say, times=2, by_bus=True) for say in (Say.ACK, Say.DONE, Say.ACK, Say.DONE)),
    ),
    Script(
        name="late answers of the attempt before",
        policy=USUAL,
        moves=(RETRY, *(Reply(say=say, back=1) for say in (Say.ACK, Say.PROGRESS, Say.DONE)), DONE),
    ),
    Script(
        name="late success after the ack timeout",
        policy=patient(ack_ms=SHORT_MS, backoff_ms=HOUR_MS),
        moves=(EXPIRE, DONE, ACK, CANCEL),
    ),
    Script(
        name="a lease of another",
        policy=USUAL,
        moves=tuple(Reply(say=say, forged=True) for say in (Say.ACK, Say.PROGRESS, Say.DONE, Say.FINAL)),
    ),
    Script(name="answers after the end", policy=USUAL, moves=(DONE, ACK, PROGRESS, DONE, FINAL)),
    Script(name="answers after a failure", policy=ONCE, moves=(FINAL, ACK, DONE, PROGRESS)),
    Script(name="a result that comes again untold", policy=USUAL, moves=(ACK, Untold(say=Say.DONE))),
    Script(name="a failure that comes again untold", policy=USUAL, moves=(Untold(say=Say.FINAL),)),
    Script(name="an ack that comes again untold", policy=USUAL, moves=(Untold(say=Say.ACK), DONE)),
)

PAUSES = (
    Script(name="paused under way", steps=2, policy=USUAL, moves=(ACK, PAUSE, DONE, RESUME, DONE)),
    Script(name="paused before the ack", steps=2, policy=USUAL, moves=(PAUSE, ACK, DONE, RESUME, DONE)),
    Script(name="resumed before it was paused", steps=2, policy=USUAL, moves=(PAUSE, RESUME, DONE, DONE)),
    Script(name="paused twice, resumed twice", policy=USUAL, moves=(PAUSE, PAUSE, RESUME, RESUME, DONE)),
    Script(name="pausing, and the last step succeeds", policy=USUAL, moves=(ACK, PAUSE, DONE, RESUME)),
    Script(name="pausing, and the step fails for good", steps=2, policy=USUAL, moves=(PAUSE, FINAL, RESUME)),
    Script(name="pausing, and the step will be retried", policy=USUAL, moves=(PAUSE, RETRY, RESUME, DONE)),
    Script(name="pausing, and no ack comes", policy=UNACKED, moves=(PAUSE, EXPIRE, RESUME, DONE)),
    Script(name="pausing, and no result comes", policy=LEASED, moves=(ACK, PAUSE, EXPIRE, RESUME, DONE)),
    Script(name="paused between attempts", policy=LATER, moves=(RETRY, PAUSE, REPEAT, RESUME, CANCEL)),
    Script(name="paused while the bus is away", policy=HELD, moves=(_refused(1), PAUSE, RESUME, CANCEL)),
    Script(
        name="answers to a paused job",
        steps=2,
        policy=USUAL,
        moves=(PAUSE, DONE, DONE, ACK, Reply(say=Say.DONE, forged=True), RESUME, DONE),
    ),
)

CANCELS = (
    Script(name="cancelled under way, succeeds", steps=2, policy=USUAL, moves=(ACK, CANCEL, DONE)),
    Script(name="cancelled under way, fails", steps=2, policy=USUAL, moves=(CANCEL, ACK, FINAL)),
    Script(name="cancelled under way, stops", steps=3, policy=USUAL, moves=(DONE, CANCEL, PROGRESS, RETRY)),
    Script(name="cancelled, and no ack comes", policy=UNACKED, moves=(CANCEL, EXPIRE)),
    Script(name="cancelled, and no result comes", policy=LEASED, moves=(ACK, CANCEL, EXPIRE, DONE)),
    Script(name="cancelled between attempts", steps=2, policy=LATER, moves=(RETRY, CANCEL, DONE)),
    Script(name="cancelled while the bus is away", policy=HELD, moves=(_refused(1), CANCEL)),
    Script(name="cancelled while paused", steps=2, policy=USUAL, moves=(PAUSE, DONE, CANCEL, CANCEL)),
    Script(name="cancelled while pausing", steps=2, policy=USUAL, moves=(PAUSE, CANCEL, DONE)),
    Script(
        name="controls on a cancelling job",
        policy=USUAL,
        moves=(CANCEL, PAUSE, RESUME, CANCEL, Reply(say=Say.ACK, times=2), RETRY),
    ),
    Script(name="controls on an ended job", policy=USUAL, moves=(DONE, PAUSE, RESUME, CANCEL)),
)

RERUNS = (
    Script(name="rerun after a failure", steps=2, policy=ONCE, moves=(DONE, FINAL, RERUN, ACK, DONE)),
    Script(name="rerun of a cancelled job", steps=3, policy=USUAL, moves=(DONE, CANCEL, DONE, RERUN, DONE)),
    Script(name="nothing to rerun", policy=USUAL, moves=(DONE, RERUN)),
    Script(name="rerun of an open job", policy=USUAL, moves=(ACK, RERUN, DONE)),
    Script(
        name="rerun from a step",
        steps=2,
        policy=USUAL,
        moves=(DONE, DONE, Rerun(from_step="step_02"), RETRY, DONE),
    ),
    Script(
        name="a late success adopted",
        steps=2,
        policy=patient(attempts=1, ack_ms=SHORT_MS),
        moves=(EXPIRE, DONE, Adopt(), ACK, DONE),
    ),
    Script(
        name="adopted, and nothing left to run",
        policy=patient(attempts=1, ack_ms=SHORT_MS),
        moves=(EXPIRE, DONE, Adopt()),
    ),
    Script(name="the SLA runs out", policy=patient(), sla_ms=10_000, moves=(ACK, AGE, AGE)),
    Script(name="the SLA runs out twice over", steps=2, policy=LATER, sla_ms=10_000, moves=(RETRY, AGE, AGE)),
)

SCRIPTED: tuple[Script, ...] = (*ANSWERS, *FAILURES, *LOSSES, *DUPLICATES, *PAUSES, *CANCELS, *RERUNS)
