"""Compile the planner's kernels before anything waits for them.

numba's disk cache doesn't notice a change in another file, so the cache folder's name holds a hash of all kernel
sources and of the versions that compile them. Call `use_kernel_cache` before the first import of
`services.allocator.core.heuristic`, and `warm_up` before joining a consumer group: a cold start compiles for tens of
seconds, a warm one loads in about a second.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

CACHE_VARIABLE = "NUMBA_CACHE_DIR"


def kernel_hash() -> str:
    """Hash of the kernel sources and compiler versions."""
    digest = hashlib.sha256(f"{sys.version}/{version('numba')}/{version('numpy')}".encode())
    core = Path(__file__).parent.parent / "core"
    for path in (core / "columns.py", *sorted((core / "kernels").glob("*.py"))):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def use_kernel_cache(cache_root: Path | None = None) -> Path:
    """Point numba at a cache folder of its own for exactly these kernels; returns the folder.

    Respects NUMBA_CACHE_DIR if it is already set. Must run before numba is imported.
    """
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    root = cache_root or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpugrid"
    folder = root / f"kernels-{kernel_hash()}"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[CACHE_VARIABLE] = str(folder)
    if "numba" in sys.modules:
        from numba.core import config  # numba has read the environment already: tell it again

        config.reload_config()
    return folder


def warm_up() -> float:
    """Run every kernel once on small boards; returns the seconds it took."""
    begin = time.perf_counter()
    from services.allocator.core.heuristic import kept_rows, plan_fast, plan_followed, plan_repaired
    from services.allocator.core.problem import Application, Option, QueuedJob, build_problem

    for steps in (24, 96):
        problem = build_problem(
            steps=steps,
            node_sizes=(4, 4),
            queued=[QueuedJob(id=f"w{i}", priority=1000, options=(Option(1, 2), Option(2, 1))) for i in range(9)],
            applications=[Application(id="a", priority=1000, demand=(1,) * steps, held=(0,))],
        )
        plan = plan_repaired(problem, plan_fast(problem, iterations=2, seed=0))
        plan_followed(problem, kept_rows(plan.start, plan.first_gpu, plan.option), plan.segments, iterations=2)
    return time.perf_counter() - begin
