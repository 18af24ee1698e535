"""The stack that `gpugrid up` starts and leaves running: broker and services on the wall clock, in a run folder of their own.

Owns its two halves: `bring_up` (checks, downloads, compiles, launches a detached supervisor, waits) and `serve` (that
supervisor's own program). Topics survive `down` in the run folder. Read next: `deploy.local.supervisor`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from deploy.local import background, kafka_jars, preflight
from deploy.local.broker import BrokerFailedError, EmbeddedBroker
from deploy.local.broker_commands import resolve_with_progress
from deploy.local.broker_process import broker_process
from deploy.local.cache import CacheUnusableError
from deploy.local.ports import free_port, is_free
from deploy.local.service_processes import (
    ONE_THREAD,
    READY_WAIT_S,
    STAGE,
    Machines,
    Surroundings,
    service_processes,
)
from deploy.local.specification import ProcessSpec, RestartPolicy, http_ready
from deploy.local.supervisor import StackFailedError, Supervisor
from schemas.catalog import Catalog, Cluster, Pool, read_catalog
from services.console.cli_page import PORT_DEFAULT
from services.console.errors import ConsoleError, UsageError
from services.console.page.access import FILE_NAME
from services.console.page.serve import FILE_VARIABLE
from services.console.session import Session
from services.console.stack import Stack, read_stack, run_root
from services.replay.core.catalog import GPU_MEMORY_MIB, GPU_MODEL, toml_of

DEFAULT_NAME = "local"
CLUSTER, POOL = "c0", "h100"
NODES_DEFAULT = 8
CATALOG_FILE = "catalog.toml"
ORDER_FILE = "up.json"
PAGE_STOP_GRACE_S = 4.0
PAGE_RESTARTS_MAX = 1_000
"""In a minute, with pauses of up to five seconds: never reached."""
KERNELS_WAIT_S = 600.0
"""A first start compiles the planner's kernels: a minute alone, several on a busy machine."""
_FAILURES = (
    BrokerFailedError,
    CacheUnusableError,
    StackFailedError,
    kafka_jars.KafkaUnavailableError,
    preflight.PreflightError,
)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What `up` was asked for; kept in the run folder, where the supervisor reads it."""

    machines: tuple[Machines, ...]
    cluster: str = CLUSTER
    driver: str = "simulated"
    source: str = "simulated"
    kafka_port: int = 0
    http_port: int = 0
    page_port: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of `up`. `catalog` None: one pool of `nodes` × `node_gpus`, or the run folder's own from before."""

    nodes: int | None
    node_gpus: int
    catalog: Path | None
    driver: str
    source: str
    kafka_port: int
    http_port: int
    page_port: int | None = None


def bring_up(session: Session, wanted: Wanted) -> Stack:
    """Start the stack and wait until all of it is ready. ConsoleError with one sentence if it can't be."""
    name = session.stack_name or DEFAULT_NAME
    run_dir = (run_root(session.run_root) / name).absolute()
    if background.status(run_dir) is not None:
        raise ConsoleError(f"The stack {name} runs already; `gpugrid status` shows it, `gpugrid down` stops it.")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        preflight.require(run_dir, [port for port in (wanted.kafka_port, wanted.http_port) if port])
        resolve_with_progress()
        _prepare(run_dir, wanted)
        _warm(session)
        argv = [sys.executable, "-m", "services.console", "serve-stack", name, str(run_dir)]
        with session.spinner(f"Starting {name}: Kafka and six services"):
            background.launch(argv, run_dir, KERNELS_WAIT_S)
    except _FAILURES as error:
        raise ConsoleError(str(error)) from None
    except OSError as error:
        raise ConsoleError(f"{run_dir} can't be used ({error.strerror or error}).") from None
    stack = read_stack(run_root(session.run_root), name)
    if stack is None:
        raise ConsoleError(f"The stack {name} ended right after its start: see the logs in {run_dir}.")
    return stack


def serve(name: str, run_dir: Path) -> None:
    """The detached supervisor's program: until SIGTERM, or a failure that restarts do not cure."""
    order = msgspec.json.decode((run_dir / ORDER_FILE).read_bytes(), type=Order)
    try:
        broker = EmbeddedBroker(run_dir / "kafka", port=order.kafka_port)
        kafka = broker_process(broker)
        around = Surroundings(
            run_dir=run_dir,
            bootstrap=broker.address,
            catalog=run_dir / CATALOG_FILE,
            cluster=order.cluster,
            pool=order.machines[0].pool,
            nodes=order.machines[0].nodes,
            slot_pools=order.machines[0].slot_pools,
            beside=order.machines[1:],
            driver="process" if order.driver == "process" else "simulated",
            source="nvml" if order.source == "nvml" else "simulated",
            http_port=order.http_port,
        )
        page = page_process(name, around, order.page_port)
        background.serve(Supervisor(name, run_dir, [kafka, *service_processes(around), page]))
    except _FAILURES as error:
        raise ConsoleError(str(error)) from None


def page_process(name: str, around: Surroundings, port: int) -> ProcessSpec:
    """The page beside the services. It only looks: however often it dies, the stack goes on."""
    return ProcessSpec(
        name="page",
        argv=(sys.executable, "-m", "services.console", "page", "--service", "--port", str(port)),
        env={
            **ONE_THREAD,
            "GPUGRID_BOOTSTRAP": around.bootstrap,
            "GPUGRID_STACK": name,
            "GPUGRID_RUN_ROOT": str(around.run_dir.parent),
            "GPUGRID_CATALOG": str(around.catalog),
            "GPUGRID_CLOCK": around.clock,
            FILE_VARIABLE: str(around.run_dir / FILE_NAME),
        },
        ready=http_ready(port, "/readyz"),
        stage=STAGE,
        ready_wait_s=READY_WAIT_S,
        stop_grace_s=PAGE_STOP_GRACE_S,
        restart=RestartPolicy(restarts_max=PAGE_RESTARTS_MAX, first_tries_max=PAGE_RESTARTS_MAX),
        ports={"page": port},
    )


def _page_port(wanted: int | None) -> int:
    """As asked for (0: a free one); left out, the usual one if nobody has it."""
    if wanted is None:
        return PORT_DEFAULT if is_free(PORT_DEFAULT) else free_port()
    return wanted or free_port()


def _prepare(run_dir: Path, wanted: Wanted) -> None:
    """Catalog and order into the run folder."""
    target = run_dir / CATALOG_FILE
    if wanted.catalog is not None:
        target.write_bytes(_readable(wanted.catalog))
    elif wanted.nodes is not None or not target.exists():
        nodes = wanted.nodes or NODES_DEFAULT
        pool = Pool(
            gpus=nodes * wanted.node_gpus, node_gpus=wanted.node_gpus, gpu_model=GPU_MODEL, memory_mib=GPU_MEMORY_MIB
        )
        cluster = Cluster(partition=0, pools={POOL: pool})
        target.write_text(toml_of(Catalog(clusters={CLUSTER: cluster}, default_cluster=CLUSTER)))
    catalog = read_catalog(target.read_bytes())
    cluster_name = catalog.default_cluster
    order = Order(
        machines=machines_of(catalog.clusters[cluster_name]),
        cluster=cluster_name,
        driver=wanted.driver,
        source=wanted.source,
        kafka_port=wanted.kafka_port,
        http_port=wanted.http_port,
        page_port=_page_port(wanted.page_port),
    )
    (run_dir / ORDER_FILE).write_bytes(msgspec.json.encode(order))


def machines_of(cluster: Cluster) -> tuple[Machines, ...]:
    """Who plays which nodes: a group per pool of whole cards, and one per machine where pools of slots are cut from its cards."""
    whole = {name: pool for name, pool in sorted(cluster.pools.items()) if pool.slots is None}
    found: list[Machines] = []
    for name, pool in whole.items():
        slot_pools = tuple(
            other for other, shares in cluster.pools.items() if shares.slots is not None and shares.slots.of == name
        )
        prefix = "n" if len(whole) == 1 else f"{name}-"
        nodes = tuple(f"{prefix}{number:02d}" for number in range(max(1, pool.gpus // pool.node_gpus)))
        found += [Machines(name, (node,), slot_pools) for node in nodes] if slot_pools else [Machines(name, nodes)]
    return tuple(found)


def _readable(path: Path) -> bytes:
    """The catalog's bytes, once they are known to be one. UsageError otherwise."""
    try:
        document = path.read_bytes()
        read_catalog(document)
    except (OSError, ValueError) as error:
        raise UsageError(f"The catalog {path} can't be used: {error}.") from None
    return document


def _warm(session: Session) -> None:
    """Compile the kernels here, where it can be shown, so that the allocator starts at once."""
    from services.allocator.shell.warmup import use_kernel_cache, warm_up

    use_kernel_cache()
    with session.spinner("Loading the planner's kernels (the first time they are compiled: a minute or two)"):
        warm_up()
