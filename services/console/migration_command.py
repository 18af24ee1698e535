"""`gpugrid migrations`: which running jobs, moved, would free larger blocks, and what that would cost. Nothing is moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.console.flags import AsJson, Cluster
from services.console.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from schemas.status import NodeGpus
    from services.allocator.core.migrations import Migration
    from services.console.policy_orders import Standing


def migrations(
    ctx: typer.Context,
    cluster: Cluster = None,
    pool: Annotated[str | None, typer.Option("--pool", help="Only this pool.")] = None,
    as_json: AsJson = False,
) -> None:
    """Running jobs whose move would free larger blocks, and what it would cost. Proposals: nothing is moved.

    Only jobs that checkpoint are looked at. The cost is GPU time since the last checkpoint, and that of starting again.

    \b
    gpugrid migrations
    gpugrid migrations --json | jq '.migrations[] | select(.helps != [])'
    """
    from services.console import policy_orders

    session: Session = ctx.obj
    standing = session.run(policy_orders.load_standing(session, cluster), "Reading the cluster")
    with session.spinner("Looking for moves"):
        found = proposals(standing, pool)
    if as_json:
        session.json({"cluster": standing.cluster, "migrations": [document(one) for one in found]})
    elif found:
        session.print(_table(found))
    else:
        session.print("No move of running jobs that checkpoint would free a larger block.")


def proposals(standing: Standing, only: str | None) -> list[Migration]:
    """Of all pools, or of one."""
    from schemas.records import Now
    from services.allocator.core.layout import pools_of
    from services.allocator.core.migrations import migrations_in
    from services.allocator.core.pose import pose

    state, settings = standing.state, standing.settings
    now = Now(standing.now_ms, max(standing.now_ms, state.wall_ms))
    found = []
    for pool in pools_of(state):
        if only is None or pool == only:
            posed = pose(state, pool, settings.memory_mib.get(pool, 0), settings.policy, now, frozenset())
            found += migrations_in(state, posed, now.domain_ms)
    return found


def document(one: Migration) -> dict[str, Any]:
    """A proposal as JSON."""
    return {
        "pool": one.pool,
        "frees": [{"gpus": size, "blocks": count} for size, count in sorted(one.frees.items())],
        "helps": list(one.helps),
        "cost_gpu_s": round(one.cost_s),
        "moves": [
            {
                "job_id": move.job_id,
                "gpus": move.gpus,
                "from": [{"node": part.node, "gpus": list(part.gpus)} for part in move.leaves],
                "to": [{"node": part.node, "gpus": list(part.gpus)} for part in move.takes],
                "cost_gpu_s": round(move.cost_s),
            }
            for move in one.moves
        ],
    }


def _table(found: Sequence[Migration]) -> Table:
    from services.console.tables import plain_table

    costs = "COSTS (GPU-MINUTES)"
    table = plain_table("MOVE", "FROM", "TO", "FREES", "LETS START", costs, right=(costs,))
    for one in found:
        frees = ", ".join(f"{count} × {size}" for size, count in sorted(one.frees.items(), reverse=True))
        for at, move in enumerate(one.moves):
            first = at == 0
            table.add_row(
                f"{move.job_id} ({move.gpus})",
                _where(move.leaves),
                _where(move.takes),
                frees if first else "with it",
                ", ".join(one.helps) or "–" if first else "",
                f"{one.cost_s / 60:.0f}" if first else "",
            )
    return table


def _where(parts: Sequence[NodeGpus]) -> str:
    from services.console.sentences import gpu_ranges

    return " ".join(f"{part.node}:{gpu_ranges(list(part.gpus))}" for part in parts)
