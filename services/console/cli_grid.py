"""Commands about the grid and its nodes: grid, nodes, drain, undrain, forget, partition. Signatures and help here, the work elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from services.console.errors import ConsoleError
from services.console.flags import DAY_S, AsJson, Cause, Deadline, NodeId, Pool, duration, index_list
from services.console.session import Session, note_incomplete


def grid(
    ctx: typer.Context,
    pool: Pool = None,
    steps: Annotated[int, typer.Option(min=1, max=192, help="Time steps to show.")] = 48,
    step: Annotated[
        float | None, typer.Option(parser=duration, metavar="15m", help="Length of a step.", show_default=False)
    ] = None,
    now_only: Annotated[bool, typer.Option("--now", help="Only what is decided; leave the plan out.")] = False,
    as_json: AsJson = False,
) -> None:
    """GPUs and time steps in colour: what runs now (reversed), and what is planned.

    \b
    gpugrid grid
    gpugrid grid --pool h100 --steps 96
    """
    from services.console import gridview, planview

    session: Session = ctx.obj
    view, complete = session.run(
        planview.load_grid(session, pool, steps=steps, step_s=None if step is None else int(step), plan=not now_only),
        "Reading the grid",
    )
    note_incomplete(session, complete)
    if as_json:
        session.json(gridview.grid_rows(view))
        return
    if not view.rows:
        raise ConsoleError(
            "No node has reported yet, so there is no grid; `gpugrid nodes` and `gpugrid doctor` tell more."
        )
    session.print(gridview.draw(view), end="")
    session.print(gridview.legend(view))
    for line in gridview.later(view):
        session.print(line)


def nodes(ctx: typer.Context, pool: Pool = None, as_json: AsJson = False) -> None:
    """Nodes: health, free GPUs, who runs there, findings.

    \b
    gpugrid nodes
    gpugrid nodes --json | jq '.[] | select(.health != "usable")'
    """
    from services.console import queries, tables

    session: Session = ctx.obj
    world = session.run(queries.load_world(session), "Reading nodes")
    if pool is not None:
        world.nodes = {name: node for name, node in world.nodes.items() if node.pool == pool}
    note_incomplete(session, world.complete)
    if as_json:
        session.json(tables.node_rows(world))
        return
    if not world.nodes:
        session.print("No node has reported yet; agents report every few seconds once they run (`gpugrid doctor`).")
        return
    session.print(tables.nodes_table(world))
    session.print(tables.pool_summary(world))


def drain(
    ctx: typer.Context,
    node: NodeId,
    deadline: Deadline = DAY_S,
    cause: Cause = "",
    as_json: AsJson = False,
) -> None:
    """Start nothing new on a node; at the deadline checkpoint and stop what still runs.

    \b
    gpugrid drain n03 --deadline 30m --cause "replace the fan"
    """
    from services.console import orders

    session: Session = ctx.obj
    sent = session.run(orders.drain_node(session, node, deadline_s=deadline, cause=cause), f"Draining {node}")
    if as_json:
        session.json(sent)
    else:
        session.print(f"Drain of {node} ordered; `gpugrid nodes` shows what still runs there.")


def undrain(ctx: typer.Context, node: NodeId, as_json: AsJson = False) -> None:
    """Let a drained node be used again, and clear the errors that keep work from its GPUs.

    Errors that wait for the evidence of a reset are cleared, too: order it once you have looked at the card.

    \b
    gpugrid undrain n03
    """
    from services.console import orders

    session: Session = ctx.obj
    sent = session.run(orders.undrain_node(session, node), f"Undraining {node}")
    if as_json:
        session.json(sent)
    else:
        session.print(orders.undrain_text(sent))


def forget(
    ctx: typer.Context,
    node: NodeId,
    force: Annotated[bool, typer.Option("--force", help="Also a node that still reports.")] = False,
    cause: Cause = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say that a node is gone for good. Shows what ends with it and asks first.

    Its GPUs leave the grid, and its jobs are queued again at once with what they saved. A machine's name means all its nodes. Should
    it come back, it stops what it still runs and is a new node. Refused while it reports, unless forced: it would be back with its
    next sample.

    \b
    gpugrid forget n03 --cause "sold"
    """
    from services.console import forgetting

    session: Session = ctx.obj
    departure = session.run(forgetting.look(session, node), f"Looking at {node}")
    if not force:
        forgetting.require_gone(departure)
    if not as_json:
        for line in departure.lines():
            session.print(line)
    if not yes and not as_json and not typer.confirm(f"Forget {node}?"):
        raise ConsoleError("Nothing was changed.")
    sent = session.run(forgetting.forget_nodes(session, departure, force=force, cause=cause), f"Forgetting {node}")
    if as_json:
        session.json(sent)
    else:
        session.print(f"Ordered; `gpugrid nodes` lists {node} no longer once telemetry has said so.")


def partition(
    ctx: typer.Context,
    node: NodeId,
    pool: Annotated[str, typer.Option("--pool", help="Whose slots the cards shall have.", show_default=False)],
    cards: Annotated[
        str, typer.Option(metavar="0-3,6", help="Which cards, by their index.", show_default="all of them")
    ] = "",
    deadline: Deadline = DAY_S,
    cause: Cause = "",
    as_json: AsJson = False,
) -> None:
    """Cut cards of a machine into the slots of another pool, once they are empty.

    The cards get nothing new from now on. Order the pool they have to take an order back.

    \b
    gpugrid partition n03 --cards 6,7 --pool h100-half --deadline 1h
    gpugrid partition n03 --pool h100
    """
    from services.console import orders
    from services.console.sentences import gpu_ranges

    session: Session = ctx.obj
    chosen = index_list(cards, "--cards")
    sent = session.run(
        orders.partition_cards(session, node, cards=chosen, pool=pool, deadline_s=deadline, cause=cause),
        f"Ordering a cut on {node}",
    )
    if as_json:
        session.json(sent)
    else:
        session.print(
            f"Cards {gpu_ranges(sent['cards'])} of {node} will be cut for {pool}; `gpugrid nodes` shows how far it is."
        )
