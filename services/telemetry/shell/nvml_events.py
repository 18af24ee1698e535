"""Xid errors as they happen: NVML's event set, emptied with every sample.

Owns: registering every card that can report, and handing each event out once. The driver keeps events between samples, so
no thread waits for them. Refuses: judging them (`core/health_policy.py`). Read next: `nvml.py`.
"""

from __future__ import annotations

from typing import Any

from schemas.nodes import XidReport

EVENTS_MAX = 1_000
"""Taken at one sample: a card in a storm of errors must not hold up the others' readings."""
CODES_MAX = 32
"""Different Xids of one card told in one sample."""


class XidEvents:
    """Make it after NVML was opened, and anew after it was opened again."""

    def __init__(self, library: Any, handles: dict[int, Any]) -> None:
        self._library = library
        self._set: Any = None
        self._registered = 0
        try:
            self._set = library.nvmlEventSetCreate()
        except library.NVMLError:
            return  # this driver has no events
        for handle in handles.values():
            try:
                library.nvmlDeviceRegisterEvents(handle, library.nvmlEventTypeXidCriticalError, self._set)
                self._registered += 1
            except library.NVMLError:
                continue  # this card reports none

    def take(self) -> dict[int, list[XidReport]]:
        """Per card index what happened since the last call."""
        library = self._library
        counts: dict[int, dict[int, int]] = {}
        for _ in range(EVENTS_MAX if self._registered else 0):
            try:
                event = library.nvmlEventSetWait_v2(self._set, 0)
                index = library.nvmlDeviceGetIndex(event.device)
            except library.NVMLError:
                break  # none is left; or a card is lost, which its own reading tells
            codes = counts.setdefault(index, {})
            codes[int(event.eventData)] = codes.get(int(event.eventData), 0) + 1
        return {
            index: [XidReport(code=code, count=count) for code, count in list(codes.items())[:CODES_MAX]]
            for index, codes in counts.items()
        }
