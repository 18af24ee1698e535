"""Telemetry: turns samples of all GPUs into the state of each node that others act on.

In: `node-telemetry` (one event per node and period, from the node agents), `node-states` (its own output, to rebuild).
Out: `node-states` (compacted, keyed by node), `dead-letters` (samples it can't read).

Invariants, whatever arrives:
- A value out of bounds changes nothing: it is counted, and the last believed one is kept and marked stale.
- A node is suspect after three missed samples (15 s or more) and lost after a minute, in wall time; its return from lost raises
  its incarnation. Telemetry's own pauses, its start, and the silence of a whole cluster make nobody lost.
- A GPU with an error, or missing from its sample, is unhealthy at once, and healthy after three good samples in a row.
- A state is published when something others act on has changed, otherwise at most once a minute.

One instance runs at a time (a second one is a standby of the consumer group). The node agent lives here too, as a process of
its own: `python -m services.telemetry.agent`, with NVML or, clearly named, simulated cards.

Reading order: `core/readings.py`, `core/node.py`, `core/silence.py`, `core/handler.py`; then `shell/source.py`,
`shell/nvml.py`, `shell/agent.py`.
"""
