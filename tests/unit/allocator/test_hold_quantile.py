"""How long a queued job counts as holding GPUs that are promised to somebody else: between its P50 and its P90."""

from __future__ import annotations

import pytest

from services.allocator.core.pose import quantile_s


def test_its_ends_are_the_forecasts_own_quantiles() -> None:
    assert quantile_s(600.0, 7200.0, 0.5) == pytest.approx(600.0)
    assert quantile_s(600.0, 7200.0, 0.9) == pytest.approx(7200.0)


def test_it_grows_with_the_quantile_and_stays_between() -> None:
    found = [quantile_s(600.0, 7200.0, share / 100) for share in range(50, 91, 5)]
    assert found == sorted(found)
    assert 600.0 <= found[0] <= found[-1] <= 7200.0 + 1e-6


def test_certainty_has_no_spread_and_nothing_divides_by_zero() -> None:
    assert quantile_s(900.0, 900.0, 0.7) == 900.0
    assert quantile_s(0.0, 900.0, 0.7) == 900.0
