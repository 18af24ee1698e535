"""The allocator: plans each pool's grid (GPU × time step → job) and decides, one record at a time, what starts where.

In: `jobs`, `node-states`, `commands`, `executions`, `forecasts`. Out: `decisions` (the truth), then its projections
`placements` and `job-status`, and `snapshots`.

Invariants: the grid is legal after every event and checked by code that shares nothing with the planner; a record counts iff its
sequence is the last + 1 and its parent the last accepted id; input positions live in the log; every waiting job has a reason, set
in the same record as the change that caused it; same state, inputs and time give the same bytes.

Reading order: `core/state.py`, `core/decide.py` (fold → plan → enact), `core/pose.py` (state to planning problem), `core/heuristic.py`
and `core/kernels/`, `core/advice.py` (full mode's answers), `core/commit.py`, `core/verify_commit.py`, `core/reader.py`; then
`shell/loop.py`, `shell/owner.py`, `shell/log.py`, `shell/full_mode.py`.
"""
