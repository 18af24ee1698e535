"""murmur2 equals aiokafka's (which equals Java's) for every length class."""

from __future__ import annotations

from random import Random

from aiokafka.partitioner import DefaultPartitioner, murmur2

from services.runtime.bus.partitioner import murmur2 as ours
from services.runtime.bus.partitioner import partition_of_key


def test_equals_aiokafkas_on_random_keys_of_every_length():
    random = Random(1)
    partitioner = DefaultPartitioner()
    for length in range(64):
        for _ in range(20):
            key = random.randbytes(length)
            assert ours(key) == murmur2(key) & 0xFFFFFFFF
            assert partition_of_key(key, 7) == partitioner(key, list(range(7)), list(range(7)))


def test_known_values_of_javas_implementation():
    # From Kafka's own UtilsTest.
    assert ours(b"21") - (1 << 32) == -973932308
    assert ours(b"foobar") - (1 << 32) == -790332482
    assert ours(b"a-little-bit-long-string") - (1 << 32) == -985981536
