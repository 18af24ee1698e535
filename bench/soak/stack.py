"""The processes of a soak: two clusters, so that owning them can be shared, and later a second intake, forecaster and allocator.

Owns names, catalog and run folder. A cluster has an executor and an agent of its own; the rest serves both. Read next: `kills.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.soak.script import IDLE_POOL, POOL
from deploy.local.broker import EmbeddedBroker
from deploy.local.broker_process import broker_process
from deploy.local.service_processes import Surroundings, service_processes
from deploy.local.specification import ProcessSpec
from deploy.local.supervisor import Supervisor
from schemas.catalog import Catalog, Cluster, Pool
from services.replay.core.catalog import GPU_MEMORY_MIB, GPU_MODEL, toml_of

CLUSTERS = {"c0": 0, "c1": 3}
"""Cluster → partition. Far apart, so that a group of two has one each."""
NODE_GPUS = 8
SHARED = ("allocator", "forecaster", "intake", "telemetry")
SECOND = ("allocator", "forecaster", "intake")
"""Added in the middle."""
OWN = ("executor", "agent")
"""Per cluster."""


@dataclass
class Soaked:
    """A running stack. `more`: the second workers' supervisor, once they run."""

    run_dir: Path
    bootstrap: str
    first: Supervisor
    around: Surroundings
    names: tuple[str, ...]
    more: Supervisor | None = None
    more_names: tuple[str, ...] = field(default=())

    def check(self) -> None:
        """Raise if a process could not be kept running."""
        for supervisor in (self.first, self.more):
            if supervisor is not None:
                supervisor.check()

    def supervisor_of(self, name: str) -> Supervisor:
        return self.more if self.more is not None and name in self.more_names else self.first

    def pids(self) -> dict[str, int]:
        """Running processes by name."""
        names = [(self.first, name) for name in self.names]
        if self.more is not None:
            names += [(self.more, name) for name in self.more_names]
        found = {name: supervisor.pid(name) for supervisor, name in names}
        return {name: pid for name, pid in found.items() if pid}

    def ready(self, name: str) -> bool:
        """Whether a process answers that it is ready."""
        state = next(each for each in self.supervisor_of(name).snapshot().processes if each.name == name)
        return state.state == "ready" and state.pid != 0

    def add_second(self) -> None:
        """Start the second workers and wait until they are ready: partitions move to them."""
        specs = [
            _renamed(spec, second_name(spec.name)) for spec in service_processes(self.around) if spec.name in SECOND
        ]
        more = Supervisor("soak-second", self.run_dir / "second", specs)
        self.more, self.more_names = more, tuple(spec.name for spec in specs)
        more.start()


@contextlib.contextmanager
def soaked(run_dir: Path, gpus: int) -> Iterator[Soaked]:
    """`gpus` per cluster. Whatever way it ends, nothing is left running."""
    run_dir = run_dir.absolute()
    run_dir.mkdir(parents=True, exist_ok=True)
    catalog_path = run_dir / "catalog.toml"
    catalog_path.write_text(toml_of(catalog(gpus)))
    broker = EmbeddedBroker(run_dir / "kafka")
    kafka = broker_process(broker)
    specs: list[ProcessSpec] = []
    arounds = [
        Surroundings(
            run_dir=run_dir,
            bootstrap=broker.address,
            catalog=catalog_path,
            cluster=cluster,
            pool=POOL,
            nodes=tuple(f"{cluster}-n{number:02d}" for number in range(gpus // NODE_GPUS)),
        )
        for cluster in CLUSTERS
    ]
    for place, around in enumerate(arounds):
        for spec in service_processes(around):
            if spec.name in OWN:
                specs.append(_renamed(spec, f"{spec.name}-{around.cluster}"))
            elif not place:
                specs.append(spec)
    first = Supervisor("soak", run_dir, [kafka, *specs])
    names = (kafka.name, *(spec.name for spec in specs))
    found = Soaked(run_dir, broker.address, first, arounds[0], names)
    try:
        first.start()
        yield found
    finally:
        if found.more is not None:
            found.more.stop()
        first.stop()


def second_name(name: str) -> str:
    return f"{name}-2"


def _renamed(spec: ProcessSpec, name: str) -> ProcessSpec:
    return replace(spec, name=name, env={**spec.env, "GPUGRID_INSTANCE_ID": name})


def catalog(gpus: int) -> Catalog:
    """`gpus` per cluster, and a pool in each that nobody built."""

    def pool() -> Pool:
        return Pool(gpus=gpus, node_gpus=NODE_GPUS, gpu_model=GPU_MODEL, memory_mib=GPU_MEMORY_MIB)

    clusters = {
        name: Cluster(partition=partition, pools={POOL: pool(), IDLE_POOL: pool()})
        for name, partition in CLUSTERS.items()
    }
    return Catalog(clusters=clusters, default_cluster=next(iter(CLUSTERS)))
