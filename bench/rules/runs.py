"""One row of the rules table: gpugrid's allocator with a document of rules in force, or another scheduler on the same jobs.

Durations are known to whoever asks, so that the differences are those of rules; Slurm runs a second time with the declared limits.
"""

from __future__ import annotations

import time

from bench.rules.workloads import shared_day
from services.allocator.core.config import Policy
from services.allocator.shell.warmup import use_kernel_cache
from services.replay.backtest import LAUNCH_S
from services.replay.core.baselines import Played, play
from services.replay.core.beliefs import Beliefs, Level
from services.replay.core.kueue import kueue
from services.replay.core.occurrences import Learner
from services.replay.core.rolling import Rolling
from services.replay.core.rule_findings import RuleFinding, rule_finding
from services.replay.core.rulebook import (
    MAXIMUM_ROWS,
    SharedDay,
    cluster_queues,
    day_of,
    maxima_of,
    orders_of,
    rules_of,
    site_of,
)
from services.replay.core.slurm import Multifactor

KUEUE_STRICT, KUEUE_BEST_EFFORT = "Kueue, StrictFIFO", "Kueue, BestEffortFIFO"
SLURM, SLURM_LIMITS = "Slurm, told durations", "Slurm, declared limits"
BASELINES = (KUEUE_STRICT, KUEUE_BEST_EFFORT, SLURM, SLURM_LIMITS)


def run_one(trace: str, row: str) -> tuple[RuleFinding, float]:
    """One row of one trace, and the processor time it took; the same finding in any process."""
    use_kernel_cache()
    work = shared_day(trace)
    begun_s = time.process_time()
    ours = row not in BASELINES
    played = _gpugrid(work, row) if ours else _baseline(work, row)
    one = rule_finding(work, row, played, ours=ours, capped=_capped(work, row), launch_s=LAUNCH_S)
    return one, time.process_time() - begun_s


def _gpugrid(work: SharedDay, row: str) -> Played:
    policy, day = Policy(forecast_wait_ms=0), day_of(work, row)
    beliefs, orders = Beliefs(day, Level.TRUE), orders_of(work, row)
    return Rolling(day, beliefs, policy, launch_s=LAUNCH_S, orders=orders, site=site_of(work, row)).play()


def _baseline(work: SharedDay, row: str) -> Played:
    if row in (KUEUE_STRICT, KUEUE_BEST_EFFORT):
        queues = {era.from_ms: cluster_queues(work, era) for era in work.eras}
        starts = kueue(lambda now_ms: queues[work.era_at(now_ms).from_ms], strict=row == KUEUE_STRICT)
        return play(work.day, starts, launch_s=LAUNCH_S)
    level = Level.TRUE if row == SLURM else Level.LIMIT
    users = sorted({(job.spec.team, job.spec.user) for job in work.day.jobs})
    slurm = Multifactor(work.eras[0].parts, users)
    return play(work.day, slurm, Learner(work.day, Beliefs(work.day, level)), launch_s=LAUNCH_S)


def _capped(work: SharedDay, row: str) -> dict[int, dict[str, int]] | None:
    """The maxima in force in a row."""
    if row in (KUEUE_STRICT, KUEUE_BEST_EFFORT):
        return {era.from_ms: maxima_of(work, era) for era in work.eras}
    if row not in MAXIMUM_ROWS:
        return None
    pool = work.day.pool
    return {
        era.from_ms: {
            team: rules.maximum.get(pool, rules.guaranteed.get(pool, 0))
            for team, rules in rules_of(work, row, era).teams.items()
        }
        for era in work.eras
    }
