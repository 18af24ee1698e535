"""`gpugrid reserve | release | reservations`: GPUs kept free of new work for a window, for maintenance or a demonstration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.console.flags import AsJson, Cause, Cluster, NodeId, duration, index_list
from services.console.session import Session

if TYPE_CHECKING:
    from services.console.policy_orders import Standing


def reserve(
    ctx: typer.Context,
    node: NodeId,
    lasting: Annotated[
        float, typer.Option("--for", parser=duration, metavar="2h", help="How long.", show_default=False)
    ],
    gpus: Annotated[
        str, typer.Option(metavar="0-3,6", help="Which GPUs, by their index.", show_default="the whole node")
    ] = "",
    begin: Annotated[
        str,
        typer.Option("--from", metavar="TIME", help="30m (from now), or 2026-01-31T08:00 (UTC).", show_default="now"),
    ] = "",
    cause: Cause = "",
    as_json: AsJson = False,
) -> None:
    """Keep GPUs free of new work for a window. What runs is not stopped, but nothing is planned there that would reach into it.

    \b
    gpugrid reserve n03 --for 2h --from 2026-01-31T08:00 --cause "new fan"
    gpugrid reserve n00 --gpus 0-3 --for 45m --cause demo
    """
    from services.console import orders
    from services.console.durations import from_now_text, parse_moment_ms

    session: Session = ctx.obj
    now_ms = session.clock().now_ms()
    try:
        from_ms = parse_moment_ms(begin, now_ms, ahead=True) if begin else now_ms
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from None
    until_ms = from_ms + round(lasting * 1000)
    sent = session.run(
        orders.reserve_block(
            session, node, gpus=index_list(gpus, "--gpus"), from_ms=from_ms, until_ms=until_ms, cause=cause
        ),
        f"Reserving on {node}",
    )
    if as_json:
        session.json(sent)
    else:
        session.print(
            f"Reservation {sent['reservation_id']} ordered; it ends {from_now_text(until_ms, now_ms)},"
            f" `gpugrid release {sent['reservation_id']}` ends it before."
        )


def release(
    ctx: typer.Context,
    reservation: Annotated[
        str, typer.Argument(metavar="RESERVATION", help="As `gpugrid reservations` shows it.", show_default=False)
    ],
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """End a reservation early.

    \b
    gpugrid release n03-4f9k2a
    """
    from services.console import orders, policy_orders

    session: Session = ctx.obj
    standing = session.run(policy_orders.load_standing(session, cluster), "Reading the cluster")
    sent = session.run(orders.release_block(session, standing, reservation), f"Releasing {reservation}")
    if as_json:
        session.json(sent)
    else:
        session.print(f"{reservation} is released.")


def reservations(ctx: typer.Context, cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Reservations that count now or later.

    \b
    gpugrid reservations
    """
    from services.console import policy_orders
    from services.console.durations import from_now_text
    from services.console.sentences import gpu_ranges
    from services.console.tables import plain_table

    session: Session = ctx.obj
    standing = session.run(policy_orders.load_standing(session, cluster), "Reading the cluster")
    rows = reservation_rows(standing)
    if as_json:
        session.json({"cluster": standing.cluster, "reservations": rows})
        return
    if not rows:
        session.print("Nothing is reserved.")
        return
    table = plain_table("RESERVATION", "NODE", "GPUS", "FROM", "UNTIL")
    for row in rows:
        table.add_row(
            row["reservation_id"],
            row["node"],
            gpu_ranges(row["gpus"]) if row["gpus"] else "all",
            from_now_text(row["from_ms"], standing.now_ms),
            from_now_text(row["until_ms"], standing.now_ms),
        )
    session.print(table)


def reservation_rows(standing: Standing) -> list[dict[str, Any]]:
    """What operators ordered and is not over; cards being cut have rows of their own in `gpugrid nodes`."""
    from services.allocator.core.slots import is_row_of_order

    found = [
        {
            "reservation_id": one.reservation_id,
            "node": one.node,
            "gpus": list(one.gpus),
            "from_ms": one.from_ms,
            "until_ms": one.until_ms,
        }
        for one in standing.state.reservations.values()
        if one.until_ms > standing.now_ms and not is_row_of_order(standing.state, one.reservation_id)
    ]
    return sorted(found, key=lambda row: (row["from_ms"], row["reservation_id"]))
