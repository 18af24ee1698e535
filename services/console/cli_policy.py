"""`gpugrid policy`: the rules of a shared cluster — who holds how much of them, what a new file would change, and putting it in force."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.console.errors import ConsoleError, UsageError
from services.console.flags import AsJson, Cause, Cluster
from services.console.session import Session

if TYPE_CHECKING:
    from schemas.rules import Rules
    from services.console.policy_orders import Standing

FILE_BYTES_MAX = 4 * 1024 * 1024
HELP = """\
The rules of a shared cluster: quotas, guarantees, shares, queues, aging.

\b
gpugrid policy show                 who holds how much, and of what limit
gpugrid policy check rules.toml     is it sound, and what would it change now?
gpugrid policy apply rules.yaml     put it in force
docs/policy.md has every rule with an example.
"""
RulesFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="Rules as TOML, or as YAML (.yaml, .yml).", exists=True, dir_okay=False, show_default=False
    ),
]


def build_policy() -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, help=HELP)
    app.command("show")(show)
    app.command("check")(check)
    app.command("apply")(apply)
    return app


def show(ctx: typer.Context, cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Who holds how much, and what the rules in force allow.

    \b
    gpugrid policy show
    gpugrid policy show --json | jq '.groups[] | select(.maximum != null)'
    """
    from services.console import policy_orders, policy_view

    session: Session = ctx.obj
    standing = session.run(policy_orders.load_standing(session, cluster), "Reading the rules")
    if as_json:
        session.json(policy_view.show_document(standing))
        return
    session.print(policy_view.headline(standing))
    session.print(policy_view.groups_table(standing))


def check(ctx: typer.Context, file: RulesFile, cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Is a file sound, and what would it change now? Nothing is put in force. Exit code 1 if it contradicts itself.

    \b
    gpugrid policy check rules.toml
    """
    from services.console import policy_orders

    session: Session = ctx.obj
    rules = _read(file)
    standing = session.run(policy_orders.load_standing(session, cluster), "Reading the cluster")
    _judge(session, standing, rules, file, as_json)


def apply(
    ctx: typer.Context,
    file: RulesFile,
    cluster: Cluster = None,
    cause: Cause = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put a file in force as a whole. Shows what it changes and asks first.

    A file without a version gets the next one; one with a version must be newer than what is in force.

    \b
    gpugrid policy apply rules.toml --cause "vision joins"
    """
    from services.console import policy_orders

    session: Session = ctx.obj
    rules = _read(file)
    standing = session.run(policy_orders.load_standing(session, cluster), "Reading the cluster")
    rules = policy_orders.versioned(rules, standing.state.rules.version)
    if not as_json:
        _judge(session, standing, rules, file, False)
    else:
        policy_orders.require_sound(rules, standing)
    if not yes and not as_json and not typer.confirm(f"Put version {rules.version} in force?"):
        raise ConsoleError("Nothing was changed.")
    sent = session.run(policy_orders.change_rules(session, standing, rules, cause), "Ordering the rules")
    if as_json:
        session.json(sent)
    else:
        session.print(f"Version {rules.version} ordered; the next decision follows it (`gpugrid policy show`).")


def _read(file: Path) -> Rules:
    from services.console.policy_file import read_rules

    if file.stat().st_size > FILE_BYTES_MAX:
        raise UsageError(f"{file} is larger than {FILE_BYTES_MAX >> 20} MiB: that is no file of rules.")
    return read_rules(file.read_bytes(), str(file))


def _judge(session: Session, standing: Standing, rules: Rules, file: Path, as_json: bool) -> None:
    """Say what the file would change; ConsoleError if it contradicts itself."""
    from services.console import policy_file, policy_orders, policy_view

    wrong = policy_orders.contradictions_in(rules, standing)
    changes = policy_file.differences(standing.state.rules, rules)
    effects: list[Any] = []
    if not wrong:
        with session.spinner("Planning under both"):
            effects = policy_orders.effects_of(rules, standing)
    if as_json:
        session.json(
            {"file": str(file), "contradictions": wrong, "changes": changes, "jobs": [asdict(e) for e in effects]}
        )
    else:
        policy_view.print_judgement(session, changes, effects, standing.now_ms)
    if wrong:
        raise ConsoleError(f"{file} can't be put in force: " + "; ".join(wrong) + ".")
