"""Lucius against its model: any mix of commands, work, controls and time, in every layout.

The machine asks the API as a client would, and the model (`model_ledger`) says what must come of it.
LUCIUS_SOAK=1 plays far more and longer games, each time others.
"""

from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.lab.model_api import TENANTS, ModelledApi, told
from tests.lab.model_ledger import ENDED
from tests.sizes import SOAKING

from lucius.ledger.job_ledger import LayoutName
from lucius_lab.fuzz.server import quiet

GAMES, MOVES = (2_000, 80) if SOAKING else (25, 40)

numbers = st.integers(0, 3)
tenants = st.sampled_from(TENANTS)
kinds = st.sampled_from(("OCR", "OCR_EMBEDDING"))
keys = st.sampled_from((None, None, "k1", "k2"))
places = st.integers(0, 10_000)
spans_ms = st.sampled_from(
    (1, 5_000, 29_999, 30_000, 60_000, 300_000, 900_000, 3_600_000, 90_000_000, 691_200_000)
)
commands = st.tuples(tenants, kinds, numbers, keys)
services = st.sampled_from(("ocr", "ocr", "embedding"))
words = st.sampled_from(("SUCCEEDED", "SUCCEEDED", "FAILED_RETRY", "FAILED_RETRY", "FAILED_FINAL"))
replies = st.tuples(st.sampled_from(("RESULT", "ACK", "PROGRESS")), words, st.integers(0, 100))
# The latest directives are the likeliest to be of current attempts.
directives = st.one_of(st.integers(-4, -1), places)

STATES = ("DISPATCHING", "IN_PROGRESS", "PAUSING", "PAUSED", "CANCELLING", *sorted(ENDED))

BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"payload": 3}, 422, "INVALID_ENVELOPE"),
    ({"tenant_id": " "}, 422, "INVALID_ENVELOPE"),
    ({"unknown": 1}, 422, "INVALID_ENVELOPE"),
    ({"request_type": "NOTHING"}, 422, "UNKNOWN_REQUEST_TYPE"),
    ({"schema_version": "2"}, 422, "UNSUPPORTED_SCHEMA_VERSION"),
    ({"payload": {"password": "x"}}, 422, "INVALID_PAYLOAD"),
    ({"input_ref": {"uri": "ftp://a/b"}}, 422, "REF_NOT_ALLOWED"),
    ({"mode": "BURST"}, 422, "DOC_ID_REQUIRED"),
    ({"tenant_id": "globex"}, 403, "FORBIDDEN"),
    ({"idempotency_key": "k1"}, 422, "INVALID_ENVELOPE"),  # where the header says k2
]


def envelope(tenant: str, kind: str, number: int, key: str | None, **more: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        # The same tenant and the same payload, in other spellings.
        "tenant_id": f" {tenant.upper()}" if number % 2 else tenant,
        "request_type": kind,
        "input_ref": {"uri": f"s3://in/{number}"},
        "output_ref": {"uri": "s3://out/x"},
        "payload": {"dpi": 100 + number, "none": None} if number % 2 else {"dpi": 100.0 + number},
        "schema_version": "1",
    }
    return document | ({} if key is None else {"idempotency_key": key}) | more


class Games(RuleBasedStateMachine):
    layout = LayoutName.LEDGER
    spans = True

    def __init__(self) -> None:
        super().__init__()
        self.api = ModelledApi(self.layout, spans=self.spans)

    def teardown(self) -> None:
        try:
            for job_id in self.api.model.jobs:
                self.api.check_job(job_id)
                self.api.check_trail(job_id)
            self.api.check_list(None, None)
        finally:
            self.api.close()

    def job_at(self, place: int) -> str:
        jobs = list(self.api.model.jobs)
        return jobs[place % len(jobs)]

    def look(self, *job_ids: str) -> None:
        for job_id in job_ids:
            self.api.check_job(job_id)
            self.api.check_trail(job_id)

    @initialize(kinds_=st.tuples(kinds, kinds), leased=st.booleans())
    def begin(self, kinds_: tuple[str, str], leased: bool) -> None:
        """Nobody plays with an empty deployment for long: two jobs to begin with, perhaps under way."""
        for number, (tenant, kind) in enumerate(zip(TENANTS, kinds_, strict=True)):
            self.submit((tenant, kind, number, None), False)
        if leased:
            self.lease("ocr", 100)

    # Commands

    @rule(command=commands, in_header=st.booleans())
    def submit(self, command: tuple[str, str, int, str | None], in_header: bool) -> None:
        tenant, kind, number, key = command
        document = envelope(tenant, kind, number, None if in_header else key)
        owner = self.api.owners[tenant]
        header = key if in_header else None
        self.accept(command, self.api.ask("POST", "/v1/orchestrate", owner, document, header))

    def accept(self, command: tuple[str, str, int, str | None], answer: Any) -> None:
        """Holds the answer to a command against the model, and enters it."""
        item = answer.json()
        if answer.status == 202:
            assert answer.headers["location"] == f"/v1/jobs/{item['jobId']}"
            assert (answer.headers.get("idempotent-replayed") == "true") is item["duplicate"]
        self.enter(command, item)

    def enter(self, command: tuple[str, str, int, str | None], item: Any) -> None:
        tenant, kind, number, key = command
        model = self.api.model
        what = (kind, number)
        name = f"content {what}" if key is None else key
        status, word = model.expect(tenant, name, what)
        if status != 202:
            assert (item.get("status"), item.get("code")) == (status, word), item
            return
        assert "jobId" in item, item
        if word == "duplicate":
            job_id = model.keys[tenant, name][1]
            assert item == {"jobId": job_id, "state": model.jobs[job_id].state, "duplicate": True}
        else:
            assert item["jobId"] not in model.jobs
            assert item == {"jobId": item["jobId"], "state": "QUEUED", "duplicate": False}
            model.create(item["jobId"], tenant, kind, name, what)
        self.look(item["jobId"])

    @rule(bad=st.sampled_from(BAD), number=numbers)
    def submit_what_is_refused(self, bad: tuple[dict[str, Any], int, str], number: int) -> None:
        changes, status, code = bad
        document = envelope("acme", "OCR", number, None, **changes)
        owner, header = self.api.owners["acme"], "k2" if "idempotency_key" in changes else None
        asked = ("POST", "/v1/orchestrate", owner, document, header)
        self.api.refused_without_a_trace((status, code), *asked)

    @rule(batch=st.lists(st.one_of(commands, st.sampled_from(BAD[:-2])), max_size=4))
    def submit_a_batch(self, batch: list[Any]) -> None:
        documents = [
            envelope(*command) if len(command) == 4 else envelope("acme", "OCR", 0, None, **command[0])
            for command in batch
        ]
        answer = self.api.ask("POST", "/v1/orchestrate:batch", self.api.root, {"commands": documents})
        assert answer.status == 200, answer.body
        for command, item in zip(batch, answer.json()["items"], strict=True):
            if len(command) == 4:
                self.enter(command, item)
            else:
                assert (item["status"], item["code"]) == command[1:]

    # Work

    @rule(service=services, most=st.sampled_from((1, 2, 100)))
    def lease(self, service: str, most: int) -> None:
        known = len(self.api.directives)
        self.api.lease(service, most)
        self.look(*(directive["jobId"] for directive in self.api.directives[known:]))

    @rule(service=services, said=st.lists(replies, min_size=1, max_size=4), most=st.sampled_from((1, 3)))
    def work(self, service: str, said: list[tuple[str, str, int]], most: int) -> None:
        """A worker takes what there is and answers it, in whatever order its messages arrive."""
        known = len(self.api.directives)
        self.lease(service, most)
        for directive in self.api.directives[known:]:
            self.say(directive, said)

    @precondition(lambda self: self.api.directives)
    @rule(place=directives, said=st.lists(replies, min_size=1, max_size=2))
    def answer(self, place: int, said: list[tuple[str, str, int]]) -> None:
        self.say(self.api.directives[place % len(self.api.directives)], said)

    @precondition(lambda self: self.api.directives)
    @rule(place=directives, said=replies)
    def answer_twice(self, place: int, said: tuple[str, str, int]) -> None:
        self.say(self.api.directives[place % len(self.api.directives)], [said, said])

    def say(self, directive: Any, said: list[tuple[str, str, int]]) -> None:
        for kind, word, number in said:
            self.api.reply(directive, kind, word, number)
        self.look(directive["jobId"])

    @precondition(lambda self: len(self.api.directives) > 1)
    @rule(place=places)
    def reply_for_another(self, place: int) -> None:
        held = self.api.directives[place % len(self.api.directives)]
        named = self.api.directives[(place + 1) % len(self.api.directives)]
        message = {name: named[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}
        message |= {"type": "ACK", "timestamp": "2027-01-15T08:00:00Z"}
        token, expected = held["callback_token"], (403, "FORBIDDEN")
        self.api.refused_without_a_trace(expected, "POST", "/v1/callbacks/ack", token, message)

    # Control

    @precondition(lambda self: self.api.model.jobs)
    @rule(place=places, verb=st.sampled_from(("pause", "resume", "cancel")))
    def control(self, place: int, verb: str) -> None:
        job_id = self.job_at(place)
        expected = self.api.model.control(job_id, verb)
        owner = self.api.owners[self.api.model.jobs[job_id].tenant]
        assert told(self.api.ask("POST", f"/v1/jobs/{job_id}:{verb}", owner)) == expected
        self.look(job_id)

    @precondition(lambda self: self.api.model.jobs)
    @rule(place=places, key=keys, from_step=st.sampled_from((None, None, "step_01", "step_02", "step_09")))
    def rerun(self, place: int, key: str | None, from_step: str | None) -> None:
        model = self.api.model
        ended = [job_id for job_id, job in model.jobs.items() if job.ended]
        job_id = ended[place % len(ended)] if ended and place % 5 else self.job_at(place)
        tenant = model.jobs[job_id].tenant
        document = None if from_step is None else {"from_step": from_step}
        asked: tuple[Any, ...] = ("POST", f"/v1/jobs/{job_id}:rerun", self.api.owners[tenant], document, key)
        first = model.rerun_from(job_id, from_step)
        if isinstance(first, tuple):
            self.api.refused_without_a_trace(first, *asked)
            return
        status, word = model.expect_rerun(job_id, first, key)
        if status != 202:
            self.api.refused_without_a_trace((status, word), *asked)
            return
        answer = self.api.ask(*asked)
        assert answer.status == 202, answer.body
        new_id = answer.json()["jobId"]
        if word == "duplicate":
            assert new_id == model.keys[tenant, f"rerun#{job_id}" if key is None else key][1]
            assert answer.headers["idempotent-replayed"] == "true"
        else:
            assert new_id not in model.jobs
            model.create_rerun(job_id, new_id, first, key)
        self.look(job_id, new_id)

    # Time, and looking

    @rule(early_ms=st.sampled_from((0, 0, 0, 1)))
    def wait_until_something_is_due(self, early_ms: int) -> None:
        due = [at for job in self.api.model.jobs.values() for at in job.due if at > self.api.model.now]
        self.wait(min(due, default=self.api.model.now + 1) - self.api.model.now - early_ms, True)

    @rule(span_ms=spans_ms, swept=st.sampled_from((True, True, True, False)))
    def wait(self, span_ms: int, swept: bool) -> None:
        self.api.model.now += span_ms
        self.api.deployment.now_at_ms += span_ms
        if swept:
            self.api.model.sweep()
            self.api.run(self.api.deployment.sweeper.sweep())
            self.look(*self.api.model.jobs)
            self.api.check_slots()

    @precondition(lambda self: self.api.model.jobs)
    @rule(tenant=st.sampled_from((None, *TENANTS)), state=st.sampled_from((None, *STATES)), place=places)
    def look_around(self, tenant: str | None, state: str | None, place: int) -> None:
        self.api.check_list(tenant, state)
        self.api.check_hidden(self.job_at(place))


@pytest.mark.parametrize("spans", [True, False], ids=["spanning", "partitioned"])
@pytest.mark.parametrize("layout", list(LayoutName), ids=lambda layout: layout.value)
def test_any_game_goes_as_the_model_says(layout: LayoutName, spans: bool) -> None:
    games = type("Games", (Games,), {"layout": layout, "spans": spans})
    before = structlog.get_config()
    quiet()
    try:
        run_state_machine_as_test(
            games,
            settings=settings(
                max_examples=GAMES,
                stateful_step_count=MOVES,
                deadline=None,
                derandomize=not SOAKING,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        structlog.configure(**before)


def test_progress_after_the_longest_time_takes_none_away() -> None:
    """A game that is hardly ever played: nobody looks for deadlines for a day, and then a service answers."""
    games = Games()
    games.begin(("OCR", "OCR"), True)
    games.wait(90_000_000, False)
    games.answer_twice(0, ("PROGRESS", "SUCCEEDED", 40))
    games.teardown()
