"""The telemetry benchmark's load is what agents really send: whole, believed, of real size, at the pace it claims."""

from __future__ import annotations

from bench.telemetry.load import NODE_GPUS, catalog_toml, placements, publish_evenly, sample
from schemas.catalog import read_catalog
from schemas.codec import decode
from schemas.placements import NodePlaced
from services.telemetry.core.readings import believed


def test_samples_are_whole_and_believed() -> None:
    sent = sample(7, 1_800_000_000_000, 10.0)
    event = decode(sent.headers, sent.value).event
    assert (event.node, len(event.gpus), sent.key) == ("n0007", NODE_GPUS, b"n0007")
    assert all(believed(gpu).rejected == () for gpu in event.gpus)
    assert 3_000 < len(sent.value or b"") < 8_000


def test_every_gpu_is_held_and_the_catalog_fits() -> None:
    events = [decode(each.headers, each.value).event for each in placements(3)]
    assert all(isinstance(event, NodePlaced) for event in events)
    assert sorted(gpu for one in events[0].assignments for gpu in one.gpus) == list(range(NODE_GPUS))
    assert read_catalog(catalog_toml(3).encode()).clusters["c0"].pools["h100"].gpus == 3 * NODE_GPUS


async def test_the_pace_is_kept_and_every_node_has_its_turn() -> None:
    class Kept:
        keys: list[bytes | None] = []

        async def send_all(self, messages) -> None:
            self.keys += [each.key for each in messages]

    kept = Kept()
    sent = await publish_evenly(kept, 5, 0.5, 1.05)
    assert sent == len(kept.keys)
    assert 8 <= sent <= 11
    assert set(kept.keys[:5]) == {f"n{number:04d}".encode() for number in range(5)}
