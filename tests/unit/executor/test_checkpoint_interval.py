"""How often a checkpoint is asked for: Young's and Daly's estimates, against the waste they are to minimise."""

from __future__ import annotations

from math import exp, sqrt

import pytest

from schemas.jobs import CheckpointMode, CheckpointPolicy
from services.executor.core.checkpoint_interval import COST_S_ASSUMED, INTERVAL_S_MIN, daly_s, interval_s

DAY_S = 86_400.0
SIGNAL = CheckpointPolicy(mode=CheckpointMode.SIGNAL)


def expected_s(every_s: float, cost_s: float, mtbf_s: float) -> float:
    """Expected time per second of work with exponential failures and no time to restart (Daly 2006, eq. 20)."""
    return mtbf_s * (exp((every_s + cost_s) / mtbf_s) - 1) / every_s


@pytest.mark.parametrize("cost_s", [1.0, 30.0, 600.0])
@pytest.mark.parametrize("mtbf_s", [3600.0, DAY_S, 100 * DAY_S])
def test_no_other_interval_loses_noticeably_less(cost_s, mtbf_s):
    chosen = daly_s(cost_s, mtbf_s)
    best = min(expected_s(chosen * factor, cost_s, mtbf_s) for factor in (0.3, 0.5, 0.8, 0.9, 1.1, 1.25, 2.0, 3.0))
    assert expected_s(chosen, cost_s, mtbf_s) <= best * 1.0001


def test_cheap_checkpoints_follow_young():
    assert daly_s(1.0, 100 * DAY_S) == pytest.approx(sqrt(2 * 100 * DAY_S), rel=0.01)


def test_a_checkpoint_that_costs_more_than_is_lost_is_made_once_per_failure():
    assert daly_s(10_000.0, 3600.0) == 3600.0


@pytest.mark.parametrize(
    ("policy", "measured_s", "nodes", "wanted"),
    [
        (CheckpointPolicy(), 5.0, 1, None),
        (CheckpointPolicy(mode=CheckpointMode.FILE, interval_s=900.0), 5.0, 8, 900.0),
        (CheckpointPolicy(mode=CheckpointMode.SIGNAL, interval_s=1.0), 5.0, 8, INTERVAL_S_MIN),
        (SIGNAL, 0.0, 1, daly_s(COST_S_ASSUMED, DAY_S)),
        (CheckpointPolicy(mode=CheckpointMode.SIGNAL, cost_s=7.0), 0.0, 1, daly_s(7.0, DAY_S)),
        (CheckpointPolicy(mode=CheckpointMode.SIGNAL, cost_s=7.0), 9.0, 1, daly_s(9.0, DAY_S)),
        (SIGNAL, 20.0, 16, daly_s(20.0, DAY_S / 16)),
        (SIGNAL, 0.0001, 10_000, INTERVAL_S_MIN),
    ],
)
def test_declared_then_measured_then_announced_then_assumed(policy, measured_s, nodes, wanted):
    assert interval_s(policy, measured_s, nodes, DAY_S) == wanted
