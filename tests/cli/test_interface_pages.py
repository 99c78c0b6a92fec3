"""The pages about the interfaces tell all that their descriptions hold, and their links lead somewhere."""

import re
from typing import Any

import pytest

from lucius.cli.documents import documents

PAGES = {
    name: text
    for name, text in documents().items()
    if name in ("reference/http-api.md", "reference/messages.md")
}


def slugs(text: str) -> list[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_headings_are_told_apart_and_links_within_a_page_lead_to_one(name: str) -> None:
    found = slugs(PAGES[name])
    assert len(found) == len(set(found)) > 10
    assert set(re.findall(r"\(#([^)]*)\)", PAGES[name])) <= set(found)


def test_every_call_every_document_and_every_code_is_on_the_page() -> None:
    from lucius.api.openapi import document

    page, described = PAGES["reference/http-api.md"], document()
    for path, item in described["paths"].items():
        for method in ("get", "post", "put", "delete"):
            assert (f"\n### {method.upper()} {path}\n" in page) is (method in item)
    schemas: dict[str, Any] = described["components"]["schemas"]
    for name, schema in schemas.items():
        section = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        for member in schema.get("properties", ()):
            assert f"\n| `{member}`" in section, f"{name}.{member}"
    told = page.partition("\n## Refusals\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([A-Z_]+)`", told, re.MULTILINE)) == set(schemas["ProblemCode"]["enum"])


def test_both_directions_of_a_lane_and_each_message_are_on_the_page() -> None:
    page = PAGES["reference/messages.md"]
    assert "| `global-bus-p0` | Lucius | [Directive](#directive) |" in page
    assert (
        "| `global-bus-replies-p0` | a service | [Ack](#ack), [Progress](#progress), [Result](#result) |"
        in page
    )
    assert "`attempt_no` | integer | 1 or more." in page
