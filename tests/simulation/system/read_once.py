"""Each record's bytes are decoded once per run, however many processes and judges read them.

Events are immutable, so readers may share them. Owns: remembering by the identity of the bytes, which the bus keeps as they are. Refuses:
remembering what can't be decoded. Nothing in a run may depend on it: without it a run is the same, and slower. Read next: `run.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from schemas import codec
from schemas.codec import Envelope
from schemas.records import Headers


class _Once:
    """A decoder that remembers; the payloads are kept, so that no other ever has the same identity."""

    def __init__(self, decoder: Any) -> None:
        self._decode = decoder.decode
        self._known: dict[int, tuple[Any, Any]] = {}

    def decode(self, payload: Any) -> Any:
        known = self._known.get(id(payload))
        if known is None:
            known = self._known[id(payload)] = (payload, self._decode(payload))
        return known[1]


@contextmanager
def each_read_once() -> Iterator[None]:
    """While it lasts. Runs must not overlap in one process."""
    real = codec.decode
    known: dict[tuple[int, int], tuple[Headers, bytes, Envelope]] = {}

    def decode(headers: Headers, value: bytes | None) -> Envelope:
        key = (id(headers), id(value))
        found = known.get(key)
        if found is None:
            envelope = real(headers, value)
            assert value is not None
            found = known[key] = (headers, value, envelope)
        return found[2]

    with ExitStack() as stack:
        stack.enter_context(patch.object(codec, "decode", decode))
        decoders = {name: _Once(decoder) for name, decoder in codec._DECODERS.items()}
        stack.enter_context(patch.dict(codec._DECODERS, decoders))
        yield
