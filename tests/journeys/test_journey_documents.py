"""Documents through `lucius dev` with its own services: a scan becomes an answer, and trouble gets a code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller, until
from tests.support.services_setup import a_picture, as_bytes
from tests.support.webhook_receiver import Received, receiver

SERVICES = ("--services", "ocr,embedding,sis")
SCAN = ("The lighthouse at Harrow Point", "was lit in March 1871.", "", "The tower is 41 metres high.")
IMPATIENT = """
protocol_id: impatient_v1
request_types: [IMPATIENT]
steps:
  - step_type: SIS
    service: sis
    backoff: {result: [0s]}
"""

pytestmark = pytest.mark.xdist_group("heavy")


class DocumentJobs:
    """Documents in the data folder of a server, and jobs about them."""

    def __init__(self, lucius: "Lucius", caller: "Caller") -> None:
        self._folder = lucius.data / "result_store"
        self._folder.mkdir()
        self.caller = caller

    async def submit(self, document: bytes, request_type: str, **payload: Any) -> str:
        (self._folder / "input").write_bytes(document)
        return await self.caller.submit(
            request_type=request_type,
            input_ref={"uri": (self._folder / "input").as_uri()},
            output_ref={"uri": (self._folder / "output.json").as_uri()},
            payload=payload,
        )

    async def run(self, document: bytes, request_type: str, **payload: Any) -> dict[str, Any]:
        return await self.caller.job(await self.submit(document, request_type, **payload), wait=60)

    def output(self) -> dict[str, Any]:
        made: dict[str, Any] = json.loads((self._folder / "output.json").read_bytes())
        return made


async def test_a_scanned_picture_is_read_embedded_and_quoted(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    lucius = launch(*SERVICES)
    documents = DocumentJobs(lucius, caller_at(lucius))
    job = await documents.run(
        as_bytes(a_picture(*SCAN), "PNG"),
        "OCR_EMBEDDING_SIS",
        ocr={"language": "en"},
        embedding={"chunk_size": 50},
        sis={
            "prompt": "How high is the tower?",
            "prompt_set": [
                {
                    "name": "height",
                    "prompt": "How high is the tower?",
                    "output_schema": {
                        "type": "object",
                        "properties": {"tower_metres": {"type": "integer"}},
                        "required": ["tower_metres"],
                    },
                }
            ],
        },
    )
    assert (job["state"], job["error_code"]) == ("SUCCEEDED", None)
    quoted, filled = documents.output()["answers"]
    assert quoted["answer"] == "The tower is 41 metres high."
    assert (filled["name"], filled["data"]) == ("height", {"tower_metres": 41})
    made = [Path(step["result_ref"]["uri"]).parts[-3:] for step in job["steps"]]
    assert made == [
        ("ocr", "1", "output.txt"),
        ("embedding", "1", "vectors.json"),
        ("sis", "1", "result.json"),
    ]


async def test_a_scanned_picture_with_models_and_an_endpoint_that_stumbles_once(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]", tmp_path: Path
) -> None:
    (tmp_path / "protocols").mkdir()
    (tmp_path / "protocols" / "impatient.yaml").write_text(IMPATIENT)

    def answering(request: Received) -> bytes:
        said = "<html>" if len(there.received) == 1 else _quote(json.loads(request.body))
        return b"HTTP/1.1 200 Said\r\ncontent-length: %d\r\n\r\n%s" % (len(said), said.encode())

    async with receiver(answering) as there:
        lucius = launch(
            *SERVICES,
            "--protocols",
            str(tmp_path / "protocols"),
            env={
                "LUCIUS_EMBEDDING_MODEL": "minilm",
                "LUCIUS_SIS_URL": f"http://127.0.0.1:{there.port}/v1",
                "LUCIUS_SIS_MODEL": "quoting",
                "LUCIUS_SIS_API_KEY": "sk-journey",
            },
        )
        documents = DocumentJobs(lucius, caller_at(lucius))
        job = await documents.run(b"The tower is 41 metres high.", "IMPATIENT", prompt="How high?")
        assert (job["state"], job["attempts_total"]) == ("SUCCEEDED", 2)
        assert job["steps"][0]["last_error_code"] == "LLM_NONSENSE"
        scan = as_bytes(a_picture(*SCAN), "PNG")
        job = await documents.run(scan, "OCR_EMBEDDING_SIS", sis={"prompt": "When did it first shine?"})
    assert job["state"] == "SUCCEEDED"
    assert documents.output()["model"] == "quoting"
    assert "was lit in March 1871." in documents.output()["answers"][0]["answer"]
    assert "sk-journey" not in lucius.stderr


async def test_a_broken_document_fails_the_job_at_once(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    lucius = launch(*SERVICES)
    documents = DocumentJobs(lucius, caller_at(lucius))
    job = await documents.run(
        b"%PDF-1.7 and then nothing", "OCR_EMBEDDING_SIS", sis={"prompt": "When was the lamp lit?"}
    )
    assert (job["state"], job["error_code"], job["attempts_total"]) == (
        "FAILED_FINAL",
        "UNREADABLE_DOCUMENT",
        1,
    )


async def test_a_cancelled_reading_stops_between_pages(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    lucius = launch(*SERVICES)
    documents = DocumentJobs(lucius, caller_at(lucius))
    pages = [a_picture(*SCAN)] * 60
    scan = as_bytes(pages[0], "PDF", save_all=True, append_images=pages[1:], resolution=150)
    job_id = await documents.submit(scan, "OCR")

    async def begun() -> bool:
        return bool((await documents.caller.job(job_id))["steps"][0]["progress"])

    await until(begun)
    await documents.caller.control(job_id, "cancel")
    job = await documents.caller.reach(job_id, "CANCELLED")
    assert (job["steps"][0]["state"], job["steps"][0]["last_error_code"]) == ("CANCELLED", "STOPPED")


def test_a_model_that_cannot_be_used_stops_the_start(launch: "Launch") -> None:
    lucius = launch(*SERVICES, env={"LUCIUS_SIS_URL": "models"}, start=False)
    lucius.begin()
    assert lucius.ended() == 2
    assert "LUCIUS_SIS_URL must be an http or https address" in lucius.stderr


def _quote(asked: dict[str, Any]) -> str:
    """A completion that repeats what it was given, as far as it was about the document."""
    excerpts = asked["messages"][1]["content"].partition("Question:")[0]
    return json.dumps(
        {"choices": [{"message": {"role": "assistant", "content": " ".join(excerpts.split())}}]}
    )
