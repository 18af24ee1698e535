"""Backtests of three traces, and the simple schedulers checked against an independent simulator."""
