"""A sweep in parts adds up to the sweep in one, whatever the order; a seed is never counted twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.system.sweep import Outcome, Swept, read_part, write_part


def part(first: int, count: int, *failing: int) -> Swept:
    found = Swept(ranges=[(first, count)])
    for seed in range(first, first + count):
        bad = ("broken",) if seed in failing else ()
        found.add(Outcome(seed, f"d{seed}", bad, seed / 10, {"deaths": seed}, ("crashes", f"k{seed % 2}")))
    return found


def test_parts_add_up_through_files(tmp_path: Path) -> None:
    whole = part(0, 10, 3, 8)
    for order in ((0, 4, 6), (6, 0, 4)):
        total = Swept()
        for first in order:
            path = tmp_path / f"{first}.json"
            write_part(path, part(first, {0: 4, 4: 2, 6: 4}[first], 3, 8))
            total.merge(read_part(path))
        assert (total.seeds, total.failures, total.counts) == (whole.seeds, whole.failures, whole.counts)
        assert total.faults == whole.faults == {"crashes": 10, "k0": 5, "k1": 5}
        assert (total.slowest_s, round(total.took_s, 6)) == (whole.slowest_s, round(whole.took_s, 6))
        assert sorted(outcome.seed for outcome in total.failed) == [3, 8]
        assert total.ranges == [(0, 4), (4, 2), (6, 4)]


@pytest.mark.parametrize(("first", "count"), [(0, 5), (4, 1), (4, 9), (0, 1)])
def test_a_seed_is_not_counted_twice(first: int, count: int) -> None:
    total = part(0, 5)
    with pytest.raises(ValueError, match="in two parts"):
        total.merge(part(first, count))


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{]")
    with pytest.raises(ValueError, match="no part of a sweep"):
        read_part(tmp_path / "x.json")
