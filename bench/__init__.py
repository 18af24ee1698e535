"""Benchmarks: each command measures one thing, writes JSON with machine, versions and seeds, and says what it compared."""
