"""The item, field by field as the contract has it, and what is kept of failures."""

from decimal import Decimal

import msgspec
import pytest
from tests.lifebook.samples import NOW, a_job

from lucius.contracts.times import rfc3339
from lucius.lifebook import codec
from lucius.lifebook.failures import MESSAGE_CHARACTERS_MAX, failure
from lucius.lifebook.job import BY_NAME, FIELDS, SWEEP_SHARD, LifebookJob
from lucius.lifebook.message import FIELDS as MEMBERS
from lucius.lifebook.message import JobMessage, UnreadableBody, body_of, message_for, parse_body
from lucius.lifebook.schema import table_definition
from lucius.lifebook.states import Status

CONTRACT = [
    "job_id",
    "workspace_id",
    "user_id",
    "workflow_id",
    "trigger_type",
    "status",
    "attempts",
    "max_attempts",
    "step_cursor",
    "steps_total",
    "credits_estimate",
    "credits_reserved",
    "credits_spent",
    "idempotency_key",
    "last_error_code",
    "last_error_message",
    "created_at",
    "updated_at",
    "started_at",
    "completed_at",
    "ttl_at",
]
NUMBERS = {
    *("attempts", "max_attempts", "step_cursor", "steps_total"),
    *("credits_estimate", "credits_reserved", "credits_spent", "ttl_at"),
}


def test_the_item_has_the_fields_of_the_contract_in_its_types() -> None:
    job = a_job(
        status=Status.DEAD,
        last_error_code="X",
        last_error_message="x",
        started_at=NOW,
        completed_at=NOW + 1,
        ttl_at=1_789_000_123,
    )
    item = codec.item_of(job)
    assert [field.name for field in FIELDS if field.of_contract] == CONTRACT
    for name in CONTRACT:
        assert set(item[name]) == {"N" if name in NUMBERS else "S"}, name
    assert item["created_at"] == {"S": rfc3339(NOW + 1)}
    assert item["ttl_at"] == {"N": "1789000123"}
    assert item["credits_estimate"] == {"N": "1.5"}
    assert item["max_attempts"] == {"N": "5"}


def test_every_field_of_a_job_is_declared_and_the_other_way_round() -> None:
    assert {field.name for field in FIELDS} == {*LifebookJob.__struct_fields__, SWEEP_SHARD}
    assert BY_NAME["status"].of_contract


def test_absent_values_are_absent_attributes() -> None:
    item = codec.item_of(a_job())
    assert not {"started_at", "completed_at", "ttl_at", "lease_owner", "last_error_code"} & set(item)


def test_an_item_of_a_later_version_is_read() -> None:
    item = codec.item_of(a_job())
    assert codec.job_of({**item, "colour": {"S": "blue"}}) == a_job()


def test_an_item_without_what_the_contract_asks_for_is_refused_by_name() -> None:
    item = codec.item_of(a_job())
    del item["workflow_id"]
    with pytest.raises(codec.BadItem, match="workflow_id"):
        codec.job_of(item)
    with pytest.raises(codec.BadItem, match="attempts"):
        codec.job_of({**codec.item_of(a_job()), "attempts": {"S": "two"}})


def test_an_item_by_the_contract_alone_is_a_job() -> None:
    """As another program writes it: none of Lifebook's own fields, and nothing told as empty or NULL."""
    item = codec.item_of(a_job())
    alone = {name: value for name, value in item.items() if name in BY_NAME and BY_NAME[name].of_contract}
    job = codec.job_of(
        {**alone, "last_error_code": {"S": ""}, "started_at": {"NULL": True}, "ttl_at": {"NULL": True}}
    )
    assert (job.version, job.fingerprint, job.trace_id) == (0, "", job.job_id.replace("-", ""))
    assert (job.started_at, job.last_error_code, job.ttl_at) == (None, None, None)
    assert (
        msgspec.structs.replace(
            job, version=1, trace_id="a" * 32, fingerprint="f" * 64, sweep_at=a_job().sweep_at
        )
        == a_job()
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [("1.50", "1.5"), ("100", "100"), ("1E+2", "100"), ("0.000001", "0.000001"), ("0", "0"), ("0.0", "0")],
)
def test_credits_are_written_without_exponents(value: str, text: str) -> None:
    assert codec.decimal_text(Decimal(value)) == text


def test_the_table_is_that_of_the_contract() -> None:
    definition = table_definition("t")
    index = definition["GlobalSecondaryIndexes"][0]
    assert definition["BillingMode"] == "PAY_PER_REQUEST"
    assert definition["KeySchema"] == [{"AttributeName": "job_id", "KeyType": "HASH"}]
    assert index["IndexName"] == "workspace_created_at"
    assert [key["AttributeName"] for key in index["KeySchema"]] == ["workspace_id", "created_at"]
    assert index["Projection"] == {
        "ProjectionType": "INCLUDE",
        "NonKeyAttributes": ["status", "workflow_id", "trigger_type", "credits_estimate"],
    }


def test_a_message_has_the_eight_members_of_the_contract() -> None:
    sent = body_of(message_for(a_job(attempts=2)))
    assert tuple(MEMBERS) == JobMessage.__struct_fields__
    parsed = parse_body(sent)
    assert parsed == message_for(a_job(attempts=2))
    assert isinstance(parsed, JobMessage)
    assert (parsed.v, parsed.attempt, parsed.max_attempts) == (1, 3, 5)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{}",
        "nul",
        "\ud800",
        "x" * 70_000,
        body_of(message_for(a_job())).replace('"v":1', '"v":2'),
        body_of(message_for(a_job())).replace('"attempt":1', '"attempt":0'),
        body_of(message_for(a_job())).replace('"attempt":1', '"attempt":"1"'),
        body_of(message_for(a_job())).replace("manual", "by hand"),
        body_of(message_for(a_job(workspace_id=""))),
        body_of(message_for(a_job(job_id="j" * 3000))),
        body_of(message_for(a_job(job_id="j\u0000"))),
    ],
)
def test_a_body_that_is_no_message_is_known_as_such(body: str) -> None:
    assert isinstance(parse_body(body), UnreadableBody)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("no page 3", "no page 3"),
        ("mail to ann.lee@example.com bounced", "mail to *** bounced"),
        ("called +49 170 1234567 twice", "called *** twice"),
        ("card 4111-1111-1111-1111 refused", "card *** refused"),
        ("at 192.168.10.20 port 80", "at *** port 80"),
        ("s3://bucket/ann-lee/passport.pdf missing", "*** missing"),
        ("cannot open /data/ann/letter.pdf", "cannot open ***"),
        ("row 'Ann Lee' is bad", "row *** is bad"),
        ("password=hunter2 wrong", "*** wrong"),
        ("for user_7 only", "for *** only"),
        ("line one\nline\x00two", "line one linetwo"),
    ],
)
def test_nothing_personal_is_kept_of_a_failure(text: str, kept: str) -> None:
    assert failure("X", text, secrets=("user_7",)).message == kept


def test_codes_and_messages_are_short() -> None:
    found = failure("not a code!", "word " * 500)
    assert found.code == "STEP_FAILED"
    assert len(found.message) <= MESSAGE_CHARACTERS_MAX
    assert failure("A" * 65, "").code == "STEP_FAILED"
