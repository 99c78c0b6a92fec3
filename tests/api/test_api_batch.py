"""Many commands at once: in order, and one bad envelope spoils only itself."""

import json

import pytest
from tests.support.api_setup import Callers, Deployment, Json, check_problem, envelope, pointers


async def batch(deployment: "Deployment", commands: "Json") -> "Json":
    response = await deployment.post("/v1/orchestrate:batch", {"commands": commands})
    assert response.status_code == 200, response.text
    return response.json()["items"]


async def test_five_hundred_in_order_with_bad_ones_among_them(deployment: "Deployment") -> None:
    commands = [envelope() for _ in range(500)]
    commands[7] = envelope(tenant_id=...)
    commands[8] = "not an envelope"  # type: ignore[call-overload]
    commands[9] = envelope(request_type="PAINT")
    commands[10] = commands[6]
    commands[499] = envelope(payload={"x": "y" * 256 * 1024})
    items = await batch(deployment, commands)
    codes = {index: item["code"] for index, item in enumerate(items) if "code" in item}
    assert codes == {
        7: "INVALID_ENVELOPE",
        8: "INVALID_ENVELOPE",
        9: "UNKNOWN_REQUEST_TYPE",
        499: "BODY_TOO_LARGE",
    }
    assert pointers(items[7]) == {"/tenant_id"}
    assert items[7]["status"] == 422
    good = [item for item in items if "code" not in item]
    assert len(items) == 500
    assert all(item.keys() == {"jobId", "state", "duplicate"} for item in good)
    assert {items[6]["jobId"]} == {items[10]["jobId"]}
    assert [items[6]["duplicate"], items[10]["duplicate"]] == [False, True]
    assert len({item["jobId"] for item in good}) == 495
    for index in (0, 11, 498):
        job = await deployment.job(items[index]["jobId"])
        assert job["steps"][0]["input_ref"] == commands[index]["input_ref"]
    assert deployment.lucius.admission.by_tenant == {"acme": 495}


async def test_one_too_many_is_refused_whole(deployment: "Deployment") -> None:
    commands = [envelope() for _ in range(501)]
    response = await deployment.post("/v1/orchestrate:batch", {"commands": commands})
    assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {"/commands"}
    assert (await deployment.http.get("/v1/jobs")).json()["items"] == []


@pytest.mark.parametrize(
    ("spoilt", "code"),
    [
        (b'{"a": 1e999}', "INVALID_ENVELOPE"),
        (b'{"a": ' + b"1" * 5_000 + b"}", "INVALID_ENVELOPE"),
        (b'{"a": ' * 62 + b"1" + b"}" * 62, "INVALID_PAYLOAD"),
        (b'{"a": ' * 70 + b"1" + b"}" * 70, "INVALID_ENVELOPE"),
        (b'{"a": ' * 5_000 + b"1" + b"}" * 5_000, "INVALID_ENVELOPE"),
    ],
    ids=["number", "digits", "depth", "more depth", "no end of depth"],
)
async def test_what_cannot_be_read_of_one_spoils_only_itself(
    deployment: "Deployment", spoilt: bytes, code: str
) -> None:
    sound = json.dumps(envelope()).encode()
    alone = json.dumps(envelope() | {"payload": "?"}).encode().replace(b'"?"', spoilt)
    single = await deployment.http.post("/v1/orchestrate", content=alone)
    assert single.json()["code"] == code
    body = b'{"commands": [' + alone + b", " + sound + b"]}"
    items = (await deployment.http.post("/v1/orchestrate:batch", content=body)).json()["items"]
    assert [items[0]["code"], items[1]["state"]] == [code, "QUEUED"]
    assert items[0] == single.json()


async def test_an_envelope_is_as_large_as_it_was_sent(deployment: "Deployment") -> None:
    text = json.dumps(envelope())
    padded = text[:-1] + " " * (256 * 1024 + 1 - len(text)) + "}"
    assert len(padded) == 256 * 1024 + 1
    body = f'{{"commands": [{padded}, {padded.replace("  ", " ", 1)}]}}'
    items = (await deployment.http.post("/v1/orchestrate:batch", content=body)).json()["items"]
    assert items[0]["code"] == "BODY_TOO_LARGE"
    assert "jobId" in items[1]


async def test_a_batch_has_a_form_and_a_largest_size(deployment: "Deployment") -> None:
    wrong: list[Json] = [[], {}, {"commands": {}}, {"commands": [], "more": 1}, 7]
    for document in wrong:
        response = await deployment.http.post("/v1/orchestrate:batch", content=json.dumps(document))
        assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {"/commands"}
    assert await batch(deployment, []) == []
    padded = b'{"commands": []}' + b" " * (16 * 1024 * 1024)
    response = await deployment.http.post("/v1/orchestrate:batch", content=padded)
    check_problem(response, 413, "BODY_TOO_LARGE")


async def test_a_batch_fills_a_tenant_up_to_its_limit(callers: "Callers") -> None:
    deployment = await callers.open({"LUCIUS_MAX_INFLIGHT_PER_TENANT": "3"})
    items = await batch(deployment, [envelope() for _ in range(5)])
    assert sum("jobId" in item for item in items) == 3
    refused = [item for item in items if "code" in item]
    assert [item["code"] for item in refused] == ["TENANT_LIMIT", "TENANT_LIMIT"]
    assert all(item["retry_after_seconds"] > 0 for item in refused)


async def test_copies_of_a_command_take_one_slot(callers: "Callers") -> None:
    deployment = await callers.open({"LUCIUS_MAX_INFLIGHT_PER_TENANT": "1"})
    command = envelope(idempotency_key="once")
    items = await batch(deployment, [command] * 10)
    assert sorted(item["duplicate"] for item in items) == [False] + [True] * 9
    assert len({item["jobId"] for item in items}) == 1
    assert [item["duplicate"] for item in await batch(deployment, [command] * 3)] == [True] * 3
    other = await batch(deployment, [envelope(idempotency_key="twice")] * 2)
    assert [item["code"] for item in other] == ["TENANT_LIMIT", "TENANT_LIMIT"]


async def test_a_batch_has_no_key_of_its_own(deployment: "Deployment") -> None:
    document = json.dumps({"commands": [envelope()]})
    response = await deployment.http.post(
        "/v1/orchestrate:batch", content=document, headers={"Idempotency-Key": "one for all"}
    )
    assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {"/commands"}
    assert (await deployment.http.get("/v1/jobs")).json()["items"] == []


async def test_keys_stand_in_the_envelopes(deployment: "Deployment") -> None:
    command = envelope()
    items = await batch(deployment, [command | {"idempotency_key": key} for key in ("a", "b", "a")])
    assert items[0]["jobId"] == items[2]["jobId"] != items[1]["jobId"]
    assert items[2]["duplicate"] is True
