"""How far each partition has been folded, so that a record counts once. Read next: `handler.py`."""

from __future__ import annotations

from schemas.records import Mark, Record


class Folded:
    """`marks`: the newest record folded, per topic and partition."""

    def __init__(self) -> None:
        self.marks: dict[tuple[str, int], Mark] = {}

    def is_new(self, record: Record) -> bool:
        """Whether this record has not been folded yet; from now on it counts as folded."""
        place = (record.topic, record.partition)
        mark = self.marks.get(place)
        if mark is not None and record.offset <= mark.offset:
            return False
        self.marks[place] = Mark(record.offset, record.timestamp_ms)
        return True
