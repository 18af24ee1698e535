"""Everything the page knows, folded record by record, with what changed since somebody last asked. Pure.

Owns: which topics are folded into what, and how much of the past is kept. Refuses: JSON (`rows`), time (now is an argument).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.codec import Envelope
from schemas.commands import DrainNode, ForgetNode, UndrainNode
from schemas.decisions import DecisionMade, Placed, Scaled
from schemas.demand import DemandObserved
from schemas.executions import JobCompleted, JobFailed, JobStarted, JobStopped, NodeReported
from schemas.forecasts import DemandForecast, DurationForecast
from schemas.jobs import ApplicationAccepted, JobAccepted, JobAmended
from schemas.nodes import NodeForgotten, NodeStateChanged
from schemas.placements import NodePlaced
from schemas.records import Record
from schemas.status import JobStatusChanged
from services.console.facts import World, WorldFold, readable
from services.console.metering.ledger import Ledger
from services.console.page.blocks import Blocks
from services.console.page.demand import AppDemand
from services.console.page.marks import Marks

TOPICS = (
    "job-events", "jobs", "job-status", "forecasts", "demand", "decisions", "placements", "executions", "node-states",
    "commands",
)  # fmt: skip
PAST_KEPT_MS = 24 * 3_600_000
"""How far back the grid and the curves go: as far as the plan goes forward."""
METERED_MS = 31 * 24 * 3_600_000
"""How far back reports on the page go; topics keep no more either."""
FORGET_PERIOD_MS = 3_600_000
ENDED_MAX = 2_000
"""Ended jobs kept, the newest: more than a person scrolls through; the log has all (`gpugrid jobs --all`)."""


@dataclass(slots=True)
class Changed:
    """Names of what changed since the last time: jobs, nodes, applications. Blocks keep their own."""

    jobs: dict[str, None] = field(default_factory=dict)
    jobs_gone: dict[str, None] = field(default_factory=dict)
    nodes: dict[str, None] = field(default_factory=dict)
    apps: dict[str, None] = field(default_factory=dict)


class Board:
    """`fold` records in offset order per partition, then ask; `changed` is emptied by whoever asked (`hub`)."""

    def __init__(self) -> None:
        self._fold = WorldFold()
        self.ledger = Ledger()
        self.blocks = Blocks(self.ledger)
        self.demand: dict[str, AppDemand] = {}
        self.marks = Marks()
        self.changed = Changed()
        self.decisions = 0
        self.newest: dict[str, DecisionMade] = {}
        self.first_ms: int | None = None
        self._forgot_ms = 0

    @property
    def world(self) -> World:
        return self._fold.world

    def fold(self, record: Record) -> DecisionMade | None:
        """Take in one record; an accepted decision is given back (the planner follows them)."""
        if record.value is None:
            return None
        envelope = readable(record)
        if envelope is None:
            self.world.unreadable += 1
            return None
        if isinstance(envelope.event, DecisionMade):
            return self._decided(envelope, envelope.event, record)
        self._fold.fold(envelope, record.partition)
        self.ledger.fold(envelope.event)
        self.marks.fold(envelope, record)
        self._note(envelope)
        return None

    def _decided(self, envelope: Envelope, decision: DecisionMade, record: Record) -> DecisionMade | None:
        if not self.ledger.fold_decision(decision):
            return None
        self.decisions += 1
        self.newest[decision.cluster] = decision
        self.first_ms = decision.now_ms if self.first_ms is None else min(self.first_ms, decision.now_ms)
        self.marks.fold(envelope, record)
        self.blocks.decided(decision)
        for effect in decision.effects:
            if isinstance(effect, Scaled):
                self.changed.apps[effect.app_id] = None
            elif isinstance(effect, Placed):
                self.changed.jobs[effect.job_id] = None
        return decision

    def _note(self, envelope: Envelope) -> None:
        """What changed, by event."""
        changed = self.changed
        match envelope.event:
            case JobAccepted(job_id=name) | JobAmended(job_id=name) | DurationForecast(job_id=name):
                changed.jobs[name] = None
            case ApplicationAccepted(app_id=name):
                changed.jobs[name] = changed.apps[name] = None
            case JobStatusChanged() as status:
                changed.jobs[status.job_id] = None
                self.blocks.status(status)
            case JobStarted() as started:
                self.blocks.started(started)
                if started.attempt > 1:
                    self.blocks.settle(started.job_id)
            case JobStopped(job_id=name) | JobCompleted(job_id=name) | JobFailed(job_id=name):
                self.blocks.settle(name)
            case NodeReported():
                self.blocks.settle()
            case NodeForgotten(node=node):
                self.blocks.settle()
                changed.nodes[node] = None
            case (
                NodeStateChanged(node=node)
                | NodePlaced(node=node)
                | DrainNode(node=node)
                | UndrainNode(node=node)
                | ForgetNode(node=node)
            ):
                changed.nodes[node] = None
            case DemandObserved() as observed:
                self.demand.setdefault(observed.app_id, AppDemand()).saw(observed)
                changed.apps[observed.app_id] = None
            case DemandForecast() as forecast:
                self.demand.setdefault(forecast.app_id, AppDemand()).foresaw(forecast)
                changed.apps[forecast.app_id] = None

    def prune(self, now_ms: int) -> None:
        """Forget what is older than the page shows."""
        self.blocks.prune(now_ms - PAST_KEPT_MS)
        if now_ms - self._forgot_ms > FORGET_PERIOD_MS:
            self.ledger.forget(now_ms - METERED_MS)
            self._forgot_ms = now_ms
        for demand in self.demand.values():
            demand.prune(now_ms - PAST_KEPT_MS)
        ended = [view for view in self.world.jobs.values() if view.final]
        if len(ended) > ENDED_MAX:
            ended.sort(key=lambda view: ((view.status and view.status.ended_ms) or 0, view.job_id))
            for view in ended[: len(ended) - ENDED_MAX]:
                del self.world.jobs[view.job_id]
                self.blocks.forget(view.job_id)
                self.changed.jobs.pop(view.job_id, None)
                self.changed.jobs_gone[view.job_id] = None
