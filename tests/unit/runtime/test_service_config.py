"""Configuration from the environment: types, defaults, and one sentence for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.runtime.clock import WallClock
from services.runtime.config import ConfigError, ServiceConfig, catalog_in, clock_of, load
from services.runtime.scaled_clock import ClockControl, ScaledClock


class Example(ServiceConfig, frozen=True, kw_only=True):
    node: str
    period_s: float = 2.5
    verify: bool = True


def test_reads_types_and_defaults():
    config = load(
        Example,
        {
            "GPUGRID_NODE": "n00",
            "GPUGRID_PERIOD_S": "0.5",
            "GPUGRID_VERIFY": "false",
            "GPUGRID_CLUSTERS": "c0, c1",
            "GPUGRID_HEALTH_PORT": "8080",
            "UNRELATED": "x",
        },
    )
    assert (config.node, config.period_s, config.verify) == ("n00", 0.5, False)
    assert (config.clusters, config.health_port, config.bootstrap) == (("c0", "c1"), 8080, "127.0.0.1:9092")
    assert load(Example, {"GPUGRID_NODE": "n00"}).clusters == ("c0",)


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({}, "GPUGRID_NODE is not set"),
        (
            {"GPUGRID_NODE": "n", "GPUGRID_HEALTH_PORT": "70000"},
            "GPUGRID_HEALTH_PORT is '70000', which can't be used: ",
        ),
        ({"GPUGRID_NODE": "n", "GPUGRID_HEALTH_PORT": "x"}, "GPUGRID_HEALTH_PORT is 'x'"),
        ({"GPUGRID_NODE": "n", "GPUGRID_PERIOD_S": "soon"}, "GPUGRID_PERIOD_S is 'soon'"),
        ({"GPUGRID_NODE": "n", "GPUGRID_VERIFY": "perhaps"}, "GPUGRID_VERIFY is 'perhaps'"),
        ({"GPUGRID_NODE": "n", "GPUGRID_LOG_LEVEL": "loud"}, "GPUGRID_LOG_LEVEL is 'loud'"),
        ({"GPUGRID_NODE": "n", "GPUGRID_CLUSTERS": " , "}, "GPUGRID_CLUSTERS is ' , '"),
    ],
)
def test_names_the_variable_that_is_wrong(environ: dict[str, str], sentence: str):
    with pytest.raises(ConfigError) as raised:
        load(Example, environ)
    assert str(raised.value).startswith(sentence)
    assert "\n" not in str(raised.value)


def test_makes_the_clock_that_is_named(tmp_path: Path):
    assert isinstance(clock_of("wall"), WallClock)
    ClockControl.create(tmp_path / "clock", start_ms=5, speed=1.0, paused=True)
    scaled = clock_of(f"scaled:{tmp_path / 'clock'}")
    assert isinstance(scaled, ScaledClock)
    assert scaled.now_ms() == 5
    for wrong in ("", "sundial", "scaled:", f"scaled:{tmp_path / 'missing'}"):
        with pytest.raises(ConfigError, match="GPUGRID_CLOCK"):
            clock_of(wrong)


def test_a_catalog_that_is_missing_or_none_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^GPUGRID_CATALOG .*catalog\.toml can't be read \(No such file or directory\)\.$"
    ):
        catalog_in(str(tmp_path / "catalog.toml"))
    file = tmp_path / "other.toml"
    for content in (b"clusters = 3", b"no toml", b"\xff"):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match="is no catalog"):
            catalog_in(str(file))
