"""Three hundred seeds of everything that may go wrong: no promise is broken. `make simulate` runs ten thousand."""

from __future__ import annotations

import pytest

from tests.simulation.system.sweep import command_of, sweep

SEEDS = 300


@pytest.mark.timeout(900)
def test_three_hundred_seeds_keep_every_promise():
    swept = sweep(range(SEEDS))
    told = [f"{outcome.violations[0]}\n  see it with: {command_of(outcome.seed)}" for outcome in swept.failed]
    assert swept.seeds == SEEDS
    assert not told, "\n".join(told)
    # The faults did their work: processes died, writers lost races, jobs ran, and some lost their place by rule.
    assert swept.counts["deaths"] > SEEDS
    assert swept.counts["refused decisions"] > SEEDS / 10
    assert swept.counts["processes"] > 20 * SEEDS
    assert swept.counts["places taken"] > SEEDS / 20
