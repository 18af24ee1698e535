"""The stack that is measured: broker and services as `deploy.local` starts them, and beside them the hops that do nothing.

    with measured_stack(run_dir, gpus=64, bare=True) as bootstrap: ...

Owns the run folder's content. Whatever way it ends, nothing is left running. Read next: `bare.py`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from deploy.local.broker import EmbeddedBroker
from deploy.local.broker_process import broker_process
from deploy.local.service_processes import ONE_THREAD, STAGE, Surroundings, service_processes
from deploy.local.specification import ProcessSpec, file_ready
from deploy.local.supervisor import Supervisor
from schemas.catalog import Catalog, Cluster, Pool
from schemas.topics import CLUSTER_PARTITIONS, TOPICS, Partitioning, Topic
from services.replay.core.catalog import GPU_MEMORY_MIB, GPU_MODEL, toml_of

CLUSTER, POOL, PARTITION, NODE_GPUS = "c0", "h100", 0, 8
CHAIN = ("bench-bare-0", "bench-bare-1", "bench-bare-2", "bench-bare-3")
"""The bare chain's topics: what is published, after one faust hop, after two, after the plain loop."""
ECHO = ("bench-echo-0", "bench-echo-1")
STARTED_DAY_MS = 86_400_000


@contextlib.contextmanager
def measured_stack(
    run_dir: Path, *, gpus: int, bare: bool, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Supervisor]]:
    """`host:port` of the broker and the supervisor once everything is ready."""
    run_dir = run_dir.absolute()
    run_dir.mkdir(parents=True, exist_ok=True)
    pool = Pool(gpus=gpus, node_gpus=NODE_GPUS, gpu_model=GPU_MODEL, memory_mib=GPU_MEMORY_MIB)
    clusters = {CLUSTER: Cluster(partition=PARTITION, pools={POOL: pool})}
    catalog = run_dir / "catalog.toml"
    catalog.write_text(toml_of(Catalog(clusters=clusters, default_cluster=CLUSTER)))
    broker = EmbeddedBroker(run_dir / "kafka")
    kafka = broker_process(broker, TOPICS + (bare_topics() if bare else ()))
    around = Surroundings(
        run_dir=run_dir,
        bootstrap=broker.address,
        catalog=catalog,
        cluster=CLUSTER,
        pool=POOL,
        nodes=tuple(f"n{number:02d}" for number in range(gpus // NODE_GPUS)),
        extra=dict(environment or {}),
    )
    specs = [kafka, *service_processes(around), *(_bare_processes(around) if bare else ())]
    with Supervisor("bench", run_dir, specs) as supervisor:
        yield broker.address, supervisor


def bare_topics() -> tuple[Topic, ...]:
    """Topics of the chain and the echo, as the services' own are."""
    return tuple(
        Topic(
            name=name,
            key="job id",
            partitioning=Partitioning.KEY,
            partitions=CLUSTER_PARTITIONS,
            retention_ms=STARTED_DAY_MS,
            writers=("bench",),
            readers=("bench",),
            owner="bench",
            carries="whatever was published",
        )
        for name in (*CHAIN, *ECHO)
    )


def _bare_processes(around: Surroundings) -> list[ProcessSpec]:
    hops = [("faust", *CHAIN[0:2]), ("faust", *CHAIN[1:3]), ("loop", *CHAIN[2:4]), ("loop", *ECHO)]
    return [_bare(around, *hop) for hop in hops]


def _bare(around: Surroundings, kind: str, source: str, target: str) -> ProcessSpec:
    ready = around.run_dir / f"{source}.ready"
    return ProcessSpec(
        name=source,
        argv=(sys.executable, "-m", "bench.pipeline.bare", kind, source, target, str(ready)),
        env={**ONE_THREAD, "GPUGRID_BOOTSTRAP": around.bootstrap, "GPUGRID_RUN_DIR": str(around.run_dir)},
        ready=file_ready(ready),
        stage=STAGE,
        cwd=Path(__file__).resolve().parents[2],
    )
