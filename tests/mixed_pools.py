"""Builders for clusters of two pools: nodes of each, and jobs that accept both with speeds beside the first."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from schemas.jobs import JobAccepted
from schemas.nodes import NodeStateChanged
from schemas.records import Now
from services.allocator.core.config import Policy
from services.allocator.core.fold import fold
from services.allocator.core.state import Changes, State, forget_index
from tests import build

FAST, SLOW = "a-fast", "b-slow"
SPEEDS = (0.25, 0.5, 0.5, 0.7, 1.0, 1.6)


def node_of(pool: str, name: str, *, gpus: int = 2, order: int = 0, **changed) -> NodeStateChanged:
    """A node of one of the pools."""
    return replace(build.node(name, gpus=gpus, order=order, **changed), pool=pool)


def accepted(
    job_id: str, *sizes: int, pools: tuple[str, ...] = (FAST, SLOW), speed: float = 0.5, **changed
) -> JobAccepted:
    """A job of these pools, the first one preferred; every other one is `speed` times as fast."""
    event = build.accepted(job_id, *sizes, **changed)
    speeds = {pool: speed if at else 1.0 for at, pool in enumerate(pools)} if len(pools) > 1 and speed != 1.0 else {}
    return replace(event, pools=list(pools), speeds=speeds, speeds_from="job" if speeds else "")


def random_cluster(seed: int, policy: Policy, *, jobs: int = 4, nodes: tuple[int, ...] = (2, 2)) -> tuple[State, Now]:
    """A state with one node per entry of `nodes`, alternating between the pools, and waiting jobs; most of them accept both pools."""
    dice, state = Random(f"{seed}/mixed"), State(cluster=build.CLUSTER)
    now = Now(build.START_MS, build.START_MS)
    events: list = [node_of((FAST, SLOW)[at % 2], f"n{at}", gpus=gpus, order=at // 2) for at, gpus in enumerate(nodes)]
    for number in range(jobs):
        sizes = dice.choice([(1,), (1,), (2,), (1, 2)])
        pools = dice.choice([(FAST, SLOW)] * 3 + [(SLOW, FAST), (FAST,), (SLOW,)])
        job_id = f"j{number}"
        job = accepted(
            job_id, *sizes, pools=pools, speed=dice.choice(SPEEDS), priority=dice.randint(1, 6),
            time_limit_s=1e6,
        )  # fmt: skip
        steps = dice.randint(1, policy.steps)
        events += [
            job, build.forecast(job_id, {size: policy.step_s * steps * (sizes[0] / size) ** 0.9 for size in sizes})
        ]  # fmt: skip
    for event in events:
        fold(state, event, "", now, Changes())
    forget_index(state)
    return state, now
