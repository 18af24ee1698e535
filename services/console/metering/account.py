"""From a ledger to one row per job and application: GPU time held, effective, idle and lost in a window. Pure, exact.

Everything is counted in whole GPU-milliseconds, so that `held = effective + idle + lost` holds to the last one. A slot of a shared
card is its part of a GPU: one of three for a second is 1000/3 GPU-milliseconds, kept as that fraction and never rounded, so sums stay
exact; slot-milliseconds are counted beside it, whole. The parts:
lost is what ran after the last checkpoint of an attempt that did not complete; idle is what telemetry found idle while held
(outside of what was lost anyway); effective is the rest, of running attempts provisionally. Read next: `report`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from schemas.status import JobState
from services.console.metering.attempts import Attempt, attempts_of
from services.console.metering.ledger import End, Ledger, Owner
from services.console.metering.served import NOTHING, Served, sum_of_windows

Span = tuple[int, int]
GpuMs = int | Fraction
IdleSpans = dict[str, dict[int, list[Span]]]
UNKNOWN = Owner("unknown", "unknown", "unknown", None)
"""Of a job whose acceptance retention has taken: its GPU time counts all the same."""
WAITING, RUNNING = "waiting", "running"


@dataclass(frozen=True, slots=True)
class Window:
    """From `since_ms` until `until_ms`; what lies outside is not counted. `until_ms` is also now for what still runs."""

    since_ms: int
    until_ms: int

    def cut(self, first_ms: int, last_ms: int) -> Span:
        first_ms = max(first_ms, self.since_ms)
        return first_ms, max(first_ms, min(last_ms, self.until_ms))

    def has(self, at_ms: int | None) -> bool:
        return at_ms is not None and self.since_ms <= at_ms <= self.until_ms


@dataclass(frozen=True, slots=True)
class Row:
    """One job or application. GPU time in GPU-milliseconds; `wait_ms` until the first start, or until now without one.

    `slot_ms`: of what it held, the time on slots of shared cards, each slot counted as one.
    `state`: its final state, `running` or `waiting`. `served`: what an application said it served.
    """

    name: str
    owner: Owner
    state: str
    held_gpu_ms: GpuMs = 0
    idle_gpu_ms: GpuMs = 0
    lost_gpu_ms: GpuMs = 0
    slot_ms: int = 0
    attempts: int = 0
    interruptions: int = 0
    resumptions: int = 0
    wait_ms: int | None = None
    started: bool = False
    served: Served = NOTHING

    @property
    def effective_gpu_ms(self) -> GpuMs:
        return self.held_gpu_ms - self.idle_gpu_ms - self.lost_gpu_ms


def rows_of(ledger: Ledger, window: Window) -> list[Row]:
    """A row for everything that held a GPU, waited or ended in the window, by name."""
    idle = {node: _idle_spans(found, window.until_ms) for node, found in sorted(ledger.idle.items())}
    names = sorted({*ledger.owners, *ledger.attempts, *ledger.holds, *ledger.final})
    rows = []
    for name in names:
        make = _app_row if ledger.is_application(name) else _job_row
        row = make(ledger, name, window, idle)
        if row is not None:
            rows.append(row)
    return rows


def _idle_spans(found: dict[int, frozenset[int]], until_ms: int) -> dict[int, list[Span]]:
    """Per GPU, when it was idle: from a finding to the node's next state."""
    times = sorted(found)
    spans: dict[int, list[Span]] = {}
    for place, time_ms in enumerate(times):
        last_ms = times[place + 1] if place + 1 < len(times) else max(until_ms, time_ms)
        for gpu in sorted(found[time_ms]):
            spans.setdefault(gpu, []).append((time_ms, last_ms))
    return spans


def _idle_ms(idle: IdleSpans, node: str, gpu: int, span: Span) -> int:
    found = idle.get(node, {}).get(gpu, ())
    return sum(max(0, min(last, span[1]) - max(first, span[0])) for first, last in found)


def _telemetry_idle_ms(ledger: Ledger, name: str, good_gpu_ms: GpuMs, found_gpu_ms: GpuMs) -> GpuMs:
    """Idle GPU time within `good_gpu_ms`: telemetry's own share of what it saw, or the findings where it told no usage.

    A share, because telemetry counts wall time and what it saw; applied to whole milliseconds, so that sums stay exact.
    """
    usage = ledger.usage.get(name)
    if usage is None or usage.held_gpu_s <= 0:
        return min(found_gpu_ms, good_gpu_ms)
    return min(good_gpu_ms, round(good_gpu_ms * min(1.0, usage.idle_gpu_s / usage.held_gpu_s)))


def _job_row(ledger: Ledger, name: str, window: Window, idle: IdleSpans) -> Row | None:
    owner = ledger.owners.get(name, UNKNOWN)
    attempts = attempts_of(ledger, name, window.until_ms)
    held: GpuMs = 0
    idled: GpuMs = 0
    lost: GpuMs = 0
    slot_ms = 0
    for attempt in attempts:
        one = _attempt_gpu_ms(attempt, window, idle, ledger.slots_per_card)
        held, idled, lost, slot_ms = held + one[0], idled + one[1], lost + one[2], slot_ms + one[3]
    idled = _telemetry_idle_ms(ledger, name, held - lost, idled)
    state = _state(ledger, name, attempts)
    over_ms = max((one.end_ms for one in attempts if one.end_ms is not None), default=None)
    alive = state in (WAITING, RUNNING)
    if owner.submitted_ms is not None and owner.submitted_ms >= window.until_ms:
        return None
    if not held and not alive and not window.has(over_ms) and not window.has(owner.submitted_ms):
        return None
    interrupted = [one for one in attempts if _interrupted(one, attempts) and window.has(one.end_ms)]
    return Row(
        name,
        owner,
        state,
        held,
        idled,
        lost,
        slot_ms,
        attempts=len(attempts),
        interruptions=len(interrupted),
        resumptions=sum(
            window.has(after.start_ms) and any(one.safe_ms is not None for one in attempts if one.number < after.number)
            for after in attempts
        ),
        wait_ms=_wait_ms(owner, attempts, window, alive),
        started=bool(attempts),
    )


def _of_cards(slot_ms: int, per_card: int) -> GpuMs:
    """Time of slots as time of GPUs. Whole cards stay whole numbers."""
    return slot_ms if per_card == 1 else Fraction(slot_ms, per_card)


def _attempt_gpu_ms(
    attempt: Attempt, window: Window, idle: IdleSpans, slots_per_card: Mapping[str, int]
) -> tuple[GpuMs, GpuMs, GpuMs, int]:
    """(held, idle, lost) GPU-milliseconds of one attempt inside the window, and slot-milliseconds."""
    held: GpuMs = 0
    idled: GpuMs = 0
    lost: GpuMs = 0
    slot_ms = 0
    failed = attempt.end is not None and attempt.end is not End.COMPLETED
    for part in attempt.held:
        end_ms = window.until_ms if part.end_ms is None else part.end_ms
        kept_ms = end_ms
        if failed:
            kept_ms = part.start_ms if attempt.safe_ms is None else min(max(attempt.safe_ms, part.start_ms), end_ms)
        whole, good = window.cut(part.start_ms, end_ms), window.cut(part.start_ms, kept_ms)
        per_card, held_ms = slots_per_card.get(part.node, 1), len(part.gpus) * (whole[1] - whole[0])
        held += _of_cards(held_ms, per_card)
        lost += _of_cards(held_ms - len(part.gpus) * (good[1] - good[0]), per_card)
        idled += _of_cards(sum(_idle_ms(idle, part.node, gpu, good) for gpu in part.gpus), per_card)
        slot_ms += held_ms if per_card > 1 else 0
    return held, idled, lost, slot_ms


def _interrupted(attempt: Attempt, attempts: Sequence[Attempt]) -> bool:
    """Ended from outside or by a failure although it was to go on: another attempt followed, or its node vanished."""
    if attempt.end is None or attempt.end is End.COMPLETED:
        return False
    return attempt.end is End.VANISHED or attempt.number != attempts[-1].number


def _state(ledger: Ledger, name: str, attempts: Sequence[Attempt]) -> str:
    if any(one.end is End.COMPLETED for one in attempts):
        return JobState.COMPLETED.value
    final = ledger.final.get(name)
    if any(one.end is None for one in attempts):
        return RUNNING
    return final[1].value if final is not None else WAITING


def _wait_ms(owner: Owner, attempts: Sequence[Attempt], window: Window, alive: bool) -> int | None:
    """Never negative: a submitter's clock may be ahead. None for what ended without a start."""
    if owner.submitted_ms is None:
        return None
    if attempts:
        return max(0, attempts[0].start_ms - owner.submitted_ms)
    return max(0, window.until_ms - owner.submitted_ms) if alive else None


def _app_row(ledger: Ledger, name: str, window: Window, idle: IdleSpans) -> Row | None:
    """An application holds what decisions gave it, until its next hold or its withdrawal."""
    holds = ledger.holds.get(name, [])
    gone_ms = min(ledger.revoked_ms.get(name, window.until_ms), window.until_ms)
    held: GpuMs = 0
    idled: GpuMs = 0
    slot_ms = 0
    for place, hold in enumerate(holds):
        end_ms = holds[place + 1].time_ms if place + 1 < len(holds) else max(gone_ms, hold.time_ms)
        span = window.cut(hold.time_ms, end_ms)
        for node, gpu in hold.gpus:
            per_card = ledger.slots_per_card.get(node, 1)
            held += _of_cards(span[1] - span[0], per_card)
            idled += _of_cards(_idle_ms(idle, node, gpu, span), per_card)
            slot_ms += span[1] - span[0] if per_card > 1 else 0
    idled = _telemetry_idle_ms(ledger, name, held, idled)
    if not held and gone_ms < window.since_ms:
        return None
    told = ledger.served.get(name, {})
    serving = bool(holds and holds[-1].gpus) and name not in ledger.revoked_ms
    return Row(
        name,
        ledger.owners.get(name, UNKNOWN),
        RUNNING if serving else WAITING if name not in ledger.revoked_ms else JobState.CANCELLED.value,
        held,
        idled,
        slot_ms=slot_ms,
        started=bool(holds),
        served=sum_of_windows(told[ms] for ms in sorted(told) if window.since_ms < ms <= window.until_ms),
    )
