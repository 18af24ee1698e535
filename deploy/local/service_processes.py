"""gpugrid's services as processes of a supervised stack on one machine: which modules, which environment, when each is ready.

Data only; owns no process and imports no service. Every service gets a health port of its own and shares broker, catalog,
clock and run folder. Stage 1: after the broker (`broker_process`), all together. Read next: `specification`, `supervisor`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from deploy.local.ports import free_port
from deploy.local.specification import ProcessSpec, http_progress, http_ready

STAGE = 1
READY_WAIT_S = 420.0  # a first start compiles the planner's kernels: a minute alone, several on a busy machine
STOP_GRACE_S = 8.0  # services drain in one or two seconds; whoever hangs longer is killed, the log is the truth
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Eight processes on two cores: a pool of threads in each would only make them wait for each other."""


@dataclass(frozen=True)
class Machines:
    """Nodes of one pool that an agent and an executor play. `slot_pools`: what the cards of a single one may be cut into."""

    pool: str
    nodes: tuple[str, ...]
    slot_pools: tuple[str, ...] = ()


@dataclass(frozen=True)
class Surroundings:
    """What all services of one stack have in common. `clock`: `wall` or `scaled:FILE`; `nodes` of `pool`: what this machine plays, and
    `beside` them (other pools, machines with shared cards)."""

    run_dir: Path
    bootstrap: str
    catalog: Path
    cluster: str
    pool: str
    nodes: tuple[str, ...]
    clock: str = "wall"
    driver: Literal["simulated", "process"] = "simulated"
    source: Literal["simulated", "nvml"] = "simulated"
    http_port: int = 0
    extra: Mapping[str, str] = field(default_factory=dict)
    slot_pools: tuple[str, ...] = ()
    beside: tuple[Machines, ...] = ()

    @property
    def machines(self) -> tuple[Machines, ...]:
        return (Machines(self.pool, self.nodes, self.slot_pools), *self.beside)


def service_processes(around: Surroundings) -> list[ProcessSpec]:
    """Intake, forecaster, allocator, telemetry; an agent and an executor for the nodes, and for each group of machines beside them."""
    http_port = around.http_port or free_port()
    taken = [http_port]

    def spec(name: str, module: str, **own: str) -> ProcessSpec:
        port = free_port(tuple(taken))
        taken.append(port)
        return ProcessSpec(
            name=name,
            argv=(sys.executable, "-m", module),
            env={**_shared(around), **own, "GPUGRID_INSTANCE_ID": name, "GPUGRID_HEALTH_PORT": str(port)},
            ready=http_ready(port, "/readyz"),
            progress=http_progress(port, "/readyz"),
            stage=STAGE,
            ready_wait_s=READY_WAIT_S,
            stop_grace_s=STOP_GRACE_S,
            ports={"health": port} | ({"http": http_port} if name == "intake" else {}),
        )

    found = [
        spec("allocator", "services.allocator"),
        spec("forecaster", "services.forecaster"),
        spec("intake", "services.intake", GPUGRID_HTTP_PORT=str(http_port)),
        spec("telemetry", "services.telemetry"),
    ]
    stay = "1" if around.driver == "process" else "0"
    for place, machines in enumerate(around.machines):
        suffix = f"-{machines.nodes[0]}" if place else ""
        own = {"GPUGRID_NODES": ",".join(machines.nodes)}
        if machines.slot_pools:
            own["GPUGRID_SLOT_POOLS"] = ",".join(machines.slot_pools)
        found += [
            spec(f"executor{suffix}", "services.executor", GPUGRID_JOURNAL_FSYNC=stay, **own),
            spec(f"agent{suffix}", "services.telemetry.agent", GPUGRID_POOL=machines.pool, **own),
        ]
    return found


def _shared(around: Surroundings) -> dict[str, str]:
    return {
        **ONE_THREAD,
        "GPUGRID_BOOTSTRAP": around.bootstrap,
        "GPUGRID_CATALOG": str(around.catalog),
        "GPUGRID_CLUSTERS": around.cluster,
        "GPUGRID_RUN_DIR": str(around.run_dir),
        "GPUGRID_CLOCK": around.clock,
        "GPUGRID_DRIVER": around.driver,
        "GPUGRID_SOURCE": around.source,
        **around.extra,
    }
