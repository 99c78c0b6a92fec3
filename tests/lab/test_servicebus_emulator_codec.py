"""The emulator's AMQP values, frames and messages: what is written is read again, nonsense is refused."""

import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucius_lab.emulators.service_bus import frames
from lucius_lab.emulators.service_bus.codec import (
    DEPTH_MAX,
    AmqpReader,
    Array,
    DescribedValue,
    Int,
    Malformed,
    Opaque,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    encode,
)
from lucius_lab.emulators.service_bus.messages import (
    Message,
    Request,
    encode_message,
    parse_batch,
    parse_message,
    parse_request,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
SIMPLE: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    INT64,
    INT64.map(Timestamp),
    st.integers(0, 2**64 - 1).map(ULong),
    st.integers(0, 2**32 - 1).map(UInt),
    st.integers(0, 2**16 - 1).map(UShort),
    st.integers(0, 255).map(UByte),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.floats(allow_nan=False),
    st.text(max_size=300),
    st.text(st.characters(codec="ascii"), max_size=300).map(Symbol),
    st.binary(max_size=300),
    st.uuids(),
    st.binary(min_size=4, max_size=4).map(lambda content: Opaque(0x72, content)),
)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.text(max_size=5), inner, max_size=5),
        st.builds(DescribedValue, st.integers(0, 2**64 - 1).map(ULong), inner),
    ),
    max_leaves=20,
)


@given(VALUES)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    reader = AmqpReader(encode(value))
    again = reader.value()
    assert (again, type(again), reader.left) == (value, type(value), 0)
    assert encode(again) == encode(value)


@pytest.mark.parametrize("items", [[Timestamp(1), Timestamp(2)], [1, 2, 3], [UUID(int=5)], [], [7] * 100])
def test_an_array_comes_back(items: list[Any]) -> None:
    assert AmqpReader(encode(Array(items))).value() == Array(items)


@given(st.binary(max_size=200))
def test_nonsense_is_refused_in_one_way(data: bytes) -> None:
    sections = [encode(DescribedValue(ULong(code), data)) for code in (0x72, 0x73, 0x74, 0x75, 0x77)]
    for text in (data, *sections, b"".join(sections)):
        for read in (parse_message, parse_batch, parse_request):
            try:
                found = read(text)
            except Malformed:
                continue
            assert isinstance(found, Message | Request | list)


@given(st.binary(min_size=4, max_size=200))
def test_a_broken_frame_is_refused_in_one_way(data: bytes) -> None:
    try:
        frame = frames.parse_frame(data)
    except Malformed:
        return
    assert frame is None or len(frame.fields) >= 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100 + b"\x40",
        b"\xc0\x02\x01" * (DEPTH_MAX + 2) + b"\x40",
        b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xe0\x03\xff\x40",
        b"\xc1\x02\x01\x40",
        b"\xa1\x02\xff\xfe",
        b"\x3f",
        b"",
    ],
)
def test_what_would_cost_too_much_or_makes_no_sense_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        AmqpReader(data).value()


def test_a_frame_comes_back_with_its_payload_and_all_its_fields() -> None:
    data = frames.make_frame(3, frames.TRANSFER, [UInt(1), UInt(2)], b"payload")
    assert struct.unpack(">I", data[:4])[0] == len(data)
    frame = frames.parse_frame(data[4:])
    assert frame is not None
    assert (frame.channel, frame.performative, frame.payload) == (3, frames.TRANSFER, b"payload")
    assert frame.fields == [1, 2] + [None] * 9
    assert frames.parse_frame(frames.EMPTY_FRAME[4:]) is None


def test_a_message_keeps_what_it_had_and_gets_what_the_broker_adds() -> None:
    properties = encode(DescribedValue(ULong(0x73), ["id-1", None, "to"]))
    body = encode(DescribedValue(ULong(0x75), b"hello"))
    annotations = encode(DescribedValue(ULong(0x72), {Symbol("x-opt-partition-key"): "k"}))
    application = encode(DescribedValue(ULong(0x74), {"n": UInt(5), "service": "ocr"}))
    message = parse_message(annotations + properties + application + body)
    assert (message.message_id, message.application["service"]) == ("id-1", "ocr")
    sent = encode_message(
        message, deliveries=2, annotations={Symbol("x-opt-sequence-number"): 9}, application={"Why": "x"}
    )
    again = parse_message(sent)
    assert (again.properties, again.body) == (properties, body)
    assert again.annotations == {Symbol("x-opt-partition-key"): "k", Symbol("x-opt-sequence-number"): 9}
    assert again.application == {"n": UInt(5), "service": "ocr", "Why": "x"}
    assert isinstance(again.application["n"], UInt)
    header = AmqpReader(sent).value()
    assert (header.descriptor, header.value[4]) == (0x70, 2)


def test_a_batch_is_many_messages() -> None:
    inner = [encode(DescribedValue(ULong(0x73), [f"id-{number}"])) for number in range(3)]
    data = b"".join(encode(DescribedValue(ULong(0x75), one)) for one in inner)
    messages: list[Message] = parse_batch(data)
    assert [message.message_id for message in messages] == ["id-0", "id-1", "id-2"]


def test_a_request_has_an_id_properties_and_a_value() -> None:
    data = (
        encode(DescribedValue(ULong(0x73), [UUID(int=1)]))
        + encode(DescribedValue(ULong(0x74), {"operation": "renew"}))
        + encode(DescribedValue(ULong(0x77), {"k": 1}))
    )
    request = parse_request(data)
    assert (request.message_id, request.application, request.value) == (
        UUID(int=1),
        {"operation": "renew"},
        {"k": 1},
    )
