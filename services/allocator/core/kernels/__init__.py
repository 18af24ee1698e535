"""All compiled code of the planner: arrays in, arrays out, nothing else.

`bits` (time words), `layout` (which GPUs applications hold), `place` (one job into the grid), `search` (orderings and
local search on top). numba's disk cache doesn't notice a change in another file, so the cache folder's name holds a
hash of this whole package: `services.allocator.shell.warmup` sets it before the first import.

Rules: every uint64 constant is wrapped in `np.uint64`, shifts stay in 0..63, no fast-math, no parallel reductions.
"""
