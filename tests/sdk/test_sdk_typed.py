"""Payloads with a type, and exceptions with a meaning."""

import subprocess
import sys
from typing import Any, Literal

import msgspec
import pydantic
import pytest
from tests.sdk.test_sdk_runner import MemoryTransport, directive, running

from lucius.sdk import Final, Retryable, Service, Task, service

Message = dict[str, Any]
SECRET = "hunter2"


class Page(msgspec.Struct):
    dpi: int
    language: str = "en"


class Sheet(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    dpi: int
    language: str = "en"
    sides: list[int] = []


SCHEMA = {
    "type": "object",
    "required": ["dpi"],
    "properties": {"dpi": {"type": "integer"}, "language": {"enum": ["en", "de"]}},
}


@service("ocr", payload=Page)
async def struct(task: Task[Page]) -> Message:
    return {"uri": f"mem://{task.payload.dpi + 1}/{task.payload.language}"}


@service("ocr", payload=Sheet)
async def model(task: Task[Sheet]) -> Message:
    return {"uri": f"mem://{task.payload.dpi + 1}/{task.payload.language}"}


@service("ocr", payload=SCHEMA)
async def schema(task: Task) -> Message:
    return {"uri": f"mem://{task.payload['dpi'] + 1}/{task.payload.get('language', 'en')}"}


async def result_of(served: Service, payload: Any = None) -> Message:
    transport = MemoryTransport(directive(payload=payload))
    async with running(transport, served.handler, service=served):
        return (await transport.results())[0]


@pytest.mark.parametrize("served", [struct, model, schema])
async def test_a_handler_reads_what_its_service_says(served: Service) -> None:
    result = await result_of(served, {"dpi": 299, "unknown": 1})
    assert result["output_ref"] == {"uri": "mem://300/en"}


@pytest.mark.parametrize("payload", [{"dpi": SECRET}, {"language": "en"}, {}, None, [1]])
@pytest.mark.parametrize("served", [struct, model, schema])
async def test_what_does_not_fit_fails_for_good_before_the_work(served: Service, payload: Any) -> None:
    result = await result_of(served, payload)
    assert (result["status"], result["error"]["code"]) == ("FAILED_FINAL", "PAYLOAD_INVALID")
    assert "dpi" in result["error"]["message"]
    assert SECRET not in str(result)


async def test_a_value_that_no_enum_has_is_not_repeated() -> None:
    class Choice(msgspec.Struct):
        dpi: Literal["low", "high"]

    @service("ocr", payload=Choice)
    async def choosing(task: Task[Choice]) -> Message:
        return {"uri": f"mem://{task.payload.dpi}"}

    result = await result_of(choosing, {"dpi": SECRET + " - at `x`\n'"})
    assert result["error"]["message"].startswith("Invalid enum value - at `")
    assert SECRET not in str(result)


async def test_the_text_names_each_member_at_fault_up_to_a_bound() -> None:
    result = await result_of(model, {"dpi": 1, "sides": ["x"] * 7})
    text: str = result["error"]["message"]
    assert text.startswith("/sides/0: Input should be a valid integer; /sides/1: ")
    assert text.endswith("(and 2 more)")


def test_what_is_neither_model_nor_schema_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="is not"):
        service("ocr", payload={"type": "nonsense"})
    with pytest.raises(TypeError):
        service("ocr", payload=lambda: None)  # type: ignore[call-overload]


def test_the_sdk_needs_no_pydantic() -> None:
    code = "import sys, lucius.sdk; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0


class Upstream(ConnectionError): ...


ERRORS = {
    OSError: Retryable("IO"),
    ConnectionError: Retryable("AWAY", "try the other door"),
    ValueError: Final("BAD_INPUT"),
}


@pytest.mark.parametrize(
    ("fault", "status", "code", "text"),
    [
        (ValueError(SECRET), "FAILED_FINAL", "BAD_INPUT", "ValueError at test_sdk_typed.py"),
        (UnicodeError(SECRET), "FAILED_FINAL", "BAD_INPUT", "UnicodeError at "),
        (TimeoutError(SECRET), "FAILED_RETRY", "IO", "TimeoutError at "),
        (Upstream(SECRET), "FAILED_RETRY", "AWAY", "try the other door"),
        (KeyError(SECRET), "FAILED_RETRY", "UNEXPECTED", "KeyError at "),
        (Final("OWN", "said"), "FAILED_FINAL", "OWN", "said"),
    ],
)
async def test_an_exception_means_what_its_nearest_class_means(
    fault: Exception, status: str, code: str, text: str
) -> None:
    @service("ocr", errors=ERRORS)
    async def served(task: Task) -> None:
        raise fault

    result = await result_of(served)
    assert (result["status"], result["error"]["code"]) == (status, code)
    assert result["error"]["message"].startswith(text)
    assert SECRET not in str(result)
