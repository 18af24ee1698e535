"""Attempts of one job as they stood at a moment: when each part held which GPUs, how it ended, what a checkpoint saved. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from services.console.metering.ledger import End, Ended, Ledger


@dataclass(frozen=True, slots=True)
class Held:
    """One node's GPUs held from `start_ms` to `end_ms` (None: still)."""

    node: str
    gpus: tuple[int, ...]
    start_ms: int
    end_ms: int | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """`end` None while any part runs. `safe_ms`: what ran until then is kept; None if nothing was saved."""

    number: int
    held: tuple[Held, ...]
    end: End | None
    end_ms: int | None
    cause: str
    safe_ms: int | None

    @property
    def start_ms(self) -> int:
        """A gang starts with its last part."""
        return max(one.start_ms for one in self.held)


def attempts_of(ledger: Ledger, job_id: str, until_ms: int) -> list[Attempt]:
    """Attempts that started before `until_ms`, oldest first, as of then: what ended later still runs."""
    found = [_attempt(ledger, job_id, number, until_ms) for number in sorted(ledger.attempts.get(job_id, {}))]
    return [one for one in found if one is not None]


def _attempt(ledger: Ledger, job_id: str, number: int, until_ms: int) -> Attempt | None:
    held: list[Held] = []
    ends: list[Ended | None] = []
    saves: list[int] = []
    for node in sorted(ledger.attempts[job_id][number]):
        key = (job_id, number, node)
        part, ended = ledger.parts[key], ledger.end_of(key)
        if part.start_ms is None or part.start_ms >= until_ms:
            continue
        if ended is not None and ended.time_ms > until_ms:
            ended = None
        end_ms = None if ended is None else max(ended.time_ms, part.start_ms)
        held.append(Held(node, part.gpus, part.start_ms, end_ms))
        ends.append(ended)
        last_ms = until_ms if end_ms is None else end_ms
        saves.extend(at_ms for at_ms in part.checkpoints_ms if part.start_ms <= at_ms <= last_ms)
        if ended is not None and ended.saved:
            saves.append(ended.time_ms)
    if not held:
        return None
    safe_ms = max(saves, default=None)
    over = [one for one in ends if one is not None]
    if len(over) < len(ends):
        return Attempt(number, tuple(held), None, None, "", safe_ms)
    last = max(over, key=lambda one: one.order)
    worst = next((one for one in sorted(over, key=lambda one: one.order) if one.end is not End.COMPLETED), None)
    return Attempt(
        number,
        tuple(held),
        End.COMPLETED if worst is None else worst.end,
        max(last.time_ms, max(one.start_ms for one in held)),
        "" if worst is None else worst.cause,
        safe_ms,
    )
