"""Configuration: one frozen Struct per service, read once in `__main__` from `GPUGRID_<FIELD>` environment variables.

Owns: reading and checking, the fields every service shares, and the clock a specification names. Refuses defaults that
differ by environment, and silence: a wrong value is one sentence that names the variable. Read next: `process.py`.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from schemas.catalog import Catalog, read_catalog
from services.runtime.clock import Clock, WallClock
from services.runtime.scaled_clock import ClockFileError, ScaledClock

PREFIX = "GPUGRID_"


class ConfigError(Exception):
    """One sentence for the person who set the variable."""


class ServiceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What every service reads. Subclasses add fields; lists are comma-separated."""

    bootstrap: Annotated[str, Meta(min_length=1)] = "127.0.0.1:9092"
    """Kafka: host:port, several separated by commas."""
    clusters: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)] = ("c0",)
    """The clusters this process may work for."""
    instance_id: str = ""
    """This process among its kind; stable over restarts. Empty: the service's name."""
    run_dir: Annotated[str, Meta(min_length=1)] = "run"
    """Where ports, spans and other facts about this run are written."""
    health_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Loopback port of /healthz, /readyz and /metrics; 0 takes a free one (see RUN_DIR/health)."""
    clock: str = "wall"
    """`wall`, or `scaled:FILE` for a replay."""
    log_level: typing.Literal["debug", "info", "warning", "error"] = "info"


C = TypeVar("C", bound=msgspec.Struct)


def load(kind: type[C], environ: Mapping[str, str]) -> C:
    """The configuration, from `GPUGRID_*` variables and defaults. Raises ConfigError."""
    hints = typing.get_type_hints(kind, include_extras=True)
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        variable = variable_of(field.name)
        text = environ.get(variable)
        if text is not None:
            values[field.name] = _read(variable, text, hints[field.name])
        elif field.required:
            raise ConfigError(f"{variable} is not set: it is needed and has no default.")
    return kind(**values)


def variable_of(field: str) -> str:
    return f"{PREFIX}{field.upper()}"


def clock_of(specification: str) -> Clock:
    """The clock a configuration names. Raises ConfigError."""
    if specification == "wall":
        return WallClock()
    kind, _, file = specification.partition(":")
    if kind != "scaled" or not file:
        raise ConfigError(f"{variable_of('clock')} must be `wall` or `scaled:FILE`, not {specification!r}.")
    try:
        return ScaledClock(Path(file))
    except ClockFileError as error:
        raise ConfigError(f"{variable_of('clock')}: {error}.") from error


def catalog_in(path: str) -> Catalog:
    """The catalog that `GPUGRID_CATALOG` names. Raises ConfigError."""
    variable = variable_of("catalog")
    try:
        return read_catalog(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{variable} {path} can't be read ({error.strerror}).") from None
    except ValueError as error:
        raise ConfigError(f"{variable} {path} is no catalog: {error}.") from None


def _read(variable: str, text: str, hint: Any) -> Any:
    value: Any = text
    if _is_tuple(hint):
        value = [part.strip() for part in text.split(",") if part.strip()]
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        reason = str(error).split(" - at ")[0]
        raise ConfigError(f"{variable} is {text!r}, which can't be used: {reason}.") from None


def _is_tuple(hint: Any) -> bool:
    if typing.get_origin(hint) is Annotated:
        return _is_tuple(typing.get_args(hint)[0])
    return typing.get_origin(hint) is tuple
