"""The catalog: which clusters and pools exist, where each cluster's partition is, which teams may submit, what is absurd.

Configuration, not events; it lives here because intake, allocator, executor and console have to agree on it. Read from a TOML file.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from schemas.base import GpuCount, Identifier, MemoryMib, ShortText
from schemas.topics import CLUSTER_PARTITIONS


class SlotKind(Enum):
    """How a card is shared: by MIG instances (memory and compute apart), or by MPS clients (memory limited, compute shared)."""

    MIG = "mig"
    MPS = "mps"


class Slots(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pool of equal parts of cards. `of`: the pool of whole cards that they are cut from. `profile`: of MIG, as nvidia-smi names it.

    `threads_pct`: of MPS, the part of a card's multiprocessors that a slot may use; 0: an equal part.
    """

    of: Identifier
    kind: SlotKind
    per_card: Annotated[int, Meta(ge=2, le=48)]
    profile: ShortText = ""
    threads_pct: Annotated[int, Meta(ge=0, le=100)] = 0

    def __post_init__(self) -> None:
        if (self.kind is SlotKind.MIG) is not bool(self.profile):
            raise ValueError("slots of kind mig need a profile, those of kind mps have none")


class Pool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs of one model and driver. `gpus` and `node_gpus` are the planned size; the real inventory comes from the nodes.

    `speed`: how fast this pool is beside others that have one, for jobs that know no better. With `slots` a GPU is a part of a card,
    and `memory_mib` is what one part has.
    """

    gpus: GpuCount
    node_gpus: GpuCount
    gpu_model: ShortText
    memory_mib: MemoryMib
    speed: Annotated[float, Meta(gt=0, le=1000)] | None = None
    slots: Slots | None = None

    @property
    def slots_per_card(self) -> int:
        return 1 if self.slots is None else self.slots.per_card


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The unit one allocator owns. `partition`: of every cluster topic."""

    partition: Annotated[int, Meta(ge=0)]
    pools: Annotated[dict[Identifier, Pool], Meta(min_length=1)]

    def __post_init__(self) -> None:
        for name, pool in self.pools.items():
            if pool.slots is None:
                continue
            whole, per_card = self.pools.get(pool.slots.of), pool.slots.per_card
            if whole is None or whole.slots is not None:
                raise ValueError(f"pool {name}: slots.of must name a pool of whole cards, not {pool.slots.of!r}")
            if pool.memory_mib * per_card > whole.memory_mib:
                most = whole.memory_mib // per_card
                raise ValueError(f"pool {name}: {per_card} slots of one card have at most {most} MiB each")
            if pool.node_gpus % per_card:
                raise ValueError(f"pool {name}: node_gpus counts slots, so it must be a multiple of {per_card}")


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What intake refuses as absurd. `clock_skew_s_max`: a submission stamped further ahead is refused, within it is flagged."""

    time_limit_s_max: float = 31_536_000.0
    clock_skew_s_max: float = 86_400.0
    clock_skew_flag_s: float = 60.0
    environment_count_max: int = 256


class Catalog(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`teams` empty: every team may submit. `default_cluster`: for jobs that name none."""

    clusters: Annotated[dict[Identifier, Cluster], Meta(min_length=1)]
    default_cluster: Identifier
    teams: list[Identifier] = []
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if self.default_cluster not in self.clusters:
            raise ValueError(f"default_cluster {self.default_cluster!r} is not among the clusters")
        for name, cluster in self.clusters.items():
            if cluster.partition >= CLUSTER_PARTITIONS:
                raise ValueError(f"cluster {name}: partition must be below {CLUSTER_PARTITIONS}")

    def partition_of(self, cluster: str) -> int:
        """The partition of every cluster topic that carries this cluster's events. Raises KeyError for an unknown cluster."""
        return self.clusters[cluster].partition


def read_catalog(document: bytes) -> Catalog:
    """Catalog from a TOML document. Raises msgspec.ValidationError naming the field, or ValueError."""
    return msgspec.toml.decode(document, type=Catalog)
