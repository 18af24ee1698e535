"""State to snapshot records and back. Chunks first, manifest last; two slots in turn, so a half-written one harms nothing."""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping

import msgspec

from schemas.decisions import SnapshotChunk, SnapshotCompleted
from services.allocator.core.state import State

CHUNK_BYTES = 384 * 1024
"""Compressed bytes per chunk; base64 makes it 512 KiB, below every record limit."""
SLOTS = ("a", "b")


def chunk_key(cluster: str, slot: str, index: int) -> str:
    """Compaction key of a chunk."""
    return f"{cluster}/{slot}/{index:05d}"


def manifest_key(cluster: str, slot: str) -> str:
    """Compaction key of a manifest."""
    return f"{cluster}/{slot}/manifest"


def take(state: State, slot: str, decisions_next_offset: int) -> tuple[list[SnapshotChunk], SnapshotCompleted]:
    """The records of a snapshot of `state`, which must be as of the record before `decisions_next_offset`."""
    packed = zlib.compress(msgspec.json.encode(state), 1)
    pieces = [packed[at : at + CHUNK_BYTES] for at in range(0, len(packed), CHUNK_BYTES)]
    chunks = [
        SnapshotChunk(
            cluster=state.cluster,
            sequence=state.sequence,
            index=index,
            chunks=len(pieces),
            data=b64encode(piece).decode(),
        )
        for index, piece in enumerate(pieces)
    ]
    manifest = SnapshotCompleted(
        cluster=state.cluster,
        sequence=state.sequence,
        id=state.last_id,
        epoch=state.epoch,
        chunks=len(pieces),
        digest=hashlib.sha256(packed).hexdigest(),
        decisions_next_offset=decisions_next_offset,
        slot=slot,
    )
    return chunks, manifest


def restore(manifest: SnapshotCompleted, chunks: Mapping[int, SnapshotChunk]) -> State | None:
    """The state of a snapshot, or None if a chunk is missing, belongs to another sequence, or the digest differs."""
    pieces = []
    for index in range(manifest.chunks):
        chunk = chunks.get(index)
        if chunk is None or chunk.sequence != manifest.sequence:
            return None
        pieces.append(b64decode(chunk.data))
    packed = b"".join(pieces)
    if hashlib.sha256(packed).hexdigest() != manifest.digest:
        return None
    return msgspec.json.decode(zlib.decompress(packed), type=State)
