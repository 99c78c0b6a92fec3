"""The OpenAPI document as a reader that holds calls and answers against it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema_rs

Doc = dict[str, Any]

METHODS = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace"})
# Of the server and the protocol, not of the contract.
PLAIN_HEADERS = frozenset(
    {
        "content-type",
        "content-length",
        "cache-control",
        "vary",
        "x-accel-buffering",
        # What keeps a browser from doing more with an answer than showing it.
        "content-disposition",
        "content-security-policy",
        "cross-origin-resource-policy",
        "x-content-type-options",
    }
)


class Document:
    def __init__(self, document: Doc) -> None:
        self.document = document
        self._validators: dict[str, jsonschema_rs.Validator] = {}
        self._paths = [(_pattern(path), methods) for path, methods in document["paths"].items()]

    def operations(self) -> Iterator[tuple[str, str, Doc]]:
        """Method, path and operation."""
        for path, methods in self.document["paths"].items():
            for method in sorted(METHODS & methods.keys()):
                yield method.upper(), path, methods[method]

    def resolve(self, value: Doc) -> Doc:
        while "$ref" in value:
            found: Any = self.document
            for part in value["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            value = found
        return value

    def faults(self, schema: Doc, value: Any) -> list[str]:
        """What the schema has against the value."""
        key = json.dumps(schema)
        if key not in self._validators:
            whole = {**schema, "components": self.document["components"]}
            self._validators[key] = jsonschema_rs.validator_for(whole, validate_formats=True, offline=True)
        errors = self._validators[key].iter_errors(value)
        return [f"{error.instance_path}: {error.message}" for error in errors]

    def responses(self, operation: Doc) -> Iterator[tuple[str, Doc]]:
        for status, response in operation["responses"].items():
            yield status, self.resolve(response)

    def codes(self, operation: Doc) -> dict[str, set[str]]:
        """The codes that the operation may refuse with, by status."""
        return {
            status: set(response["content"]["application/problem+json"]["examples"])
            for status, response in self.responses(operation)
            if "application/problem+json" in response.get("content", {})
        }

    def find(self, method: str, path: str) -> Doc | None:
        for pattern, methods in self._paths:
            if pattern.fullmatch(path) and method.lower() in methods:
                found: Doc = methods[method.lower()]
                return found
        return None

    def check(self, response: httpx2.Response) -> str:
        """The answer is one that the document announces; returns the id of the operation that gave it."""
        request = response.request
        operation = self.find(request.method, request.url.path)
        assert operation is not None, f"{request.method} {request.url.path} is not in the document"
        said = f"{operation['operationId']} answered {response.status_code}: {response.text[:400]}"
        announced = dict(self.responses(operation)).get(str(response.status_code))
        assert announced is not None, said
        unknown = set(response.headers) - PLAIN_HEADERS - {name.lower() for name in announced["headers"]}
        assert not unknown, f"{said} with {unknown}"
        if "content" not in announced:
            assert response.content == b"", said
            return str(operation["operationId"])
        media = response.headers["content-type"].partition(";")[0]
        content = announced["content"].get(media)
        assert content is not None, f"{said} as {media}"
        value: Any = response.json() if media.endswith("json") else response.text
        assert self.faults(content["schema"], value) == [], said
        if media == "application/problem+json":
            assert value["code"] in content["examples"], said
        return str(operation["operationId"])


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{\w+\\\}", "[^/:]+", re.escape(path)))
