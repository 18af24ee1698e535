"""The same problems give the same bytes in another process, under another hash seed, and with the compiler off."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DIGEST = """
import hashlib, numpy as np
from services.allocator.core.heuristic import plan_fast
from tests.oracle.boards import random_board
digest = hashlib.sha256()
for seed in range(40):
    plan = plan_fast(random_board(seed), 12, seed)
    for array in (plan.start, plan.first_gpu, plan.option, plan.segments, plan.reason):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(str(plan.value).encode())
print(digest.hexdigest())
"""


def digest(**variables: str) -> str:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)} | variables
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", DIGEST]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=110, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("variables", [{"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"}, {"NUMBA_DISABLE_JIT": "1"}])
def test_plans_are_the_same_bytes(variables: dict[str, str]) -> None:
    assert digest(**variables) == digest(PYTHONHASHSEED="0")
