"""A second pool of older GPUs, in some seeds: nodes of four and two, and jobs that accept both pools, faster in one of them.

Owns: a stream of draws of its own, so that a seed without it is the world it always was. In such a seed a job that names no pool accepts
both. Refuses: judging. Read next: `world.py`.
"""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from schemas.catalog import Pool
from schemas.jobs import JobSpec

MIXED_SHARE = 0.25
"""Of all seeds."""
OLD = "v100"
OLD_NODES = {"o00": 4, "o01": 2}
"""GPUs by node."""
OLD_SIZES_MAX = 4


class MixedHardware:
    """What a seed's second pool is: `on` False leaves everything as it is."""

    def __init__(self, seed: int, pool: str) -> None:
        self._dice = Random(f"{seed}/mixed")
        self.on = self._dice.random() < MIXED_SHARE
        self._speed = self._dice.choice([None, 0.4, 0.7])
        self._pool = pool

    def nodes(self) -> dict[str, int]:
        return dict(OLD_NODES) if self.on else {}

    def pools(self, first: Pool) -> dict[str, Pool]:
        """All pools of the catalog, `first` being the one of every seed. In some seeds the operator knows how fast they are."""
        if not self.on:
            return {self._pool: first}
        old = Pool(gpus=6, node_gpus=OLD_SIZES_MAX, gpu_model="V100", memory_mib=81_920, speed=self._speed)
        return {self._pool: replace(first, speed=None if self._speed is None else 1.0), OLD: old}

    def named(self, spec: JobSpec) -> JobSpec:
        """Most jobs accept any pool; some prefer the older one and know how fast it is, some accept the first alone."""
        if not self.on:
            return spec
        kind = self._dice.random()
        if kind < 0.25 and min(spec.sizes) <= OLD_SIZES_MAX:
            speeds = {OLD: 1.0, self._pool: self._dice.choice([1.5, 3.0])}
            return replace(spec, pools=[OLD, self._pool], speeds=speeds)
        return replace(spec, pools=[self._pool]) if kind < 0.4 else spec
