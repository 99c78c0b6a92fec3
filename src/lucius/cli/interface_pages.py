"""The descriptions of the interfaces as pages for people.

In: the OpenAPI and the AsyncAPI document. Out: Markdown, the same for the same document.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

Node = Mapping[str, Any]

METHODS: Final = ("get", "post", "put", "delete")
LANE: Final = "0"  # the channels of one lane stand for all
_code = re.compile(r"`([A-Z][A-Z_]+)`: ([^`]+?\.)(?= `|$)")
BOUNDS: Final = {
    "format": "format {}",
    "minLength": "{} characters or more",
    "maxLength": "at most {} characters",
    "minimum": "{} or more",
    "maximum": "at most {}",
    "minItems": "{} entries or more",
    "maxItems": "at most {} entries",
}


def http_page(document: Node) -> str:
    """`docs/reference/http-api.md`."""
    components = document["components"]
    lines = [
        "# The HTTP API",
        "",
        "Written from [openapi.json](../openapi.json), which a running Lucius serves at `/openapi.json` and "
        "shows at `/docs`. [Who may call what](authorization-matrix.md) has the roles side by side.",
        "",
        document["info"]["description"],
    ]
    by_tag = _operations(document)
    for tag in document["tags"]:
        lines += ["", f"## {_capital(tag['name'])}", "", tag["description"], ""]
        lines += ["| call | what it does | role |", "|---|---|---|"]
        for name, operation in by_tag.get(tag["name"], []):
            lines.append(_row(f"[`{name}`](#{_slug(name)})", operation["summary"], _role(operation)))
        for name, operation in by_tag.get(tag["name"], []):
            lines += _operation_lines(name, operation, components)
    lines += ["", "## Refusals", "", "Problem documents of RFC 9457 ([Problem](#problem)).", ""]
    lines += [*_refusal_lines(components), "", "## Documents", "", *_schema_lines(components["schemas"])]
    return "\n".join(lines) + "\n"


def messages_page(document: Node) -> str:
    """`docs/reference/messages.md`."""
    lines = [
        "# Messages over a bus",
        "",
        "Written from [asyncapi.json](../asyncapi.json). Over HTTP a worker leases and sends the same "
        "documents ([the contract of a worker](../guides/platform-services.md#the-contract)).",
        "",
        document["info"]["description"],
        "",
        "| topic of lane 0 | who sends | messages | what |",
        "|---|---|---|---|",
    ]
    for operation in document["operations"].values():
        channel = document["channels"][_name_in(operation["channel"])]
        if not _name_in(operation["channel"]).endswith(("directives" + LANE, "replies" + LANE)):
            continue
        sender = "Lucius" if operation["action"] == "send" else "a service"
        kinds = ", ".join(f"[{name}](#{_slug(name)})" for name in channel["messages"])
        lines.append(_row(f"`{channel['address']}`", sender, kinds, operation["description"]))
    lines += ["", "Lanes 1 to 15 have topics of their own, whose names end in the lane's number.", ""]
    lines += ["## Documents", "", *_schema_lines(document["components"]["schemas"])]
    return "\n".join(lines) + "\n"


def _operations(document: Node) -> dict[str, list[tuple[str, Node]]]:
    found: dict[str, list[tuple[str, Node]]] = {}
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                found.setdefault(item[method]["tags"][0], []).append(
                    (f"{method.upper()} {path}", item[method])
                )
    return found


def _operation_lines(name: str, operation: Node, components: Node) -> Iterator[str]:
    yield from ("", f"### {name}", "", f"{operation['summary']}. {operation.get('description', '')}".strip())
    given = [_resolved(each, components) for each in operation.get("parameters", ())]
    if given:
        yield from ("", "| parameter | where | type | what |", "|---|---|---|---|")
        for each in given:
            need = " (required)" if each.get("required") else ""
            yield _row(
                f"`{each['name']}`", each["in"] + need, *_told(each["schema"], each.get("description"))
            )
    if body := operation.get("requestBody"):
        body = _resolved(body, components)
        yield from ("", f"Body: {_content(body)}. {body.get('description', '')}".strip())
    yield from ("", "| answer | document | when |", "|---|---|---|")
    refused: list[str] = []
    for status, answer in operation["responses"].items():
        found = _resolved(answer, components)
        if codes := _codes(found):
            refused += [f"{status} `{code}`" for code in codes] if status != "default" else []
        else:
            yield _row(status, _content(found), found["description"])
    if refused:
        yield from ("", f"[Refused](#refusals) with {', '.join(refused)}.")


def _refusal_lines(components: Node) -> Iterator[str]:
    """What each code says, once."""
    yield from ("| code | what it says |", "|---|---|")
    told: dict[str, str] = {}
    for answer in components["responses"].values():
        told |= _codes(answer)
    for code in sorted(told):
        yield _row(f"`{code}`", told[code])


def _codes(answer: Node) -> dict[str, str]:
    """The codes of a refusal, each with its words."""
    if "application/problem+json" not in (answer.get("content") or {}):
        return {}
    return {code: _capital(words) for code, words in _code.findall(answer["description"])}


def _schema_lines(schemas: Node) -> Iterator[str]:
    for name in sorted(schemas):
        schema = schemas[name]
        yield from (f"### {name}", "")
        if schema.get("description"):
            yield from (schema["description"], "")
        if members := schema.get("properties"):
            required = set(schema.get("required", ()))
            yield from ("| member | type | what |", "|---|---|---|")
            for member, described in members.items():
                need = "" if member in required else " (may be left out)"
                yield _row(f"`{member}`{need}", *_told(described, described.get("description")))
        else:
            yield _type(schema) + "."
        yield ""


def _told(schema: Node, description: str | None) -> tuple[str, str]:
    bounds = [words.format(schema[name]) for name, words in BOUNDS.items() if name in schema]
    bounds = ["not empty" if words == BOUNDS["minLength"].format(1) else words for words in bounds]
    return _type(schema), " ".join(part for part in (description, _sentence(", ".join(bounds))) if part)


def _type(schema: Node) -> str:
    """What a value is, in a few words."""
    if "$ref" in schema:
        name = _name_in(schema)
        return f"[{name}](#{_slug(name)})"
    if "enum" in schema:
        return ", ".join(
            f"`{json.dumps(each)}`" if not isinstance(each, str) else f"`{each}`" for each in schema["enum"]
        )
    if "const" in schema:
        return f"`{schema['const']}`"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[several]))
    kinds = schema.get("type", "any value")
    words = [kinds] if isinstance(kinds, str) else list(kinds)
    if "array" in words and "items" in schema:
        words[words.index("array")] = f"list of {_type(schema['items'])}"
    return " or ".join(words)


def _content(holder: Node) -> str:
    kinds = holder.get("content") or {}
    told = [f"`{kind}`" if "schema" not in each else _type(each["schema"]) for kind, each in kinds.items()]
    return ", ".join(dict.fromkeys(told)) or "none"


def _role(operation: Node) -> str:
    role = operation.get("x-role")
    return f"`{role}`" if role else "-"


def _resolved(node: Node, components: Node) -> Node:
    if "$ref" not in node:
        return node
    _, _, kind, name = node["$ref"].split("/")
    found: Node = components[kind][name]
    return found


def _name_in(node: Node) -> str:
    return str(node["$ref"]).rpartition("/")[2]


def _slug(heading: str) -> str:
    """As the generator of the site and forges make it."""
    kept = "".join(char for char in heading.lower() if char.isalnum() or char in "-_ ")
    return kept.replace(" ", "-")


def _sentence(text: str) -> str:
    return f"{_capital(text)}." if text else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _row(*cells: object) -> str:
    return "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |"
