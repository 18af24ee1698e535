"""The services of gpugrid. Path = import = command: `python -m services.allocator`.

Reading order: runtime (what every process needs), then intake → forecaster → allocator → executor and telemetry,
each with half a page in its `__init__`; replay (workload, simulation, baselines) and console (people) sit on top.
"""
