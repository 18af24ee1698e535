"""Telemetry: turns samples of all GPUs into the state of each node that others act on.

In: `node-telemetry` (one event per node and period, from the node agents), `placements`, `executions`, `jobs` and `commands` (who holds
what, how fast it is, what it is, what operators say), and its own `node-states` and `usage`, to rebuild.
Out: `node-states` (compacted, keyed by node), `usage` (compacted: windows per GPU and job), `dead-letters` (samples it can't read), and
`commands` where the configured policy lets it order drains.

Invariants, whatever arrives:
- A value out of bounds changes nothing: it is counted, and the last believed one is kept and marked stale.
- A node is suspect after three missed samples (15 s or more) and lost after a minute, in wall time; its return from lost raises
  its incarnation. Telemetry's own pauses, its start, and the silence of a whole cluster make nobody lost.
- A GPU with an error, or missing from its sample, is unhealthy at once, and healthy after three good samples in a row; errors that
  the health policy holds against it need what their rule asks for, a reset mostly. Nothing new is placed on it meanwhile.
- Each believed sample is charged to windows and jobs once, also over restarts. Findings are told, not acted upon.
- A state is published when something others act on has changed, otherwise at most once a minute.

One instance runs at a time (a second one is a standby of the consumer group). The node agent lives here too, as a process of
its own: `python -m services.telemetry.agent`, with NVML or, clearly named, simulated cards.

Reading order: `core/readings.py`, `core/health_policy.py`, `core/ailments.py`, `core/gpu.py`, `core/node.py`, `core/findings.py`,
`core/usage.py`, `core/silence.py`, `core/handler.py`; then `shell/source.py`, `shell/nvml.py`, `shell/agent.py`.
For people: docs/telemetry.md.
"""
