"""What is known of past and running jobs: bounded, per key, newest first, with running jobs as lower bounds.

Owns: the chain of keys a job belongs to, the memory for them, and the runs that go on. Refuses: any model, any clock, any
event; see `duration.py` and `ledger.py` for these. Memory is bounded: `key_count_max` keys (the one longest unused without a
running job makes room) at 1.5 KB each, `run_count_max` running jobs. Read next: `survival.py` for the arithmetic.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields
from hashlib import sha256
from math import exp, isfinite, log

import numpy as np

from services.forecaster.core.recent import RecentRuns, ages, newest_running
from services.forecaster.core.survival import (
    BASE_SCALE,
    BINS,
    DURATION_S_MAX,
    HALF_LIVES,
    Counts,
    Floats,
    Indices,
    add_run,
    age,
    curves,
    decay_rates,
    quantile,
)

LEVELS = ("all", "size", "kind, size", "team", "team, size", "team, kind, size", "team, user, what, kind, size")
"""Keys from coarse to fine. A team's name says more than a size, so it comes after it; each level leans on the one before."""
TEAM_LEVEL = 3
EVIDENCE_WEIGHT_MIN = 3.0
"""Ended runs (decayed) from which a level counts as known."""
KEY_COUNT_MAX = 100_000
RUN_COUNT_MAX = 65_536
EVICTION_LOOKS_MAX = 64
"""Keys looked at for one without running jobs before a new key is refused."""
BURST_S = 600.0
"""Memory of the start rate: sweeps come seconds apart, and look alike."""
RUNNING_VOTES_MAX = 512
"""Running jobs of a key that are looked at, newest first: bounds the time of a forecast."""
GROWTH = 256
NEVER_MS = np.int64(-1)
"""`_last_end_ms` of a key of which no end was seen here; ends that were seeded have other clocks."""
UNSEEN = np.full(4, np.nan)
"""`View.recent` of a subject that nothing is known of."""
NOBODY = (float("nan"), float("nan"))
"""`View.going` where none of the very thing runs."""

Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """Who runs what on how many GPUs. An unknown kind, user or what is "" and leaves the levels that need it empty."""

    team: str
    gpus: int
    kind: str = ""
    user: str = ""
    what: str = ""

    def key_per_level(self) -> tuple[Key | None, ...]:
        """One key per level, None where a part is unknown."""
        named = bool(self.kind)
        full = named and bool(self.user)
        return (
            ("all",),
            ("size", self.gpus),
            ("kind", self.kind, self.gpus) if named else None,
            ("team", self.team),
            ("team-size", self.team, self.gpus),
            ("team-kind", self.team, self.kind, self.gpus) if named else None,
            ("full", self.team, self.user, self.what, self.kind, self.gpus) if full else None,
        )


@dataclass(frozen=True, slots=True)
class Seed:
    """A history at rest: what a forecaster knows before its first event. One row per key, no running jobs."""

    keys: tuple[Key, ...]
    ends: Counts
    exposure: Counts
    starts: Indices
    last_log_s: Floats
    last_rank: Indices
    last_start_ms: Indices
    newest: Counts
    newest_ended: Indices
    batches: Counts
    batch: Indices

    def digest(self) -> bytes:
        """Equal seeds have equal ones."""
        found = sha256(repr(self.keys).encode())
        for field in fields(self)[1:]:
            found.update(getattr(self, field.name).tobytes())
        return found.digest()


@dataclass(frozen=True, slots=True)
class View:
    """What the history says about one subject at one moment.

    `hazards`: (level, memory, bin), `weights`: ended runs behind each level, `known`: finest level with evidence or -1,
    `last_log_s`: newest ended run of that level, `burst`: its starts in about ten minutes, `recent`: middle of its last five ended
    runs, P90 of its last twenty, middle and P90 over its last batches. `quiet_s`: since the newest end of the finest key, NaN if
    none was seen here. `going`: log seconds for which runs of the finest key have lasted that go on, their middle and the oldest.
    """

    hazards: Floats
    weights: Floats
    known: int
    last_log_s: float
    burst: float
    recent: Floats
    quiet_s: float
    going: tuple[float, float] = NOBODY

    def log_quantile(self, share: float, *, survived_s: float = 0.0, scale: int = BASE_SCALE, level: int = -1) -> float:
        """Log seconds of total run time, given that `survived_s` are over."""
        survived = log(survived_s) if survived_s > 1.0 else 0.0
        return float(quantile(self.hazards[level, scale], share, survived))


def clamped_log_s(duration_s: float) -> float:
    """Log seconds on the grid; anything not finite or below a second counts as one second."""
    if not isfinite(duration_s):
        return 0.0
    return log(min(max(duration_s, 1.0), DURATION_S_MAX))


class DurationHistory:
    """Runs in, views out. Deterministic: the same calls give the same floats."""

    def __init__(
        self, seed: Seed | None = None, *, key_count_max: int = KEY_COUNT_MAX, run_count_max: int = RUN_COUNT_MAX
    ) -> None:
        self._key_count_max = key_count_max
        self._run_count_max = run_count_max
        # Least recently used first. A plain dict would do, but its front fills with deleted places that every eviction walks over.
        self._slots: OrderedDict[Key, int] = OrderedDict()
        self._rates = decay_rates()
        self._ends = np.zeros((0, len(HALF_LIVES), BINS), np.float32)
        self._exposure = np.zeros((0, len(HALF_LIVES), BINS), np.float32)
        self._starts = np.zeros(0, np.int64)
        self._first = np.zeros(0, np.int64)
        self._last_log_s = np.zeros(0)
        self._last_rank = np.zeros(0, np.int64)
        self._last_start_ms = np.zeros(0, np.int64)
        self._last_end_ms = np.full(0, NEVER_MS)
        self._burst = np.zeros(0)
        self._recent = RecentRuns()
        self._next = np.zeros((0, len(LEVELS)), np.int64)
        self._previous = np.zeros((0, len(LEVELS)), np.int64)
        self._run_start_ms = np.zeros(0, np.int64)
        self._run_rank = np.zeros((0, len(LEVELS)), np.int64)
        self._run_slots = np.zeros((0, len(LEVELS)), np.int64)
        self._run_batch = np.zeros((0, len(LEVELS)), np.int64)
        self._free_runs: list[int] = []
        self._run_count = 0
        self.ended = 0
        """Runs seen ending by themselves since the start of this history; what was seeded does not count."""
        if seed is not None:
            self._plant(seed)

    def at_rest(self) -> Seed:
        """A copy of what is known; runs that go on are left out, so cut them first if they should count."""
        order = np.array(list(self._slots.values()), np.int64)
        return Seed(
            keys=tuple(self._slots),
            ends=self._ends[order],
            exposure=self._exposure[order],
            starts=self._starts[order],
            last_log_s=self._last_log_s[order],
            last_rank=self._last_rank[order],
            last_start_ms=self._last_start_ms[order],
            newest=self._recent.newest[order],
            newest_ended=self._recent.ended[order],
            batches=self._recent.batches[order],
            batch=self._recent.batch[order],
        )

    def _plant(self, seed: Seed) -> None:
        count = min(len(seed.keys), self._key_count_max)
        self._grow_keys(count)
        self._slots = OrderedDict((key, slot) for slot, key in enumerate(seed.keys[:count]))
        self._ends[:] = seed.ends[:count]
        self._exposure[:] = seed.exposure[:count]
        self._starts[:] = seed.starts[:count]
        self._last_log_s[:] = seed.last_log_s[:count]
        self._last_rank[:] = seed.last_rank[:count]
        self._last_start_ms[:] = seed.last_start_ms[:count]
        self._recent.newest[:], self._recent.ended[:] = seed.newest[:count], seed.newest_ended[:count]
        self._recent.batches[:], self._recent.batch[:] = seed.batches[:count], seed.batch[:count]

    @property
    def key_count(self) -> int:
        return len(self._slots)

    @property
    def running(self) -> int:
        return self._run_count - len(self._free_runs)

    def start(self, subject: Subject, start_ms: int) -> int:
        """A run began; the number names it until `finish`. -1 when there is no room: it will not be learnt from."""
        run = self._new_run()
        if run < 0:
            return -1
        slots = self._claim(subject)
        age(self._ends, self._exposure, slots, self._rates)
        self._run_start_ms[run] = start_ms
        self._run_slots[run] = slots
        for level, slot in enumerate(slots):
            if slot < 0:
                continue
            self._starts[slot] += 1
            self._run_rank[run, level] = self._starts[slot]
            quiet_s = (start_ms - self._last_start_ms[slot]) / 1000.0
            self._run_batch[run, level] = self._recent.started(slot, quiet_s)
            self._burst[slot] = 1.0 + self._burst_now(slot, start_ms)
            self._last_start_ms[slot] = max(start_ms, self._last_start_ms[slot])
            follower = self._first[slot]
            self._next[run, level], self._previous[run, level] = follower, -1
            if follower >= 0:
                self._previous[follower, level] = run
            self._first[slot] = run
        return run

    def finish(self, run: int, duration_s: float, *, observed: bool) -> None:
        """A run is over: by itself after `duration_s` (observed), or cut from outside (a lower bound)."""
        if run < 0:
            return
        log_s = clamped_log_s(duration_s)
        slots = self._run_slots[run]
        since = np.where(slots >= 0, self._starts[slots] - self._run_rank[run], 0)
        add_run(self._ends, self._exposure, slots, since, self._rates, log_s, observed)
        if observed:
            self.ended += 1
            end_ms = self._run_start_ms[run] + round(exp(log_s) * 1000)
            own = slots[slots >= 0]
            self._last_end_ms[own] = np.maximum(self._last_end_ms[own], end_ms)
            self._recent.finished(slots, self._run_batch[run], log_s)
            for level, slot in enumerate(slots):
                if slot >= 0 and self._run_rank[run, level] > self._last_rank[slot]:
                    self._last_rank[slot], self._last_log_s[slot] = self._run_rank[run, level], log_s
        self.forget(run)

    def forget(self, run: int) -> None:
        """Drop a run without learning from it."""
        if run < 0:
            return
        for level, slot in enumerate(self._run_slots[run]):
            if slot < 0:
                continue
            before, after = self._previous[run, level], self._next[run, level]
            if before >= 0:
                self._next[before, level] = after
            else:
                self._first[slot] = after
            if after >= 0:
                self._previous[after, level] = before
        self._run_slots[run] = -1
        self._free_runs.append(run)

    def knows(self, subject: Subject) -> bool:
        """Whether the finest key of this subject has been seen at all: cheap, before asking for a whole view."""
        key = subject.key_per_level()[-1]
        return key is not None and key in self._slots

    def view(self, subject: Subject, now_ms: int, prior: Floats, *, skipped: int = -1) -> View:
        """What is known now. `prior`: hazard per bin where nothing is; `skipped`: a run that must not vote on itself."""
        keys = subject.key_per_level()
        slots = np.array([-1 if key is None else self._slots.get(key, -1) for key in keys], np.int64)
        hazards = np.empty((len(LEVELS), len(HALF_LIVES), BINS))
        weights = np.empty(len(LEVELS))
        curves(
            self._ends, self._exposure, self._starts, slots, self._first, self._next, self._run_start_ms, self._run_rank,
            self._rates, prior, now_ms, skipped, hazards, weights,
        )  # fmt: skip
        known = max((level for level in range(len(LEVELS)) if weights[level] >= EVIDENCE_WEIGHT_MIN), default=-1)
        if known < 0:
            return View(hazards, weights, -1, float("nan"), 0.0, UNSEEN, float("nan"))
        slot = slots[known]
        level = max(level for level, key in enumerate(keys) if key is not None)
        finest = slots[level]
        last_end_ms = NEVER_MS if finest < 0 else self._last_end_ms[finest]
        return View(
            hazards,
            weights,
            known,
            float(self._last_log_s[slot]),
            self._burst_now(slot, now_ms),
            self._recent_of(int(slot), known, now_ms, skipped),
            float("nan") if last_end_ms == NEVER_MS else max(0.0, (now_ms - last_end_ms) / 1000.0),
            NOBODY if finest < 0 else ages(self._run_start_ms[self._going(int(finest), level, skipped)], now_ms),
        )

    def _going(self, slot: int, level: int, skipped: int) -> Indices:
        """Runs of a key that go on, newest first."""
        going = np.empty(RUNNING_VOTES_MAX, np.int64)
        return going[: newest_running(self._first[slot], self._next, level, skipped, going)]

    def _recent_of(self, slot: int, level: int, now_ms: int, skipped: int) -> Floats:
        runs = self._going(slot, level, skipped)
        return self._recent.middle_and_high(slot, self._run_start_ms[runs], self._run_batch[runs, level], now_ms)

    def _burst_now(self, slot: int, now_ms: int) -> float:
        quiet_s = max(0.0, (now_ms - self._last_start_ms[slot]) / 1000.0)
        return float(self._burst[slot]) * exp(-quiet_s / BURST_S)

    def _claim(self, subject: Subject) -> Indices:
        """Slots of all levels, made where missing; touching a key makes it the most recently used."""
        slots = np.full(len(LEVELS), -1, np.int64)
        for level, key in enumerate(subject.key_per_level()):
            if key is None:
                continue
            slot = self._slots.pop(key, -1)
            if slot < 0:
                slot = self._new_slot()
            if slot >= 0:
                self._slots[key] = slot
                slots[level] = slot
        return slots

    def _new_slot(self) -> int:
        if len(self._slots) < self._key_count_max:
            slot = len(self._slots)
            if slot == len(self._starts):
                self._grow_keys(min(max(GROWTH, 2 * slot), self._key_count_max))
        else:
            slot = self._evicted()
            if slot < 0:
                return -1
        self._ends[slot] = 0.0
        self._exposure[slot] = 0.0
        self._starts[slot] = self._last_rank[slot] = self._last_start_ms[slot] = 0
        self._last_log_s[slot] = self._burst[slot] = 0.0
        self._last_end_ms[slot] = NEVER_MS
        self._recent.clear(slot)
        self._first[slot] = -1
        return slot

    def _evicted(self) -> int:
        for looked, (key, slot) in enumerate(self._slots.items()):
            if looked == EVICTION_LOOKS_MAX:
                break
            if self._first[slot] < 0:
                del self._slots[key]
                return slot
        return -1

    def _grow_keys(self, count: int) -> None:
        extra = count - len(self._starts)
        self._ends = np.concatenate([self._ends, np.zeros((extra, *self._ends.shape[1:]), np.float32)])
        self._exposure = np.concatenate([self._exposure, np.zeros((extra, *self._exposure.shape[1:]), np.float32)])
        self._starts = np.concatenate([self._starts, np.zeros(extra, np.int64)])
        self._first = np.concatenate([self._first, np.full(extra, -1, np.int64)])
        self._last_log_s = np.concatenate([self._last_log_s, np.zeros(extra)])
        self._last_rank = np.concatenate([self._last_rank, np.zeros(extra, np.int64)])
        self._last_start_ms = np.concatenate([self._last_start_ms, np.zeros(extra, np.int64)])
        self._last_end_ms = np.concatenate([self._last_end_ms, np.full(extra, NEVER_MS)])
        self._burst = np.concatenate([self._burst, np.zeros(extra)])
        self._recent.grow(extra)

    def _new_run(self) -> int:
        if self._free_runs:
            return self._free_runs.pop()
        if self._run_count >= self._run_count_max:
            return -1
        run = self._run_count
        if run == len(self._run_start_ms):
            extra = min(max(GROWTH, run), self._run_count_max - run)
            levels = len(LEVELS)
            self._next = np.concatenate([self._next, np.full((extra, levels), -1, np.int64)])
            self._previous = np.concatenate([self._previous, np.full((extra, levels), -1, np.int64)])
            self._run_rank = np.concatenate([self._run_rank, np.zeros((extra, levels), np.int64)])
            self._run_slots = np.concatenate([self._run_slots, np.full((extra, levels), -1, np.int64)])
            self._run_batch = np.concatenate([self._run_batch, np.zeros((extra, levels), np.int64)])
            self._run_start_ms = np.concatenate([self._run_start_ms, np.zeros(extra, np.int64)])
        self._run_count += 1
        return run
