"""What a protocol says about used attempts: park or fail, and which services stand in."""

from typing import Any

import pytest

from lucius.core.model import ProtocolSpec, StepPolicy
from lucius.registry.documents import parse_protocol


def _parse(**step: Any) -> ProtocolSpec | tuple[str, ...]:
    doc = {
        "protocol_id": "read_v1",
        "request_types": ["READ"],
        "steps": [{"step_type": "READ", "service": "ocr", **step}],
    }
    return parse_protocol(doc, defaults=StepPolicy())


def test_a_step_may_name_services_that_stand_in() -> None:
    parsed = _parse(fallback=["ocr_b", "ocr_c"], on_exhausted="park")
    assert isinstance(parsed, ProtocolSpec)
    assert parsed.steps[0].fallback == ("ocr_b", "ocr_c")
    assert parsed.steps[0].policy.parks_exhausted


def test_a_step_that_says_nothing_fails() -> None:
    parsed = _parse()
    assert isinstance(parsed, ProtocolSpec)
    assert (parsed.steps[0].fallback, parsed.steps[0].policy.parks_exhausted) == ((), False)


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({"on_exhausted": "wait"}, "/steps/0/on_exhausted: must be fail or park"),
        ({"on_exhausted": True}, "/steps/0/on_exhausted: must be fail or park"),
        ({"fallback": "ocr_b"}, "/steps/0/fallback: must be a list of 1 to 4 services"),
        ({"fallback": []}, "/steps/0/fallback: must be a list of 1 to 4 services"),
        ({"fallback": ["ocr"]}, "/steps/0/fallback/0: ocr is asked before already"),
        ({"fallback": ["b", "b"]}, "/steps/0/fallback/1: b is asked before already"),
        ({"fallback": ["Ü"]}, "/steps/0/fallback/0: must be text of the form"),
    ],
)
def test_what_cannot_be_meant_is_told(step: dict[str, Any], problem: str) -> None:
    parsed = _parse(**step)
    assert isinstance(parsed, tuple)
    assert parsed[0].startswith(problem)
