"""Range assignment equals aiokafka's, for any number of members and partitions."""

from __future__ import annotations

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata

from services.runtime.bus.memory_group import assign_by_range


class _Cluster:
    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(self._counts[topic]))


@pytest.mark.parametrize("member_count", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("partition_count", [1, 4, 7])
def test_equals_aiokafkas(member_count: int, partition_count: int):
    counts = {"jobs": partition_count, "forecasts": partition_count}
    members = [f"m-{index}" for index in range(member_count)]
    topics = {member: ["jobs", "forecasts"] if index != 1 else ["jobs"] for index, member in enumerate(members)}
    metadata = {
        member: ConsumerProtocolMemberMetadata(version=0, subscription=sorted(topics[member]), user_data=b"")
        for member in members
    }
    theirs = RangePartitionAssignor.assign(_Cluster(counts), metadata)
    ours = assign_by_range(topics, counts)
    for member in members:
        expected = {(topic, part) for topic, parts in theirs[member].assignment for part in parts}
        assert ours[member] == expected


def test_equal_partition_numbers_land_on_one_member():
    owned = assign_by_range({"a": ["x", "y"], "b": ["x", "y"]}, {"x": 4, "y": 4})
    for partitions in owned.values():
        assert {part for topic, part in partitions if topic == "x"} == {
            part for topic, part in partitions if topic == "y"
        }
