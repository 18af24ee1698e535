"""What decisions depend on besides state, inputs and time. Its digest is in every record, so a replay can tell."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Struct


class Policy(Struct, frozen=True, kw_only=True):
    """`step_s` × `steps`: the grid's horizon. `iterations`, `seed`: budget and seed of the heuristic.

    `forecast_wait_ms` (wall): how long a new job waits for its forecast before it goes on with the prior.
    `replan_s` (domain): the grid is planned again at least that often, since demand moves without events.
    `spare_share`: idle GPUs lent to an application on top of what it asks for, as a share of that (`spare.py`).
    `hold_quantile`: of a queued job's duration; so long it counts as holding GPUs that are promised to somebody else.
    """

    step_s: int = 900
    steps: int = 96
    iterations: int = 64
    seed: int = 0
    penalty_ratio: float = 7.0
    decay_end: float = 0.5
    forecast_wait_ms: int = 20
    replan_s: int = 300
    spare_share: float = 0.5
    hold_quantile: float = 0.7
    prior_p50_s: float = 3600.0
    prior_p90_s: float = 6 * 3600.0
    waits_max: int = 2000

    @property
    def step_ms(self) -> int:
        return self.step_s * 1000


def config_digest(policy: Policy) -> str:
    """Names a policy in the records of what was decided under it."""
    return hashlib.sha256(msgspec.json.encode(policy, order="deterministic")).hexdigest()[:16]
