"""Measured throughputs become speeds beside a V100: one GPU, alone, by family; the shipped table is what comes out."""

from __future__ import annotations

from bench.mixed.gavel_speeds import reduced, toml_of
from services.intake.shell.measured import shipped_speeds


def test_throughputs_of_one_gpu_alone_become_a_speed_per_family() -> None:
    def steps(value: float) -> dict[str, float]:
        return {"null": value}

    table = reduced(
        {
            "v100": {
                "('ResNet-50 (batch size 16)', 1)": steps(10.0),
                "('ResNet-50 (batch size 32)', 1)": steps(4.0),
                "('ResNet-50 (batch size 32)', 4)": steps(99.0),
                "('A3C', 1)": steps(8.0),
            },
            "p100": {
                "('ResNet-50 (batch size 16)', 1)": steps(5.0),
                "('ResNet-50 (batch size 32)', 1)": steps(0.5),
                "('A3C', 1)": steps(4.0),
            },
            "k80": {
                "('ResNet-50 (batch size 16)', 1)": steps(1.0),
                "('ResNet-50 (batch size 32)', 1)": steps(0.0),
                "('A3C', 1)": steps(2.0),
            },
        }
    )
    assert table["ResNet-50"] == {"v100": 1.0, "p100": 0.25, "k80": 0.1}
    assert table["A3C"] == {"v100": 1.0, "p100": 0.5, "k80": 0.25}
    assert table["any"] == {"v100": 1.0, "p100": 0.354, "k80": 0.158}
    assert "speeds = { v100 = 1.0, p100 = 0.25, k80 = 0.1 }" in toml_of(table)


def test_the_shipped_table_has_all_gpus_for_every_family() -> None:
    assert {frozenset(family.speeds) for family in shipped_speeds().families.values()} == {
        frozenset({"v100", "p100", "k80"})
    }
