"""Benchmarks of the forecaster alone: how fast it answers (`speed.py`), and how right it is on generated history (`accuracy.py`)."""
