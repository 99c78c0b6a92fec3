"""SIS without a language model: prompts and sets of them, shapes of answers, vectors of other makers."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.services_setup import SIS, Bench

from lucius.sdk import Final
from lucius.services.prompts import prompts_in, shape_of

INVOICE = (
    "Invoice number 4711 of the Harbour Bakery.\n\nIt was written on 3 May 2024.\n\n"
    "Total amount 230.50 euro.\n\nPaid by bank transfer.\n\nThank you for buying our bread."
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path.resolve())
    (made.folder / "input").write_text(INVOICE)
    return made


async def asked(bench: Bench, **payload: Any) -> list[dict[str, Any]]:
    await bench.run(SIS, "SIS", payload=payload)
    return bench.answers()


async def test_a_prompt_set_is_answered_in_order_and_by_name(bench: Bench) -> None:
    first, second = await asked(
        bench, prompt="Which number?", prompt_set=[{"name": "paid", "prompt": "How was it paid?"}]
    )
    assert "name" not in first
    assert "4711" in first["answer"]
    assert (second["name"], second["prompt"]) == ("paid", "How was it paid?")
    assert "Paid by bank transfer." in second["answer"]
    assert json.loads((bench.folder / "output").read_bytes())["model"] == "extractive"


async def test_a_shape_is_filled_from_the_document(bench: Bench) -> None:
    schema = {
        "type": "object",
        "properties": {
            "invoice_number": {"type": "integer"},
            "totalAmount": {"type": "number"},
            "payment": {"enum": ["cash", "bank transfer"]},
            "written": {"type": "string", "description": "the date"},
            "signed": {"type": ["boolean", "null"]},
        },
        "required": ["invoice_number", "totalAmount", "payment", "written", "signed"],
        "additionalProperties": False,
    }
    (answer,) = await asked(bench, prompt="What does the invoice say?", output_schema=schema, top_k=10)
    assert answer["data"] == {
        "invoice_number": 4711,
        "totalAmount": 230.5,
        "payment": "bank transfer",
        "written": "It was written on 3 May 2024.",
        "signed": None,
    }
    assert json.loads(answer["answer"]) == answer["data"]


async def test_a_prompt_of_a_set_may_have_a_shape_of_its_own(bench: Bench) -> None:
    own = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    one, other = await asked(
        bench,
        prompt_set=["How was it paid?", {"prompt": "What about bread?", "output_schema": own}],
        output_schema={"type": "string"},
    )
    assert one["data"] == "Paid by bank transfer."
    assert "Thank you for buying our bread." in other["data"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "boolean"},
        {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
        {"type": "string", "maxLength": 3},
        {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "boolean"}}},
    ],
)
async def test_what_does_not_fit_the_shape_is_a_final_failure(bench: Bench, schema: dict[str, Any]) -> None:
    with pytest.raises(Final) as failure:
        await asked(bench, prompt="How was it paid?", output_schema=schema)
    assert failure.value.code == "OUTPUT_SCHEMA_UNMET"
    assert not (bench.folder / "output").exists()


@pytest.mark.parametrize(
    "schema",
    ["string", {"type": "zork"}, {"$ref": "https://example.com/schema.json"}, {"pattern": "("}, [1]],
)
def test_a_shape_that_cannot_be_used_is_refused(schema: object) -> None:
    with pytest.raises(Final) as failure:
        shape_of(schema)
    assert failure.value.code == "INVALID_PAYLOAD"


@pytest.mark.parametrize(
    "payload",
    [
        {"prompt_set": [{"name": "x"}]},
        {"prompt_set": [{"prompt": "Why?", "name": 7}]},
        {"prompt_set": [{"prompt": "Why?", "output_schema": {"type": "zork"}}]},
        {"prompt": "x" * 4001},
    ],
)
def test_prompts_that_make_no_sense_are_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(Final) as failure:
        prompts_in(payload)
    assert failure.value.code == "INVALID_PAYLOAD"


async def test_any_other_json_is_read_as_text_however_deep(bench: Bench) -> None:
    (bench.folder / "input").write_text('{"note": "Milk comes at five.", "x": ' + "[" * 5_000)
    (answer,) = await asked(bench, prompt="When does the milk come?")
    assert "Milk comes at five." in answer["answer"]


async def test_numbers_too_long_to_be_numbers_are_none(bench: Bench) -> None:
    (bench.folder / "input").write_text(f"The account {'9' * 400} holds 12 euro.")
    schema = {"type": "object", "properties": {"account": {"type": "integer"}}, "required": ["account"]}
    (answer,) = await asked(bench, prompt="Which account?", output_schema=schema)
    assert answer["data"] == {"account": 12}


async def test_vectors_of_an_unknown_maker_are_searched_by_words(bench: Bench) -> None:
    texts = ["Bread is baked at four.", "Milk comes at five."]
    chunks = [{"text": text, "vector": [1.0, 0.0]} for text in texts]
    (bench.folder / "input").write_text(
        json.dumps({"model": "somebody-else", "dimensions": 2, "chunks": chunks})
    )
    (answer,) = await asked(bench, prompt="When does the milk come?", top_k=1)
    assert answer["answer"] == "Milk comes at five."
    assert answer["sources"][0]["chunk"] == 1
