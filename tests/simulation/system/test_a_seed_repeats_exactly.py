"""A seed is a run: the same bytes in every topic, in every process, whatever Python's hashes are seeded with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.simulation.system.faults import KINDS, weather_of
from tests.simulation.system.run import run_seed
from tests.simulation.system.world import build_world

ROOT = Path(__file__).resolve().parents[3]
PRINT = "from tests.simulation.system.run import run_seed; print(*(run_seed(s).digest for s in ({seeds})))"
SEEDS = (2, 13)


def digests_elsewhere(hash_seed: str) -> list[str]:
    script = "from services.allocator.shell.warmup import use_kernel_cache; use_kernel_cache(); "
    script += PRINT.format(seeds=", ".join(map(str, SEEDS)))
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_another_process_with_another_hash_seed_gets_the_same_bytes():
    here = [run_seed(seed).digest for seed in SEEDS]
    assert digests_elsewhere("4711") == here
    assert len({*here, run_seed(SEEDS[0], calm=True).digest}) == 3, "other seeds and calm are other runs"


def test_every_kind_of_fault_is_met_alone_with_others_and_not_at_all():
    kinds = [weather_of(seed, build_world(seed)).kinds for seed in range(300)]
    for kind in KINDS:
        share = sum(kind in some for some in kinds) / len(kinds)
        assert 0.3 < share < 0.6, kind
    assert min(map(len, kinds)) <= 2
    assert max(map(len, kinds)) >= 10
