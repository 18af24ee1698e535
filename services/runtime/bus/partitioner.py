"""Key → partition exactly as Kafka's default does it (murmur2), so that producers in every language agree.

Owns: the hash. Refuses: any idea of what a key means (clusters choose their partition explicitly, see `schemas.partitions`).
Read next: `port.py`.
"""

from __future__ import annotations

from functools import lru_cache

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C

KEYS_CACHED_MAX = 65_536
"""Keys repeat (a job sends many records); hashing one in pure Python costs 3 µs, looking it up 0.1."""


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 of `data` with Kafka's seed, unsigned."""
    length = len(data)
    h = (_SEED ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little")
        k = (k * _MULTIPLIER) & _MASK
        k ^= k >> 24
        k = (k * _MULTIPLIER) & _MASK
        h = ((h * _MULTIPLIER) & _MASK) ^ k
    tail = data[whole:]
    if tail:
        h ^= int.from_bytes(tail, "little")
        h = (h * _MULTIPLIER) & _MASK
    h ^= h >> 13
    h = (h * _MULTIPLIER) & _MASK
    h ^= h >> 15
    return h


@lru_cache(maxsize=KEYS_CACHED_MAX)
def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition Kafka's default partitioner gives a non-null key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
