"""Event types by their CloudEvents name (`ce_type`), and the topic each one travels on. The only list of its kind."""

from __future__ import annotations

from schemas import commands, decisions, demand, executions, forecasts, jobs, models, nodes, placements, status, usage
from schemas.base import Event
from schemas.deadletters import DeadLetter

TYPES: dict[str, tuple[type[Event], str]] = {
    "job.submitted.v1": (jobs.JobSubmitted, "job-events"),
    "job.changed.v1": (jobs.JobChanged, "job-events"),
    "job.cancelled.v1": (jobs.JobCancelled, "job-events"),
    "application.registered.v1": (jobs.ApplicationRegistered, "job-events"),
    "job.accepted.v1": (jobs.JobAccepted, "jobs"),
    "job.amended.v1": (jobs.JobAmended, "jobs"),
    "job.revoked.v1": (jobs.JobRevoked, "jobs"),
    "application.accepted.v1": (jobs.ApplicationAccepted, "jobs"),
    "demand.observed.v1": (demand.DemandObserved, "demand"),
    "forecast.duration.v1": (forecasts.DurationForecast, "forecasts"),
    "forecast.demand.v1": (forecasts.DemandForecast, "forecasts"),
    "forecast.arrivals.v1": (forecasts.ArrivalForecast, "forecasts"),
    "model.chosen.v1": (models.ModelChosen, "models"),
    "model.watched.v1": (models.ModelWatched, "models"),
    "command.drain-node.v1": (commands.DrainNode, "commands"),
    "command.undrain-node.v1": (commands.UndrainNode, "commands"),
    "command.forget-node.v1": (commands.ForgetNode, "commands"),
    "command.checkpoint-job.v1": (commands.CheckpointJob, "commands"),
    "command.reserve-block.v1": (commands.ReserveBlock, "commands"),
    "command.release-block.v1": (commands.ReleaseBlock, "commands"),
    "command.change-rules.v1": (commands.ChangeRules, "commands"),
    "command.repartition-cards.v1": (commands.RepartitionCards, "commands"),
    "node.sampled.v1": (nodes.NodeSampled, "node-telemetry"),
    "node.state-changed.v1": (nodes.NodeStateChanged, "node-states"),
    "node.forgotten.v1": (nodes.NodeForgotten, "node-states"),
    "job.prepared.v1": (executions.JobPrepared, "executions"),
    "node.usage.v1": (usage.NodeUsage, "usage"),
    "job.usage.v1": (usage.JobUsage, "usage"),
    "job.started.v1": (executions.JobStarted, "executions"),
    "job.progressed.v1": (executions.JobProgressed, "executions"),
    "job.ready.v1": (executions.JobReady, "executions"),
    "job.checkpointed.v1": (executions.JobCheckpointed, "executions"),
    "job.stopped.v1": (executions.JobStopped, "executions"),
    "job.completed.v1": (executions.JobCompleted, "executions"),
    "job.failed.v1": (executions.JobFailed, "executions"),
    "node.reported.v1": (executions.NodeReported, "executions"),
    "node.cards-shaped.v1": (executions.CardsShaped, "executions"),
    "decision.made.v1": (decisions.DecisionMade, "decisions"),
    "plan.improved.v1": (decisions.PlanImproved, "decisions"),
    "snapshot.chunk.v1": (decisions.SnapshotChunk, "snapshots"),
    "snapshot.completed.v1": (decisions.SnapshotCompleted, "snapshots"),
    "node.placed.v1": (placements.NodePlaced, "placements"),
    "job.status-changed.v1": (status.JobStatusChanged, "job-status"),
    "dead-letter.v1": (DeadLetter, "dead-letters"),
}
"""ce_type → (struct, topic)."""

TYPE_OF: dict[type[Event], str] = {struct: name for name, (struct, _) in TYPES.items()}
"""struct → ce_type."""


def topic_of(event: Event | type[Event]) -> str:
    """The topic an event travels on."""
    return TYPES[TYPE_OF[event if isinstance(event, type) else type(event)]][1]
