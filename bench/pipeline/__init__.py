"""How fast the whole pipeline is, on this machine, beside what a chain that does nothing costs here.

`python -m bench.pipeline latency` and `python -m bench.pipeline throughput`. Both start the real stack on the embedded
Kafka with simulated executors, on the wall clock, publish jobs open loop (an arrival never waits for an answer) and write
JSON and tables into `bench/results/`. Absolute times depend on the machine and on what else it does; the ratio to the bare
chain, measured in turns within the same run, hardly does. Read next: `latency.py`, `throughput.py`, `stack.py`.
"""
