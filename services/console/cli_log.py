"""Commands that read the log: trace, decisions, replay-decision, audit, dead-letters, topics. Signatures and help here."""

from __future__ import annotations

from typing import Annotated

import typer

from services.console.errors import ConsoleError
from services.console.flags import AsJson, Cluster, JobId
from services.console.session import Session, note_incomplete


def trace(
    ctx: typer.Context,
    job_id: JobId,
    records: Annotated[
        bool, typer.Option("--records", help="From the topics' record times, even if there are spans.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """A job's way from the publisher to its process, as a waterfall of spans.

    \b
    gpugrid trace training-4f9k2
    gpugrid trace training-4f9k2 --json | jq '.spans[] | {name, duration_ms}'
    """
    from services.console import tracing_view, waterfall

    session: Session = ctx.obj
    found = session.run(
        tracing_view.load_trace(session, job_id, from_records=records), f"Reading the trace of {job_id}"
    )
    note_incomplete(session, found.complete)
    if as_json:
        session.json(
            {
                "job_id": job_id,
                "trace_id": found.trace_id,
                "source": found.source,
                "spans": waterfall.waterfall_rows(found.spans),
            }
        )
        return
    session.print(f"Trace {found.trace_id or '(none)'} of {job_id}, from {found.source}.")
    session.print(waterfall.waterfall_table(found.spans))


def decisions(
    ctx: typer.Context,
    last: Annotated[int, typer.Option(min=1, max=100_000, help="Newest decisions shown.")] = 20,
    job: Annotated[
        str | None, typer.Option("--job", metavar="JOB", help="Only those that touch this job.", show_default=False)
    ] = None,
    rejected: Annotated[bool, typer.Option("--rejected", help="Also records that lost a race.")] = False,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """The decision log: what was decided when, and what it changed.

    \b
    gpugrid decisions --last 5
    gpugrid decisions --job training-4f9k2
    """
    from services.console import log_view

    session: Session = ctx.obj
    chosen, complete = session.run(
        log_view.load_decisions(session, last=last, job=job, rejected=rejected, cluster=cluster), "Reading decisions"
    )
    note_incomplete(session, complete)
    if as_json:
        session.json([log_view.decision_row(one) for one in chosen])
    elif not chosen:
        session.print("No decision matches." if job else "Nothing has been decided yet.")
    else:
        session.print(log_view.decisions_table(chosen, job, session.clock().now_ms()))


def replay_decision(
    ctx: typer.Context,
    number: Annotated[int, typer.Argument(metavar="N", min=1, help="Sequence number of the decision.")],
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Decide again what decision N decided, from the state before it, and compare the bytes.

    \b
    gpugrid replay-decision 118
    """
    from services.console import log_view

    session: Session = ctx.obj
    result = session.run(log_view.replay(session, number, cluster), f"Replaying decision {number}")
    if as_json:
        session.json(result)
    else:
        session.print(log_view.replay_text(result))
    if not result["identical"]:
        raise ConsoleError(f"Decision {number} does not replay to the same bytes.")


def audit(ctx: typer.Context, cluster: Cluster = None, as_json: AsJson = False) -> None:
    """Check every decision in the log again, with the independent check. Exit code 1 if one should not have been made.

    What another version of the code decided, or another policy, is counted and not judged.

    \b
    gpugrid audit
    """
    from services.console import audit_command

    session: Session = ctx.obj
    result = session.run(audit_command.audit(session, cluster), "Checking the decisions again")
    if as_json:
        session.json(result)
    else:
        session.print(audit_command.audit_text(result))
    if result["violations"]:
        raise ConsoleError(f"{len(result['violations'])} violations in the decisions of {result['cluster']}.")


def dead_letters(
    ctx: typer.Context,
    last: Annotated[int, typer.Option(min=1, max=100_000, help="Newest ones shown.")] = 20,
    reason: Annotated[str | None, typer.Option(help="Only with this reason code.", show_default=False)] = None,
    service: Annotated[str | None, typer.Option(help="Only what this service put aside.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """What could not be read or was refused, with the reason; --json has the original bytes.

    \b
    gpugrid dead-letters --reason invalid_field
    """
    from services.console import log_view

    session: Session = ctx.obj
    letters, complete = session.run(
        log_view.load_dead_letters(session, last=last, reason=reason, service=service), "Reading dead letters"
    )
    note_incomplete(session, complete)
    if as_json:
        session.json([log_view.letter_row(one) for one in letters])
    elif not letters:
        session.print("No dead letter matches." if reason or service else "No dead letters.")
    else:
        session.print(log_view.letters_table(letters))


def topics(ctx: typer.Context, as_json: AsJson = False) -> None:
    """The topics: what they carry, who writes and reads them, how much they hold.

    \b
    gpugrid topics
    """
    from services.console import log_view

    session: Session = ctx.obj
    rows = session.run(log_view.load_topics(session), "Reading topics")
    if as_json:
        session.json(rows)
    else:
        session.print(log_view.topics_table(rows))
