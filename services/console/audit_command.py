"""`gpugrid audit`: every decision in the log checked again by the independent check, by the rules of the code and policy that made it.

Owns: where the audit begins, and the sentences. What another version or another policy decided is followed, counted and named, not judged.
Refuses: deciding again (`replay-decision`). Read next: the allocator's `core/audit.py`.
"""

from __future__ import annotations

from typing import Any

from services.console.decision_log import clusters_of, decisions_of, manifests_of
from services.console.errors import ConsoleError
from services.console.log_view import the_cluster
from services.console.read import read_topics
from services.console.session import Session

SHOWN_MAX = 20
"""Violations in the text; `--json` has all."""


async def audit(session: Session, cluster: str | None) -> dict[str, Any]:
    """What the audit of a cluster's log found. ConsoleError if this version can't follow the log."""
    from services.allocator.core.audit import Audit
    from services.allocator.core.config import config_digest
    from services.allocator.core.state import State
    from services.allocator.shell.log import load
    from services.allocator.shell.version import code_version
    from services.console.settings import settings_of

    bus = session.bus()
    reading = await read_topics(bus, ["decisions", "snapshots"], wall_s=session.clock().wall_s)
    records = reading.of("decisions")
    name = the_cluster(clusters_of(records), cluster)
    settings = settings_of(session, name)
    version = settings.code_version or code_version()
    log = [decision for _, decision in decisions_of(records, name)]
    state = State(cluster=name)
    if log[0].sequence > 1:
        manifests = manifests_of(reading.of("snapshots"), name)
        if not manifests:
            raise ConsoleError("The beginning of the decision log is gone and no snapshot stands in for it.")
        partition = next(one.partition for one in records if (one.key or b"").decode("utf-8", "replace") == name)
        until = manifests[0].sequence
        loaded = await load(bus, name, partition, settings.policy.step_ms, "gpugrid-console", until=until)
        state = loaded.state
    first = state.sequence + 1
    found = Audit(name, settings.policy, version, config_digest(settings.policy), state)
    for decision in log:
        try:
            found.follow(decision)
        except (KeyError, ValueError) as error:
            raise ConsoleError(
                f"Decision {decision.sequence} was made by version {decision.code_version} and can't be followed by {version}"
                f" ({type(error).__name__}: {error}): audit it with the version that made it."
            ) from None
    return {
        "cluster": name,
        "code_version": version,
        "first": first,
        "last": state.sequence,
        "verified": found.verified,
        "violations": found.violations,
        "unjudged": found.unjudged,
    }


def audit_text(result: dict[str, Any]) -> str:
    """The answer in sentences."""
    lines = [
        f"Decisions {result['first']} to {result['last']} of {result['cluster']}: {result['verified']} were made by this version"
        f" ({result['code_version']}) under this policy and checked again: {len(result['violations'])} violations."
    ]
    lines += [
        f"{count} were made by {other}: followed, not judged, since its rules may have been others."
        for other, count in result["unjudged"].items()
    ]
    lines += result["violations"][:SHOWN_MAX]
    more = len(result["violations"]) - SHOWN_MAX
    return "\n".join(lines + ([f"… and {more} more (--json)."] if more > 0 else []))
