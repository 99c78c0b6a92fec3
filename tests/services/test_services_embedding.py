"""The sentence model, run for real: its pieces of words, its vectors, and what they are good for."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.services_setup import EMBEDDING, SIS, Bench

from lucius.sdk import Final
from lucius.services import minilm
from lucius.services.embedding import make_embedding
from lucius.services.wordpiece import pieces_of
from lucius.services.work_process import WorkProcesses

MODEL = make_embedding(model="minilm")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path.resolve())


def nearness(one: list[float], other: list[float]) -> float:
    return sum(left * right for left, right in zip(one, other, strict=True))


def test_vectors_are_those_that_the_model_is_known_for() -> None:
    vector = minilm.load().vector_of("This is an example sentence")
    assert vector[:4] == pytest.approx([0.0676569, 0.0634959, 0.0487131, 0.0793049], abs=2e-6)
    assert len(vector) == 384
    assert nearness(vector, vector) == pytest.approx(1, abs=1e-4)


def test_meaning_counts_more_than_words() -> None:
    model = minilm.load()
    asked = model.vector_of("Who looked after the lamp?")
    kept = model.vector_of("A guardian tended the light of the tower.")
    other = model.vector_of("Who looked after the stock market?")
    assert nearness(asked, kept) > nearness(asked, other)


def test_texts_without_words_and_texts_longer_than_a_passage() -> None:
    model = minilm.load()
    assert model.vector_of(" \n ") == [0.0] * 384
    long = "The lighthouse stands at the point. " * 40
    bread = model.vector_of("Bread and butter.")
    without, with_bread = (model.vector_of(text) for text in (long, long + "Bread and butter. " * 60))
    # What stands behind the first passage counts too.
    assert nearness(with_bread, bread) > nearness(without, bread) + 0.1


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("unaffable", ["una", "##ffa", "##ble"]),
        ("Grüße, KÖNIG!", ["gr", "##u", "##ße", ",", "ko", "##nig", "!"]),
        ("3.5\u200b%\t中文", ["3", ".", "5", "%", "中", "文"]),
        ("x" * 101 + " a", ["[UNK]", "a"]),
        ("\U0001f4a5", ["[UNK]"]),
        ("", []),
    ],
)
def test_words_are_cut_as_the_model_learnt_them(text: str, pieces: list[str]) -> None:
    words = (minilm.model_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vocabulary = {word: place for place, word in enumerate(words)}
    assert [words[piece] for piece in pieces_of(text, vocabulary)] == pieces


async def test_the_model_serves_embedding_and_sis(bench: Bench) -> None:
    (bench.folder / "input").write_text(
        "A guardian tended the light every night.\n\nBread is sold at the harbour.\n\nThe bell is of bronze."
    )
    made = await bench.run(MODEL, "EMBEDDING", payload={"chunk_size": 50})
    vectors = json.loads((bench.folder / "output").read_bytes())
    assert (vectors["model"], vectors["dimensions"], len(vectors["chunks"])) == ("minilm", 384, 3)
    assert [note for _, note in bench.reported] == ["chunk 3 of 3"]
    upstream = [{"stepId": "s", "step_type": "EMBEDDING", "result_ref": made}]
    # Not a word of the answer is in the question.
    await bench.run(SIS, "SIS", upstream=upstream, payload={"prompt": "Who was the lamp keeper?", "top_k": 1})
    (answer,) = bench.answers()
    assert answer["sources"][0]["chunk"] == 0
    assert answer["answer"] == "A guardian tended the light every night."


@pytest.mark.parametrize(("dimensions", "code"), [(384, None), (64, "INVALID_PAYLOAD")])
async def test_the_model_has_a_length_of_its_own(bench: Bench, dimensions: int, code: str | None) -> None:
    (bench.folder / "input").write_text("A text.")
    failed: str | None = None
    try:
        await bench.run(MODEL, "EMBEDDING", payload={"dimensions": dimensions})
    except Final as failure:
        failed = failure.code
    assert failed == code


async def test_hashing_has_the_length_that_is_asked_for(bench: Bench) -> None:
    (bench.folder / "input").write_text("A text.")
    lengths = []
    for attempt_no, payload in enumerate(({}, {"dimensions": 8}, {"dimensions": 4096}), start=1):
        await bench.run(EMBEDDING, "EMBEDDING", payload=payload, attempt_no=attempt_no)
        vectors: dict[str, Any] = json.loads((bench.folder / "output").read_bytes())
        lengths.append((vectors["model"], vectors["dimensions"], len(vectors["chunks"][0]["vector"])))
    assert lengths == [("hashing", 64, 64), ("hashing", 8, 8), ("hashing", 4096, 4096)]


async def test_weights_that_are_not_the_pinned_ones_are_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "packages" / minilm.PACKAGE
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "model" / "model.safetensors").write_bytes(b"something else")
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=os.pathsep)
    processes = WorkProcesses()
    (bench.folder / "input").write_text("A text.")
    with pytest.raises(Final) as failure:
        await bench.run(make_embedding(model="minilm", processes=processes), "EMBEDDING")
    processes.close()
    assert failure.value.code == "MODEL_UNAVAILABLE"
    assert "model.safetensors" in failure.value.message
