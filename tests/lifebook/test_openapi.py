"""The document of the API of runs: well formed, complete, and what is served."""

import openapi_spec_validator
from starlette.routing import Route
from tests.lifebook.api_setup import DOCUMENT, Deployment

from lucius.lifebook import openapi
from lucius.lifebook.job import FIELDS, SWEEP_SHARD
from lucius.lifebook.states import Status, Trigger


def test_the_document_is_well_formed() -> None:
    openapi_spec_validator.validate(openapi.document())


def test_every_example_of_a_body_fits_its_schema() -> None:
    bodies = [
        operation["requestBody"]["content"]["application/json"]
        for _, _, operation in DOCUMENT.operations()
        if "requestBody" in operation
    ]
    assert len(bodies) == 2
    for body in bodies:
        assert DOCUMENT.faults(body["schema"], body["example"]) == []
        assert DOCUMENT.faults(body["schema"], {**body["example"], "colour": "blue"}) != []


def test_the_item_the_statuses_and_the_triggers_are_those_of_the_declarations() -> None:
    schemas = DOCUMENT.document["components"]["schemas"]
    assert list(schemas["Run"]["properties"]) == [each.name for each in FIELDS if each.name != SWEEP_SHARD]
    assert schemas["Status"]["enum"] == [str(each) for each in Status]
    assert schemas["TriggerType"]["enum"] == [str(each) for each in Trigger]


async def test_the_app_serves_these_routes_and_this_document() -> None:
    deployment = Deployment()
    served = {
        (method, route.path)
        for route in deployment.app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    described = {(method, path) for method, path, _ in DOCUMENT.operations()}
    assert served == described | {("GET", openapi.DOCUMENT_PATH)}
    answer = await deployment.client.get(openapi.DOCUMENT_PATH)
    assert answer.json() == DOCUMENT.document
    await deployment.client.aclose()


async def test_a_call_that_needs_a_role_says_so() -> None:
    for _, _, operation in DOCUMENT.operations():
        asks = operation["security"] == [{"apiKey": []}]
        assert asks == ("Needs the role" in operation["description"])
        assert asks == ("403" in operation["responses"])
