"""Time words against sets of steps, around the seams at 0, 63, 64, 65 and 96."""

from __future__ import annotations

import numpy as np
import pytest

from services.allocator.core.kernels.bits import blocked_starts, first_set, mask_below, run_after, run_before, span

EDGES = (0, 1, 31, 62, 63, 64, 65, 95, 96)


def words(steps: set[int]) -> tuple[np.uint64, np.uint64]:
    bits = sum(1 << step for step in steps)
    return np.uint64(bits & 0xFFFFFFFFFFFFFFFF), np.uint64(bits >> 64)


def steps_of(lo: np.uint64, hi: np.uint64) -> set[int]:
    bits = int(lo) | int(hi) << 64
    return {step for step in range(128) if bits >> step & 1}


@pytest.mark.parametrize("start", EDGES)
@pytest.mark.parametrize("end", EDGES)
def test_span(start: int, end: int) -> None:
    assert steps_of(*span(start, end, True)) == set(range(start, end))


@pytest.mark.parametrize("length", [1, 2, 3, 7, 31, 32, 33, 62, 63, 64, 65, 95, 96, 97])
@pytest.mark.parametrize("busy", [{0}, {63}, {64}, {95}, {5, 40, 70}, set(), {62, 63, 64, 65}])
def test_blocked_starts(length: int, busy: set[int]) -> None:
    expected = {start for start in range(128) if busy & set(range(start, start + length))}
    assert steps_of(*blocked_starts(*words(busy), length, True)) == expected
    low = {step for step in busy if step < 64}
    expected = {start for start in range(64) if low & set(range(start, start + length))}
    assert steps_of(blocked_starts(words(low)[0], np.uint64(0), length, False)[0], np.uint64(0)) == expected


@pytest.mark.parametrize("at", EDGES)
@pytest.mark.parametrize("busy", [set(), {0}, {63}, {64}, {10, 80}, {95}])
def test_idle_runs(at: int, busy: set[int]) -> None:
    before = 0
    while at - before - 1 >= 0 and at - before - 1 not in busy:
        before += 1
    after = 0
    while at + after < 96 and at + after not in busy:
        after += 1
    assert run_before(*words(busy), at) == before
    assert run_after(*words(busy), at, 96) == after


def test_lowest_step_and_masks() -> None:
    assert first_set(*words({64})) == 64
    assert first_set(*words({95, 3})) == 3
    assert first_set(*words(set())) == 128
    assert [int(mask_below(n)).bit_count() for n in (-5, 0, 1, 63, 64, 70)] == [0, 0, 1, 63, 64, 64]
