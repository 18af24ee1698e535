"""Runs the scenarios one after the other and says what came of each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from services.console.conform.reports import Finding, Judge
from services.console.conform.scenarios import SCENARIOS, Scenario
from services.console.conform.stage import Missing, Stage
from services.runtime.bus.port import Bus
from services.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Subject:
    """The executor that is looked at: a node it serves. `simulated`: it runs jobs of template `simulated`, not commands."""

    node: str
    cluster: str
    partition: int
    pool: str = "conform"
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario: what it says in a sentence, and what was wrong."""

    name: str
    promise: str
    findings: list[Finding] = field(default_factory=list)


async def conform(
    bus: Bus, clock: Clock, subject: Subject, *, wait_s: float, scenarios: tuple[Scenario, ...] = SCENARIOS
) -> list[Outcome]:
    """All scenarios, each with a clean node before and after it."""
    outcomes = []
    for scenario in scenarios:
        judge = Judge(subject.node, subject.cluster, subject.partition)
        stage = Stage(bus, clock, judge, subject.pool, wait_s, subject.simulated)
        await stage.open()
        try:
            await asyncio.wait_for(scenario(stage), wait_s * 10)
        except Missing as missing:
            judge.findings.append(Finding("reports", str(missing)))
        except TimeoutError:
            judge.findings.append(
                Finding("reports", f"the scenario did not come to its end within {wait_s * 10:.0f} s")
            )
        finally:
            await stage.close()
        promise = (scenario.__doc__ or "").strip()
        outcomes.append(Outcome(scenario.__name__, promise, judge.findings))
    return outcomes
