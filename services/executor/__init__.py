"""Executor: brings its nodes to the desired state in `placements` and reports what happened in `executions`.

In: `placements` (compacted, read from the beginning on every start; only its own nodes count).
Out: `executions` (keyed by job, node reports by node), `dead-letters` (placements it can't read).
Kept: one journal per node in the run folder. Nothing else is needed to go on after a crash.

Invariants, whatever arrives, repeats or dies:
- An attempt runs at most once on a node. What ended is never started again (an application may leave and come back).
- A GPU is never given to two runs; what a placement doesn't list is stopped; older placements are refused by (epoch, sequence).
- A wish is journalled before it is carried out. Reports are acknowledged, in order per job, repeated under the same id.
- Jobs outlive the executor; the next one adopts them and learns how they ended. Broker away: jobs go on, reports wait.
- Before a job that can save is stopped, its checkpoint is asked for and the answer awaited for the stated time.
- A gang starts on all its nodes or on none; a GPU whose memory is in use gets nothing; an application that ends comes back.

Reading order: `core/lifecycle.py` (the table), `core/journal.py` (state as a fold), `core/reconcile.py` (what is due),
`core/reports.py` (what is said), `core/checkpoint_interval.py`, `core/gang.py`; `shell/node.py` (the order of things) with `ledger.py`,
`starting.py`, `saving.py`, `serving.py`, `quarantine.py`; `shell/loop.py`; `shell/drivers/port.py` and the four drivers: `simulated` for
replays and simulation, `process` for real commands, `slurm` and `kubernetes` for what other schedulers run. The contract for executors
written by others is `docs/executors.md`, the page for people who write jobs `docs/jobs.md`; `jobs/` has a helper for them to copy.
"""
