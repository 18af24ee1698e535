"""What every process needs and nothing about GPUs: bus, clock, handlers, tracing, metrics, configuration, health, process life.

Owns: the ports to the outside (`bus.port`, `clock`) and their adapters. Refuses: any business rule.
Read next: `bus/port.py`, `clock.py`, `handler.py`.
"""
