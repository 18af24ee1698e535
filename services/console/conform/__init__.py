"""Whether an executor keeps the contract of docs/executors.md: the allocator is played on `placements`, `executions` judged.

Reading order: `reports.py` (what every report has to keep, whatever was placed), `stage.py` (placing and waiting), `scenarios.py` (one
promise after the other), `verdict.py` (running them). Refuses: looking into the executor; topics are all it knows.
"""
