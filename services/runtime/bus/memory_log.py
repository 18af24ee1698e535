"""One partition of the memory bus: records in offset order, some of them compacted away, the oldest trimmed.

Owns: offsets, visibility (a record may be stored and yet be seen later), compaction, retention and waking whoever waits.
Refuses: knowing consumers or groups. Read next: `memory.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from services.runtime.bus.port import Headers, OffsetGoneError, Record


class PartitionLog:
    """Offsets count up by one for ever; `start` is the oldest one that retention has left."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start = 0
        self.end = 0
        self._records: list[Record] = []
        self._dense = True  # offsets without gaps: an index is a subtraction
        self._visible_at_s: list[float] = []  # parallel to _records, empty while nothing was ever delayed
        self._watchers: dict[int, Callable[[], None]] = {}

    def append(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> int:
        """Store and return the offset. The caller wakes the watchers (at once or when the record becomes visible)."""
        offset = self.end
        self._records.append(Record(self.topic, self.partition, offset, key, value, headers, timestamp_ms))
        self.end = offset + 1
        if self._visible_at_s:
            self._visible_at_s.append(self._visible_at_s[-1])
        return offset

    def delay_last(self, visible_at_s: float) -> float:
        """Hide the newest record until then, or until its predecessors are seen; returns the moment it becomes visible."""
        if not self._visible_at_s:
            self._visible_at_s = [0.0] * len(self._records)
        previous = self._visible_at_s[-2] if len(self._visible_at_s) > 1 else 0.0
        self._visible_at_s[-1] = max(previous, visible_at_s)
        return self._visible_at_s[-1]

    @property
    def visible_at_s(self) -> float:
        """When the newest record can be seen; 0 if nothing was ever delayed."""
        return self._visible_at_s[-1] if self._visible_at_s else 0.0

    def read(self, offset: int, records_max: int, now_s: float) -> list[Record]:
        """Visible records from `offset` on, at most `records_max`. Raises OffsetGoneError outside the log."""
        if offset < self.start or offset > self.end:
            raise OffsetGoneError(
                f"offset {offset} of {self.topic}/{self.partition} is not in the log, which holds {self.start} to {self.end}"
            )
        at = self._index(offset)
        found = self._records[at : at + records_max]
        if self._visible_at_s and found and self._visible_at_s[at + len(found) - 1] > now_s:
            visible = self._visible_at_s[at : at + len(found)]
            found = [record for record, when_s in zip(found, visible, strict=True) if when_s <= now_s]
        return found

    def has_more(self, offset: int, now_s: float) -> bool:
        """Whether `read` at that offset would answer something (or raise)."""
        if offset == self.end:
            return False
        if offset < self.start or offset > self.end:
            return True
        at = self._index(offset)
        if at == len(self._records):
            return False
        return not self._visible_at_s or self._visible_at_s[at] <= now_s

    def compact(self, *, drop_tombstones: bool) -> int:
        """Keep the last record of every key, all records without a key, and the newest record (so that the end stays
        readable). Returns how many went."""
        last: dict[bytes, int] = {record.key: record.offset for record in self._records if record.key is not None}

        def kept(record: Record) -> bool:
            if record.offset == self.end - 1 or record.key is None:
                return True
            return last[record.key] == record.offset and not (drop_tombstones and record.value is None)

        return self._keep([kept(record) for record in self._records])

    def trim(self, before_offset: int) -> int:
        """Remove everything below an offset, as retention does. Returns how many records went."""
        self.start = max(self.start, min(before_offset, self.end))
        return self._keep([record.offset >= self.start for record in self._records])

    def records(self) -> list[Record]:
        """Everything stored, visible or not, for tests and checkers."""
        return list(self._records)

    def watch(self, watcher_id: int, wake: Callable[[], None]) -> None:
        self._watchers[watcher_id] = wake

    def unwatch(self, watcher_id: int) -> None:
        self._watchers.pop(watcher_id, None)

    def wake_watchers(self) -> None:
        for wake in tuple(self._watchers.values()):
            wake()

    def _index(self, offset: int) -> int:
        if self._dense:
            return max(0, offset - (self.end - len(self._records)))  # below the first one: the gap compaction left
        return bisect_left(self._records, offset, key=lambda record: record.offset)

    def _keep(self, keep: list[bool]) -> int:
        before = len(self._records)
        self._records = [record for record, stays in zip(self._records, keep, strict=True) if stays]
        if self._visible_at_s:
            self._visible_at_s = [when for when, stays in zip(self._visible_at_s, keep, strict=True) if stays]
        self._dense = not self._records or self._records[-1].offset - self._records[0].offset + 1 == len(self._records)
        return before - len(self._records)
