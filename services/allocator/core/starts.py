"""A job gets GPUs: the one effect that says so, wherever the GPUs come from (a plan, a block that was held for it)."""

from __future__ import annotations

from schemas.decisions import Placed
from schemas.status import NodeGpus
from services.allocator.core.config import Policy
from services.allocator.core.near import staging_s
from services.allocator.core.speeds import expected_s
from services.allocator.core.state import Job, State


def start_on(state: State, job: Job, pool: str, placed: list[NodeGpus], policy: Policy) -> Placed:
    """The next attempt of a waiting job on these GPUs, expected to take what is left of its work, after its nodes have got its data."""
    gpus = sum(len(part.gpus) for part in placed)
    p50_s, p90_s = expected_s(job, gpus, policy, pool)
    left, staging = 1.0 - job.fraction, staging_s(state, job, placed)
    return Placed(
        job_id=job.job_id,
        attempt=job.attempt + 1,
        pool=pool,
        gpus=gpus,
        placed=placed,
        p50_s=p50_s * left + staging,
        p90_s=p90_s * left + staging,
        staging_s=staging,
    )
