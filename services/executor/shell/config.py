"""What an executor is configured with, and the driver that follows from it.

Owns: the environment variables of this service. Refuses: several clusters in one process (a rack belongs to one). Read next:
`loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from schemas.base import Identifier
from schemas.catalog import Cluster
from services.executor.core.checkpoint_interval import NODE_MTBF_S
from services.executor.shell.device_facts import MIB, DeviceFacts, GpuMemory, NvmlMemory, Unmeasured, device_facts
from services.executor.shell.drivers.cutting import Cutter
from services.executor.shell.drivers.environment import Site
from services.executor.shell.drivers.job_log import LOG_BYTES_MAX, LogLimits
from services.executor.shell.drivers.kube_api import KubeApi
from services.executor.shell.drivers.kubernetes import KubernetesDriver, PodShape
from services.executor.shell.drivers.port import Driver
from services.executor.shell.drivers.process import ProcessDriver
from services.executor.shell.drivers.simulated import SimulatedDriver
from services.executor.shell.drivers.slurm import Slurm, SlurmDriver
from services.executor.shell.loop import Settings
from services.executor.shell.shared_machine import cutter_of, device_names, nodes_of, shared_machine, shares_of
from services.runtime.clock import Clock
from services.runtime.config import ConfigError, ServiceConfig, catalog_in


class ExecutorConfig(ServiceConfig, frozen=True, kw_only=True):
    """`GPUGRID_CLUSTERS` names the one cluster that all `GPUGRID_NODES` belong to."""

    catalog: str
    nodes: Annotated[tuple[Identifier, ...], Meta(min_length=1)]
    """The nodes this process serves: a machine serves itself, one process may play a rack."""
    driver: Literal["process", "slurm", "kubernetes", "simulated"] = "process"
    """`process` runs commands here, `slurm` and `kubernetes` hand them to those (docs/executors.md); `simulated` runs jobs of template
    `simulated`, which only take time."""
    slurm_partition: str = ""
    """Where `slurm` submits; empty: Slurm's default."""
    kubernetes_namespace: str = "default"
    kubernetes_image: str = ""
    """What `kubernetes` runs commands in."""
    kubernetes_volume: str = ""
    """JSON of a pod's volume that holds GPUGRID_RUN_DIR; empty: that folder of the node itself."""
    stop_jobs_on_exit: bool = False
    """1: an orderly stop ends the jobs, too (a demo). 0: they go on and the next executor adopts them (a restart)."""
    journal_fsync: bool = True
    """0: the journal survives the death of the process, not of the machine; a demo needs no more."""
    node_hosts: tuple[str, ...] = ()
    """`node=address`, for gangs over several machines; a node's id is its address otherwise."""
    node_mtbf_h: Annotated[float, Meta(gt=0)] = NODE_MTBF_S / 3600
    """Hours between two failures of a node, on average: what checkpoint intervals are computed from."""
    job_log_mib: Annotated[int, Meta(ge=1)] = LOG_BYTES_MAX // MIB
    """A job's output file is rotated beyond that; three are kept."""
    run_retention_h: Annotated[float, Meta(ge=0)] = 72.0
    """Hours after which the run folder of an ended attempt, with its output, is removed. 0: never."""
    dataset_folder: str = ""
    """The names in it are told as the datasets that are kept here; empty: none."""
    slot_pools: tuple[Identifier, ...] = ()
    """Pools of slots that this machine's cards may be cut into (docs/sharing.md); empty: only whole cards."""
    cut_command: str = ""
    """Called as `COMMAND CARD whole|mig|mps SLOTS PROFILE` in place of nvidia-smi and nvidia-cuda-mps-control."""


def cluster_of(config: ExecutorConfig) -> Cluster:
    """The cluster that all nodes belong to, as the catalog has it. Raises ConfigError for an unknown one, or more than one."""
    if len(config.clusters) != 1:
        raise ConfigError("GPUGRID_CLUSTERS must name exactly one cluster for an executor: all its nodes belong to it.")
    cluster = config.clusters[0]
    known = catalog_in(config.catalog).clusters.get(cluster)
    if known is None:
        raise ConfigError(f"GPUGRID_CLUSTERS is {cluster!r}, which the catalog doesn't know.")
    return known


def settings_of(config: ExecutorConfig, cluster: Cluster) -> Settings:
    """Raises ConfigError."""
    if len(set(config.nodes)) != len(config.nodes):
        raise ConfigError("GPUGRID_NODES names a node twice.")
    machine = shared_machine(config.nodes, config.slot_pools, config.driver, cluster)
    return Settings(
        nodes=config.nodes if machine is None else nodes_of(machine),
        shared=machine,
        cluster=config.clusters[0],
        partition=cluster.partition,
        client_id=config.instance_id or "executor",
        stop_jobs_on_exit=config.stop_jobs_on_exit,
        node_mtbf_s=config.node_mtbf_h * 3600,
        run_root=str(nodes_dir(config)),
        retention_s=config.run_retention_h * 3600,
        dataset_folder=config.dataset_folder,
    )


def driver_of(config: ExecutorConfig, settings: Settings, cluster: Cluster, clock: Clock) -> Driver:
    """The driver the configuration names. Raises ConfigError."""
    if config.driver == "simulated":
        return SimulatedDriver(clock)
    hosts: dict[str, str] = {}
    for pair in config.node_hosts:
        node, _, address = pair.partition("=")
        if not node or not address:
            raise ConfigError(f"GPUGRID_NODE_HOSTS must be node=address, separated by commas, not {pair!r}.")
        hosts[node] = address
    if config.driver == "slurm":
        return SlurmDriver(
            clock, nodes_dir(config), Site(nodes=config.nodes, hosts=hosts), Slurm(config.slurm_partition)
        )
    if config.driver == "kubernetes":
        return _kubernetes(config, clock, Site(nodes=config.nodes, hosts=hosts))
    devices = device_facts() if _is_this_machine(config) else DeviceFacts()
    uuids = {config.nodes[0]: devices.uuids} if devices.uuids else {}
    site = Site(nodes=config.nodes, uuids=uuids, hosts=hosts)
    if (machine := settings.shared) is not None:
        shares = shares_of(machine, cluster, mps_dir(config))
        site = Site(nodes=nodes_of(machine), uuids=uuids, hosts=hosts, shares=shares)
    return ProcessDriver(
        clock,
        nodes_dir(config),
        site,
        log_limits=LogLimits(bytes_max=config.job_log_mib * MIB),
        devices=devices,
    )


def _kubernetes(config: ExecutorConfig, clock: Clock, site: Site) -> Driver:
    if not config.kubernetes_image:
        raise ConfigError("GPUGRID_KUBERNETES_IMAGE must name the image that jobs run in.")
    try:
        volume = msgspec.json.decode(config.kubernetes_volume or "{}", type=dict[str, Any])
        api = KubeApi(config.kubernetes_namespace)
    except ImportError:
        raise ConfigError("GPUGRID_DRIVER=kubernetes needs the Python package kubernetes: install it.") from None
    except Exception as error:  # the client's own errors, whatever they are called
        raise ConfigError(f"The Kubernetes API can't be used: {error}") from None
    shape = PodShape(config.kubernetes_image, volume or {"hostPath": {"path": str(nodes_dir(config).resolve())}})
    return KubernetesDriver(clock, nodes_dir(config), site, api, shape)


def memory_of(config: ExecutorConfig) -> GpuMemory:
    """Where to look whether a GPU is really free."""
    return NvmlMemory() if config.driver == "process" and _is_this_machine(config) else Unmeasured()


def mps_dir(config: ExecutorConfig) -> Path:
    """Where the MPS daemons of single cards are found, a folder per card."""
    return Path(config.run_dir).resolve() / "mps"


def sharing_of(
    config: ExecutorConfig, settings: Settings, driver: Driver, clock: Clock
) -> tuple[Cutter | None, Callable[[list[str]], None]]:
    """What cuts this machine's cards, and who has to hear of it."""
    machine = settings.shared
    cutter = cutter_of(machine, config.driver, clock, mps_dir(config), config.cut_command)
    if machine is None or not isinstance(driver, ProcessDriver):
        return cutter, lambda pools: None
    return cutter, device_names(machine, driver.site, driver.site.uuids.get(machine.name, ()))


def _is_this_machine(config: ExecutorConfig) -> bool:
    """Several nodes in one process are a rack that is played: its GPUs aren't this machine's."""
    return len(config.nodes) == 1


def nodes_dir(config: ExecutorConfig) -> Path:
    """Where journals and run folders are, a folder per node."""
    return Path(config.run_dir) / "nodes"
