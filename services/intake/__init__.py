"""Intake: the one door. Reads `job-events`, lets jobs and applications in onto `jobs`, refuses the rest with a reason.

In: `job-events` (upstream, console, its own HTTP side). Out: `jobs` (accepted, amended, revoked), `dead-letters` (what was
refused, with the original bytes), `job-status` (state `refused`, only for ids that were never let in).

Invariants:
- Every record gets an answer: something on `jobs`, or exactly one dead letter. Never both, never nothing, never an exception.
- A repeated event with the same content gives the same bytes on `jobs` again, also after a restart; with other content it
  is refused. So a lost output is repaired by any repetition, and the allocator alone decides what counts as new.
- State is what `jobs` already says. Nothing else is stored; `jobs` re-read gives the same handler.

Reading order: `core/refusals.py` (every reason), `core/validate.py` (the rules as a table), `core/route.py`, `core/memory.py`,
`core/handler.py`; then `shell/app.py` (faust) and `shell/http.py` (the HTTP door, which only publishes to `job-events`).
"""
