"""Growth of memory per 100,000 events: of what has settled after its last start, and only if that is long enough."""

from __future__ import annotations

import pytest

from bench.soak.resources import growth_mib

EVENTS = 300_000


def life(begun: int, ended: int) -> list[tuple[int, float]]:
    """It fills 500 MiB at once in its first 50,000 events and grows by 20 MiB per 100,000."""
    return [
        (at, 100.0 + min(500.0, (at - begun) / 100) + 20.0 * (at - begun) / 100_000)
        for at in range(begun, ended + 1, 2_000)
    ]


@pytest.mark.parametrize("begun", [0, 100_000, 200_000])
def test_what_fills_after_a_start_is_no_growth_whenever_that_is(begun: int) -> None:
    assert growth_mib(life(begun, EVENTS), EVENTS) == 20.0


@pytest.mark.parametrize("begun", [220_000, 290_000, 300_000])
def test_too_short_a_life_tells_nothing(begun: int) -> None:
    assert growth_mib(life(begun, EVENTS), EVENTS) is None
