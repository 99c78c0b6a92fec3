"""The OpenAPI document is current, complete, true to the routes, and fit to generate clients from."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import openapi_spec_validator
import pytest
from starlette.requests import Request
from tests.support.api_document import Doc, Document
from tests.support.api_setup import Deployment

from lucius.api import openapi
from lucius.api.app import make_app
from lucius.api.gate import Principal
from lucius.api.openapi import OPERATIONS, documented_path
from lucius.api.problems import STATUS
from lucius.api.routes import ROUTES
from lucius.cli.documents import documents, main
from lucius.contracts.envelope import parse_envelope
from lucius.contracts.examples import EXAMPLES
from lucius.contracts.keys import Role
from lucius.core.refusal import BETWEEN_PROCESSES, Code, Refused
from lucius.engines.webhooks.delivery import webhook_body

ROOT = Path(__file__).parents[2]
SPECTRAL = ROOT / "node_modules" / ".bin" / "spectral"


@pytest.fixture
def document() -> Document:
    return Document(openapi.document())


def test_the_files_are_current() -> None:
    for name, text in documents().items():
        assert (ROOT / "docs" / name).read_text("utf-8") == text, f"docs/{name} is old: run `make openapi`"


def test_writing_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert (tmp_path / "openapi.json").read_text("utf-8") == (ROOT / "docs" / "openapi.json").read_text(
        "utf-8"
    )
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err


async def test_the_served_document_is_this_one(deployment: "Deployment", document: Document) -> None:
    assert (await deployment.http.get("/openapi.json")).json() == document.document


async def test_the_page_loads_nothing_from_elsewhere(deployment: "Deployment") -> None:
    """Some networks are closed, and a script of somebody else could do whatever this page can."""
    page = await deployment.http.get("/docs")
    loaded = dict(re.findall(r'(?:src|href)="([^"]*\.(\w+))"', page.text))
    assert set(loaded.values()) == {"js", "css", "png"}
    assert "//" not in "".join(re.findall(r"(?:src|href|url)[=:] *[\"'][^\"']*", page.text))
    for path in (*loaded, "/openapi.json"):
        answer = await deployment.http.get(path)
        assert (answer.status_code, len(answer.content) > 100) == (200, True), path
    assert (await deployment.http.get("/docs/other.js")).status_code == 404


async def test_the_page_runs_no_other_script_and_stands_in_no_frame(deployment: "Deployment") -> None:
    page = await deployment.http.get("/docs")
    rules = dict(rule.strip().split(" ", 1) for rule in page.headers["content-security-policy"].split(";"))
    assert rules["default-src"] == "'none'" and rules["script-src"] == rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert re.findall(r"<script(?! src=)|\son\w+=", page.text) == []


def test_routes_and_document_agree_both_ways(document: Document) -> None:
    routed = {
        (method, documented_path(route.path), route.operation_id)
        for route in ROUTES
        for method in route.methods
        if method != "HEAD"  # the same as GET, without the body
    }
    described = {(method, path, each["operationId"]) for method, path, each in document.operations()}
    assert described == routed
    assert {name for _, _, name in described} == set(OPERATIONS), "words about what is not served"


async def test_every_operation_is_really_served(deployment: "Deployment", document: Document) -> None:
    for method, path, operation in document.operations():
        response = await deployment.http.request(method, _filled(path), content=b"!")
        answered = response.json() if "json" in response.headers["content-type"] else {}
        assert response.status_code != 405, operation["operationId"]
        assert "leads nowhere" not in answered.get("detail", ""), operation["operationId"]


class AskingGate:
    """Lets nobody in, and keeps what was asked for."""

    def __init__(self) -> None:
        self.asked: list[Role] = []

    async def identify(self, request: Request) -> Principal | Refused:
        return Refused(Code.FORBIDDEN, "nobody is let in")

    async def admit(self, request: Request, role: Role) -> Principal | Refused:
        self.asked.append(role)
        return Refused(Code.FORBIDDEN, "nobody is let in")


async def test_the_gate_is_asked_for_the_role_that_is_documented(
    deployment: "Deployment", document: Document
) -> None:
    gate = AskingGate()
    transport = httpx2.ASGITransport(
        make_app(msgspec.structs.replace(deployment.lucius.deployment, gate=gate))
    )
    async with httpx2.AsyncClient(transport=transport, base_url="http://house") as client:
        for method, path, operation in document.operations():
            gate.asked.clear()
            response = await client.request(method, _filled(path), content=b"{}")
            name = operation["operationId"]
            if operation["security"] == []:
                assert response.status_code in (200, 503), name
            elif operation["security"] == [{"callbackToken": []}]:
                assert (response.status_code, gate.asked) == (401, []), name
            else:
                assert operation["security"] == [{"apiKey": []}, {"oidc": []}]
                assert (response.status_code, gate.asked) == (403, [operation["x-role"]]), name


def test_every_code_is_announced_somewhere_and_nothing_else(document: Document) -> None:
    announced: set[str] = set()
    for _, _, operation in document.operations():
        codes = document.codes(operation)
        for status, named in codes.items():
            if status != "default":
                assert {STATUS[Code(code)][0] for code in named} == {int(status)}
        assert codes.keys() >= {"500", "default"}
        if operation["security"]:
            assert codes.keys() >= {"401", "503"}, operation["operationId"]
        announced |= set().union(*codes.values())
    assert announced == {code.value for code in STATUS if code not in BETWEEN_PROCESSES}


def test_shared_refusals_are_those_of_each_operation(document: Document) -> None:
    for _, _, operation in document.operations():
        _, said = OPERATIONS[operation["operationId"]]
        named = set().union(*document.codes(operation).values())
        assert named >= {code.value for code in said.refusals}, operation["operationId"]


def test_waiting_is_announced_where_it_helps(document: Document) -> None:
    for _, _, operation in document.operations():
        for status, response in document.responses(operation):
            wanted = status in ("429", "503") and "application/problem+json" in response["content"]
            assert ("Retry-After" in response.get("headers", {})) == wanted
            assert ("WWW-Authenticate" in response.get("headers", {})) == (status == "401")


def test_every_example_fits_its_schema(document: Document) -> None:
    seen = 0
    for content in _contents(document.document):
        for name, example in content["examples"].items():
            value = document.resolve(example)["value"]
            assert document.faults(content["schema"], value) == [], name
            seen += 1
    assert seen > 2 * len(STATUS)


def test_every_schema_with_examples_shows_what_the_parser_takes() -> None:
    assert not isinstance(parse_envelope(EXAMPLES["Envelope"]), Refused)


def test_operations_read_well(document: Document) -> None:
    names = [operation["operationId"] for _, _, operation in document.operations()]
    assert len(names) == len(set(names)) > 25
    tags = {tag["name"]: tag["description"] for tag in document.document["tags"]}
    for _, path, operation in document.operations():
        name = operation["operationId"]
        assert re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name)
        assert set(operation["tags"]) <= tags.keys()
        assert operation["summary"] and operation["description"].endswith("."), name
        assert operation.get("deprecated", False) == (path == "/v1/commands")


def test_links_lead_on(document: Document) -> None:
    names = {operation["operationId"] for _, _, operation in document.operations()}
    submit = document.document["paths"]["/v1/orchestrate"]["post"]["responses"]["202"]
    assert submit["links"].keys() >= {"getJob", "getEvents", "cancelJob", "explainJob"}
    assert submit["headers"].keys() >= {"Location", "Idempotent-Replayed"}
    for link in document.document["components"]["links"].values():
        assert link["operationId"] in names
        assert link["parameters"] == {"jobId": "$response.body#/jobId"}


def test_a_client_can_be_typed_from_it(document: Document) -> None:
    """What a generator needs: a type for every parameter, body and success; names instead of copies."""
    openapi_spec_validator.validate(document.document)
    for _, path, operation in document.operations():
        name = operation["operationId"]
        parameters = [document.resolve(each) for each in operation.get("parameters", [])]
        for parameter in parameters:
            assert "type" in document.resolve(parameter["schema"]), (name, parameter["name"])
            assert parameter["description"]
        in_path = {each["name"] for each in parameters if each["in"] == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", path)), name
        assert len({(each["in"], each["name"]) for each in parameters}) == len(parameters), name
        for content in operation.get("requestBody", {}).get("content", {}).values():
            assert content["schema"].keys() == {"$ref"}, name
        good = [each for status, each in document.responses(operation) if status[0] == "2"]
        typed = [content["schema"] for each in good for content in each.get("content", {}).values()]
        assert typed and all(schema.keys() == {"$ref"} for schema in typed), name


def test_every_object_says_what_it_holds(document: Document) -> None:
    for name, schema in document.document["components"]["schemas"].items():
        assert schema.get("description"), name
        assert {"type", "oneOf", "allOf"} & schema.keys(), name
        assert set(schema.get("required", ())) <= set(schema.get("properties", schema.get("required", ()))), (
            name
        )


def test_keys_headers_and_traces_are_parameters(document: Document) -> None:
    def names(path: str) -> set[str]:
        operation = document.document["paths"][path]["post"]
        return {document.resolve(each)["name"] for each in operation["parameters"]}

    assert names("/v1/orchestrate") == {"Idempotency-Key", "traceparent"}
    for verb in ("rerun", "adopt"):
        assert names(f"/v1/jobs/{{jobId}}:{verb}") == {"jobId", "Idempotency-Key"}
    assert names("/v1/admin/dlq/{jobId}:redrive") == {"jobId", "Idempotency-Key"}


async def test_query_parameters_are_read_as_documented(deployment: "Deployment", document: Document) -> None:
    tried = set()
    for _, path, operation in document.operations():
        for parameter in map(document.resolve, operation.get("parameters", [])):
            schema = document.resolve(parameter["schema"])
            if parameter["in"] != "query" or schema == {"type": "string"} or parameter["name"] == "q":
                continue
            response = await deployment.http.get(_filled(path), params={parameter["name"]: "x"})
            assert response.status_code == 422, (operation["operationId"], parameter["name"])
            assert [each["pointer"] for each in response.json()["errors"]] == [f"?{parameter['name']}"]
            tried.add(parameter["name"])
    times = {f"{what}_{side}" for what in ("created", "failed") for side in ("after", "before")}
    assert tried == {
        "wait",
        "after",
        "limit",
        "state",
        "sort",
        "times",
        "window",
        "page",
        "from",
        "to",
        *times,
    }


async def test_the_webhook_is_the_one_that_is_described(deployment: "Deployment", document: Document) -> None:
    job_id = await deployment.submit()
    await deployment.finish(job_id, "ocr", output_ref={"uri": "s3://out/x"})
    loaded = await deployment.lucius.deployment.ledger.load(job_id, fresh=True)
    assert loaded is not None
    sent = msgspec.json.decode(webhook_body(loaded.record))
    described = document.document["webhooks"]["jobCompleted"]["post"]["requestBody"]["content"]
    assert document.faults(described["application/json"]["schema"], sent) == []
    ended = document.document["components"]["schemas"]
    assert set(ended["EndedJob"]["properties"]) == set(sent["data"])
    assert set(ended["EndedStep"]["properties"]) == set(sent["data"]["steps"][0])


def test_spectral_finds_only_what_is_wrong(tmp_path: Path) -> None:
    """The third file shows that the linter looks: one that is fed the wrong way finds nothing either."""
    assert SPECTRAL.exists(), "the linter is not there: run `make install-dev`"
    broken = tmp_path / "openapi.json"
    text = (ROOT / "docs" / "openapi.json").read_text("utf-8")
    broken.write_text(text.replace('"operationId": "getSteps"', '"operationId": "getJob"'), encoding="utf-8")
    command = [str(SPECTRAL), "lint", "--ruleset", ".spectral.yaml", "--format", "json", "--quiet"]
    run = subprocess.run(
        [*command, "docs/openapi.json", "docs/asyncapi.json", "docs/lifebook/openapi.json", str(broken)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = {(each["source"], each["code"]) for each in json.loads(run.stdout)}
    assert found == {(str(broken), "operation-operationId-unique")}, run.stdout + run.stderr


def _filled(path: str) -> str:
    return re.sub(r"\{\w+\}", "job_none", path)


def _contents(value: Any) -> "list[Doc]":
    """Every media type of the document that has examples."""
    if isinstance(value, list):
        return [each for item in value for each in _contents(item)]
    if not isinstance(value, dict):
        return []
    found = [value] if "schema" in value and "examples" in value else []
    return found + [each for item in value.values() for each in _contents(item)]
