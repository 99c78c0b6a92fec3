"""Lanes are pinned for ever: the vectors must hold."""

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius.core.routing import (
    LANES,
    lane_of,
    normalise,
    parse_mode,
    reply_topic,
    resolve_mode,
    route,
    topic,
)
from lucius.core.states import Mode

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "routing.json").read_text("utf-8")
)


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: f"{case['tenant_id'].strip()}-{case['mode']}")
def test_vector(case: dict[str, Any]) -> None:
    mode = parse_mode(case["mode"])
    assert mode is not None
    routing = route(
        tenant_id=case["tenant_id"],
        doc_id=case["doc_id"],
        mode=mode,
        decision_source="REQUEST",
        decision_reason="MODE_IN_REQUEST",
    )
    assert routing.routing_key_used == case["routing_key_used"]
    assert crc32(routing.routing_key_used.encode()) == case["crc32"]
    assert routing.lane == case["lane"]
    assert topic(routing.lane) == case["topic"]
    assert reply_topic(routing.lane) == case["reply_topic"]
    assert routing.resolved_mode is mode


def test_request_decides_over_tenant_over_global() -> None:
    assert resolve_mode(requested=Mode.DEFAULT, tenant_mode=Mode.BURST, global_mode=Mode.BURST) == (
        Mode.DEFAULT,
        "REQUEST",
        "MODE_IN_REQUEST",
    )
    assert resolve_mode(requested=None, tenant_mode=Mode.BURST, global_mode=Mode.DEFAULT) == (
        Mode.BURST,
        "TENANT_CONFIG",
        "TENANT_DEFAULT",
    )
    assert resolve_mode(requested=None, tenant_mode=None, global_mode=Mode.BURST) == (
        Mode.BURST,
        "GLOBAL_CONFIG",
        "GLOBAL_DEFAULT",
    )


@pytest.mark.parametrize("doc_id", [None, "", "  "])
def test_burst_without_a_document_is_a_fault(doc_id: str | None) -> None:
    with pytest.raises(ValueError, match="doc_id"):
        route(tenant_id="a", doc_id=doc_id, mode=Mode.BURST, decision_source="x", decision_reason="y")


@pytest.mark.parametrize("text", ["", "burst", "safe", "FAST", " BURST"])
def test_unknown_modes_are_not_guessed(text: str) -> None:
    assert parse_mode(text) is None


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_normalising_twice_changes_nothing_and_lanes_are_in_range(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    assert 0 <= lane_of(once) < LANES
