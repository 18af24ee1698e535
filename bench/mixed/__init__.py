"""Pools of several GPU models: what choosing pool and size together brings, and the reduction of the measured speeds."""
