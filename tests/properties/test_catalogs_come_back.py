"""A catalog written as TOML is read as it was: clusters, pools, speeds, slots, teams, limits."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.catalog import CLUSTER_PARTITIONS, Catalog, Cluster, Limits, Pool, SlotKind, Slots, read_catalog
from services.replay.core.catalog import toml_of

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
TEXTS = st.text(min_size=1, max_size=20)
SPEEDS = st.none() | st.floats(min_value=1e-6, max_value=1000)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    pools: dict[str, Pool] = {}
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        pools[name] = Pool(gpus=64, node_gpus=8, gpu_model=draw(TEXTS), memory_mib=80_000, speed=draw(SPEEDS))
        if draw(st.booleans()):
            kind, per_card = draw(st.sampled_from(SlotKind)), draw(st.integers(min_value=2, max_value=48))
            slots = Slots(
                of=name,
                kind=kind,
                per_card=per_card,
                profile=draw(TEXTS) if kind is SlotKind.MIG else "",
                threads_pct=draw(st.integers(min_value=0, max_value=100)),
            )
            part = Pool(gpus=per_card, node_gpus=per_card, gpu_model=draw(TEXTS), memory_mib=1000, slots=slots)
            pools[f"{name}-part"] = part
    return Cluster(partition=draw(st.integers(min_value=0, max_value=CLUSTER_PARTITIONS - 1)), pools=pools)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, clusters(), min_size=1, max_size=3), st.lists(NAMES, max_size=3), st.booleans())
def test_any_catalog_is_read_as_it_was_written(found: dict[str, Cluster], teams: list[str], limited: bool) -> None:
    limits = Limits(time_limit_s_max=3600.5, environment_count_max=7) if limited else Limits()
    catalog = Catalog(clusters=found, default_cluster=next(iter(found)), teams=teams, limits=limits)
    assert read_catalog(toml_of(catalog).encode()) == catalog
