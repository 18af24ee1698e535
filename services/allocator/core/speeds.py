"""How long a job takes in one pool, from what is believed of the pool it prefers. The one place where speeds become time.

Forecasts, and all that is learnt from, are in the time of a job's preferred pool (`job.pools[0]`, speed 1); a pool of speed 2 needs half
of it. Without speeds all pools are alike. Where speeds come from: `services/intake/core/speeds.py`.
"""

from __future__ import annotations

from services.allocator.core.config import Policy
from services.allocator.core.state import Job


def speed_in(job: Job, pool: str) -> float:
    """How fast the job runs in the pool beside the one it prefers."""
    return job.speeds.get(pool, 1.0)


def expected_s(job: Job, gpus: int, policy: Policy, pool: str) -> tuple[float, float]:
    """(P50, P90) seconds of the whole job on `gpus` GPUs of the pool, capped by the declared limit; the prior where none is known."""
    limit, speed = job.spec.time_limit_s, speed_in(job, pool)
    for size in job.forecast:
        if size.gpus == gpus:
            return min(size.p50_s / speed, limit), min(size.p90_s / speed, limit)
    scale = max(job.spec.sizes) / gpus / speed
    return min(policy.prior_p50_s * scale, limit), min(policy.prior_p90_s * scale, limit)
