"""How often a running job is asked to save its work: declared, or from what a checkpoint costs and what is at risk.

Owns: the estimate. A checkpoint every T seconds costs C/T of the time and loses T/2 per failure; with failures every M seconds
the sum is least near sqrt(2CM) (J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9),
1974); J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22(3), 2006, eq. 37, adds the terms that matter when C is no longer small against M. Both C and what is lost grow with
the GPUs of the job, so their number cancels out; the nodes don't: a gang breaks when any of them does. Refuses: clocks.
Read next: `shell/saving.py`.
"""

from __future__ import annotations

from math import sqrt

from schemas.jobs import CheckpointMode, CheckpointPolicy

NODE_MTBF_S = 154 * 86_400.0
"""6.5 failures per 1,000 node-days of 8-GPU nodes: the worse of two research clusters in Kokolis et al., "Revisiting Reliability in
Large-Scale Machine Learning Research Clusters", 2024. The executor's configuration may know better."""
COST_S_ASSUMED = 60.0
"""Until one was declared or measured: tens of GB to a shared disk."""
INTERVAL_S_MIN = 30.0
"""Whatever is declared or computed: the answer to one request should be on disk before the next one comes."""


def daly_s(cost_s: float, mtbf_s: float) -> float:
    """Seconds between two checkpoints that cost `cost_s` each, where something fails every `mtbf_s` seconds on average."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    half = cost_s / (2 * mtbf_s)
    return sqrt(2 * cost_s * mtbf_s) * (1 + sqrt(half) / 3 + half / 9) - cost_s


def interval_s(policy: CheckpointPolicy, measured_s: float, nodes: int, node_mtbf_s: float) -> float | None:
    """Seconds from one checkpoint to the next request; None: this job can't save. `measured_s` 0: none was written yet."""
    if policy.mode is CheckpointMode.NONE:
        return None
    if policy.interval_s > 0:
        return max(INTERVAL_S_MIN, policy.interval_s)
    cost_s = measured_s or policy.cost_s or COST_S_ASSUMED
    return max(INTERVAL_S_MIN, daly_s(cost_s, node_mtbf_s / max(1, nodes)))
