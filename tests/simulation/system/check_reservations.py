"""Judges what operators reserved: no job starts on GPUs inside their window, and no application gains them.

Owns: a reading of the orders from the log's inputs alone. Refuses: what runs there already, and the allocator's state and code.
Read next: `checks.py`, docs/policy.md.
"""

from __future__ import annotations

from typing import Any

from schemas.commands import ReleaseBlock, ReserveBlock
from schemas.decisions import DecisionMade, Placed, Scaled
from schemas.nodes import NodeForgotten
from tests.simulation.system.evidence import Evidence, Hearing

Card = tuple[str, int]


class ReservationsWalk:
    """One walk over the accepted log."""

    def __init__(self, evidence: Evidence) -> None:
        self.violations: list[str] = []
        self._evidence = evidence
        self._windows: dict[str, ReserveBlock] = {}
        self._gone: dict[str, int] = {}
        self._scaled: dict[str, set[Card]] = {}

    def walk(self) -> ReservationsWalk:
        hearing = Hearing()
        for record in self._evidence.accepted:
            for event in hearing.of(record):
                self._hear(event, record.now_ms)
            for effect in record.effects:
                if isinstance(effect, Placed):
                    self._gains(record, effect.job_id, _cards(effect))
                elif isinstance(effect, Scaled):
                    cards = _cards(effect)
                    self._gains(record, effect.app_id, cards - self._scaled.get(effect.app_id, set()))
                    self._scaled[effect.app_id] = cards
        return self

    def _hear(self, event: Any, now_ms: int) -> None:
        if isinstance(event, ReserveBlock) and event.until_ms > max(event.from_ms, now_ms):
            self._windows[event.reservation_id] = event
        elif isinstance(event, ReleaseBlock):
            self._windows.pop(event.reservation_id, None)
        elif isinstance(
            event, NodeForgotten
        ):  # a window of its former life, whichever of the two orders was heard first
            self._gone[event.node] = max(event.ordered_ms, self._gone.get(event.node, 0))
        self._windows = {
            name: window for name, window in self._windows.items() if window.ordered_ms > self._gone.get(window.node, 0)
        }

    def _gains(self, record: DecisionMade, name: str, cards: set[Card]) -> None:
        for window in self._windows.values():
            if not window.from_ms <= record.now_ms < window.until_ms:
                continue
            inside = sorted(gpu for node, gpu in cards if node == window.node and gpu in (window.gpus or [gpu]))
            if inside:
                sentence = f"{name} gets {window.node}/{inside} inside the window of {window.reservation_id}"
                self.violations.append(f"decision {record.sequence}: {sentence}")


def _cards(effect: Placed | Scaled) -> set[Card]:
    return {(part.node, gpu) for part in effect.placed for gpu in part.gpus}
