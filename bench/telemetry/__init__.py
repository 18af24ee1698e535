"""Telemetry under the load of ten thousand GPUs: does it keep up, how much of a core does it take, how fast is it back?"""
