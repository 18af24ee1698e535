"""Replay: a real day from public traces, played through the real pipeline, and compared with simple policies on the same day.

Inputs: the bundled traces (`data/`), a seed. Outputs: events on `job-events` and `demand` like any upstream would publish,
and a comparison of FIFO, priority backfill and gpugrid in one `Outcome` per policy.
Invariants: the same (trace, day, seed, size) gives the same bytes; every policy is measured by the one function in
`core/outcome.py`; nobody but the simulated driver sees true durations.
A composition root: it may import the other services' public handlers and loops, nothing imports it but the console.

Reading order: `core/day.py` (what a day is), `core/workload.py` (how traces become one), `core/baselines.py`,
`core/outcome.py`, `shell/publisher.py`, `shell/collect.py`, then `simulate.py` (memory bus, virtual clock) and `demo.py`
(Kafka, scaled clock). The rules in words: docs/workload.md.
"""
