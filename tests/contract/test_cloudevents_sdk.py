"""The CloudEvents SDK, which shares no code with us, reads what we write and writes what we read."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cloudevents.core.bindings.kafka import (
    KafkaMessage,
    from_binary_event,
    from_structured_event,
    to_binary_event,
    to_structured_event,
)
from cloudevents.core.exceptions import CloudEventValidationError
from cloudevents.core.v1.event import CloudEvent

from schemas import generated
from schemas.codec import DecodeError, decode, decode_payload, encode_payload
from schemas.messages import message
from schemas.registry import TYPES

TIME_MS = 1_764_403_200_123
TIME = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=TIME_MS)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CASES = [(name, file) for name in TYPES for file in generated.examples(name, "valid")]


def written(name: str, file: str) -> KafkaMessage:
    """What we would put on Kafka for an example."""
    event = decode_payload(name, json.dumps(generated.examples(name, "valid")[file]).encode())
    ours = message(event, key="the-key", id="e-1", source="/gpugrid/test", time_ms=TIME_MS, traceparent=TRACE)
    assert ours.value is not None
    return KafkaMessage(headers=dict(ours.headers), key=ours.key, value=ours.value)


def sdk_event(name: str, data: Any, **attributes: Any) -> CloudEvent:
    given = {"id": "e-1", "source": "/upstream", "type": name, "specversion": "1.0", "time": TIME}
    given |= {"datacontenttype": "application/json", "traceparent": TRACE, "partitionkey": "the-key"} | attributes
    return CloudEvent(attributes=given, data=data)


@pytest.mark.parametrize(("name", "file"), CASES)
def test_the_sdk_reads_what_we_write(name: str, file: str) -> None:
    ours = written(name, file)
    read = from_binary_event(ours)
    assert (read.get_type(), read.get_id(), read.get_source()) == (name, "e-1", "/gpugrid/test")
    assert (read.get_specversion(), read.get_datacontenttype(), read.get_time()) == ("1.0", "application/json", TIME)
    assert read.get_extension("partitionkey") == "the-key"
    assert read.get_data() == json.loads(ours.value)


@pytest.mark.parametrize("mode", [to_binary_event, to_structured_event])
@pytest.mark.parametrize(("name", "file"), CASES)
def test_we_read_what_the_sdk_writes(name: str, file: str, mode: Any) -> None:
    data = generated.examples(name, "valid")[file]
    theirs = mode(sdk_event(name, data))
    envelope = decode(theirs.headers.items(), theirs.value)
    assert (envelope.type, envelope.id, envelope.source) == (name, "e-1", "/upstream")
    assert (envelope.time_ms, envelope.traceparent) == (TIME_MS, TRACE)
    assert envelope.event == decode_payload(name, json.dumps(data).encode())
    assert theirs.key == "the-key"


def test_what_the_sdk_wrote_in_structured_mode_reads_the_same_in_the_sdk() -> None:
    """Guards the test above: the SDK's own round trip must hold for its answers to mean anything."""
    theirs = to_structured_event(sdk_event("job.cancelled.v1", {"job_id": "j", "cancelled_ms": 1}))
    assert from_structured_event(theirs).get_data() == {"job_id": "j", "cancelled_ms": 1}


def test_the_sdk_refuses_a_planted_bad_record_and_so_do_we() -> None:
    ours = written("job.cancelled.v1", "minimal.json")
    headers = {name: value for name, value in ours.headers.items() if name != "ce_type"}
    with pytest.raises(CloudEventValidationError):
        from_binary_event(KafkaMessage(headers=headers, key=ours.key, value=ours.value))
    with pytest.raises(DecodeError, match="ce_type"):
        decode(headers.items(), ours.value)


@pytest.mark.parametrize("mode", [to_binary_event, to_structured_event])
def test_we_refuse_what_the_sdk_lets_through_but_the_schema_does_not(mode: Any) -> None:
    theirs = mode(sdk_event("job.cancelled.v1", {"job_id": "j", "cancelled_ms": "now"}))
    with pytest.raises(DecodeError) as refused:
        decode(theirs.headers.items(), theirs.value)
    assert refused.value.code == "invalid_field"


def test_our_payloads_are_deterministic_whatever_order_the_sdk_kept() -> None:
    data = generated.examples("job.submitted.v1", "valid")["training-lora.json"]
    backwards = json.dumps(dict(reversed(data.items()))).encode()
    forwards = json.dumps(data).encode()
    assert encode_payload(decode_payload("job.submitted.v1", backwards)) == encode_payload(
        decode_payload("job.submitted.v1", forwards)
    )
