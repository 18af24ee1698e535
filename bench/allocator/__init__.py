"""The planner measured: value on published files and own draws, decision times, cold start. `python -m bench.allocator`."""
