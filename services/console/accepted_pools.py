"""Which pools a job accepts, how fast it is there, and which one it waits for or got: as a sentence. Pure."""

from __future__ import annotations

from services.console.facts import JobView

SOURCE_WORDS = {
    "job": "by its own word",
    "measured": "by measurements of its kind of model",
    "catalog": "by the operator's numbers",
}


def pools_sentence(view: JobView) -> str:
    """Empty for a job that accepts one pool. The first one named is the one it prefers."""
    if len(view.pools) < 2:
        return ""
    if view.speeds:
        told = ", ".join(f"{pool} at {view.speeds.get(pool, 1.0):.3g} times the speed" for pool in view.pools[1:])
        source = SOURCE_WORDS.get(view.speeds_from, "")
        accepted = f"It prefers {view.pools[0]} and accepts {told}{' (' + source + ')' if source else ''}"
    else:
        accepted = f"It accepts {', '.join(view.pools)}, which count as equally fast"
    pool = None if view.status is None else view.status.pool
    if pool is None:
        return f"{accepted}."
    if view.gpus_held:
        return f"{accepted}; it got {pool}."
    return f"{accepted}; for now it is planned in {pool}, where it is worth most beside all that waits."
