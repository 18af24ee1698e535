"""The only encode and decode: CloudEvents 1.0, Kafka binding, binary mode out; binary and structured mode in.

Binary mode: attributes in headers `ce_specversion`, `ce_id`, `ce_source`, `ce_type`, `ce_time`, `content-type`; the value is
the JSON payload. `traceparent` is a plain header; `ce_traceparent` is accepted, too. Bad input raises `DecodeError` with a
stable code; nothing else escapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import msgspec

from schemas.base import Event
from schemas.records import Headers, Record
from schemas.registry import TYPE_OF, TYPES

VALUE_BYTES_MAX = 900_000
"""A record must stay below the broker's limit with its headers; larger values are refused before they are sent."""
DECODE_CODES = (
    "no_value",
    "malformed_header",
    "missing_header",
    "unsupported_version",
    "unknown_type",
    "malformed_time",
    "malformed_json",
    "invalid_field",
)
"""Every code a `DecodeError` may carry. Public: they appear in dead letters and refusals."""
DATES_KEPT = 16
"""A stream's events are of today; a few days more for what is read again."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DECODERS: dict[str, msgspec.json.Decoder] = {name: msgspec.json.Decoder(struct) for name, (struct, _) in TYPES.items()}
_ENCODER = msgspec.json.Encoder(order="deterministic")


class DecodeError(ValueError):
    """`code` is stable and public, `detail` names the field and the reason."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class Envelope(msgspec.Struct, frozen=True):
    """A decoded event with its CloudEvents attributes. `traceparent` is "" when absent, `time_ms` None."""

    event: Event
    type: str
    id: str
    source: str
    time_ms: int | None
    traceparent: str


class _Structured(msgspec.Struct):
    specversion: str
    id: str
    source: str
    type: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    time: str | None = None
    traceparent: str | None = None


def format_time(time_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds."""
    day, rest = divmod(time_ms, 86_400_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{_date(day)}T{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}.{rest % 1000:03d}Z"


@lru_cache(DATES_KEPT)
def _date(day: int) -> str:
    return (_EPOCH + timedelta(days=day)).strftime("%Y-%m-%d")


def parse_time(text: str) -> int:
    """Unix epoch milliseconds. Raises ValueError for anything that is not RFC 3339 with a zone."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("time has no zone")
    since = moment - _EPOCH
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def encode_payload(event: msgspec.Struct) -> bytes:
    """Deterministic JSON."""
    return _ENCODER.encode(event)


def encode(event: Event, *, id: str, source: str, time_ms: int, traceparent: str = "") -> tuple[Headers, bytes]:
    """(headers, value) of an event in binary mode. `time_ms` is domain time. Raises ValueError above VALUE_BYTES_MAX."""
    value = _ENCODER.encode(event)
    if len(value) > VALUE_BYTES_MAX:
        raise ValueError(f"{type(event).__name__} is {len(value)} bytes, the limit is {VALUE_BYTES_MAX}")
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", id.encode()),
        ("ce_source", source.encode()),
        ("ce_type", TYPE_OF[type(event)].encode()),
        ("ce_time", format_time(time_ms).encode()),
        ("content-type", b"application/json"),
    ]
    if traceparent:
        headers.append(("traceparent", traceparent.encode()))
    return tuple(headers), value


def decode_payload(type_name: str, payload: bytes | msgspec.Raw) -> Event:
    """The event of a payload whose type is known. Raises DecodeError."""
    decoder = _DECODERS.get(type_name)
    if decoder is None:
        raise DecodeError("unknown_type", f"no event type {type_name!r}")
    try:
        return decoder.decode(payload)
    except msgspec.ValidationError as error:
        raise DecodeError("invalid_field", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError("malformed_json", str(error)) from None
    except RecursionError:
        raise DecodeError("malformed_json", "JSON is nested too deeply") from None


def decode_record(record: Record) -> Envelope:
    """The event of a consumed record. Raises DecodeError."""
    return decode(record.headers, record.value)


def decode(headers: Iterable[tuple[str, bytes]], value: bytes | None) -> Envelope:
    """The event of a record. Raises DecodeError for anything that is not a CloudEvent of a known type."""
    if value is None:
        raise DecodeError("no_value", "the record has no value")
    attributes: dict[str, str] = {}
    for name, raw in headers:
        try:
            attributes[name.lower()] = raw.decode("utf-8") if raw is not None else ""
        except UnicodeDecodeError:
            raise DecodeError("malformed_header", f"header {name!r} is not UTF-8") from None
    if attributes.get("content-type", "").lower().startswith("application/cloudevents+json"):
        return _decode_structured(value, attributes)
    for required in ("ce_specversion", "ce_id", "ce_source", "ce_type"):
        if not attributes.get(required):
            raise DecodeError("missing_header", f"header {required} is missing")
    return _envelope(
        attributes["ce_specversion"],
        attributes["ce_type"],
        attributes["ce_id"],
        attributes["ce_source"],
        attributes.get("ce_time"),
        attributes.get("traceparent") or attributes.get("ce_traceparent") or "",
        value,
    )


def _decode_structured(value: bytes, attributes: dict[str, str]) -> Envelope:
    try:
        outer = msgspec.json.decode(value, type=_Structured)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError("malformed_json", str(error)) from None
    except RecursionError:
        raise DecodeError("malformed_json", "JSON is nested too deeply") from None
    trace = attributes.get("traceparent") or outer.traceparent or ""
    return _envelope(outer.specversion, outer.type, outer.id, outer.source, outer.time, trace, outer.data)


def _envelope(
    version: str, type_name: str, id: str, source: str, time: str | None, trace: str, payload: bytes | msgspec.Raw
) -> Envelope:
    if version != "1.0":
        raise DecodeError("unsupported_version", f"CloudEvents specversion {version!r}; 1.0 is understood")
    time_ms: int | None = None
    if time:
        try:
            time_ms = parse_time(time)
        except (ValueError, OverflowError):
            raise DecodeError("malformed_time", f"time {time!r} is not RFC 3339") from None
    event = decode_payload(type_name, payload)
    return Envelope(event=event, type=type_name, id=id, source=source, time_ms=time_ms, traceparent=trace)
