"""Commands about the stack itself."""

from __future__ import annotations

import typer

from services.console.session import Session


def up(ctx: typer.Context) -> None:
    """Start the stack."""
    session: Session = ctx.obj
    del session


status = doctor = down = demo = simulate = plan = up
