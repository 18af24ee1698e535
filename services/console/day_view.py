"""Simulated days, with progress, as tables and as one document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from services.console.errors import ConsoleError
from services.console.session import Session


def simulate(
    session: Session,
    *,
    seed: int,
    seeds: int,
    hours: float,
    gpus: int,
    trace: Path | None,
    workers: int,
    quiet: bool,
) -> dict[str, Any]:
    """Simulate the days and (unless quiet) show them; the document for programs. ConsoleError for a bad trace."""
    from services.replay.shell.tables import comparison_table, day_table, gains_line, latency_table
    from services.replay.simulate import DayOptions, Simulated, simulate_days

    days: dict[int, Simulated] = {}
    options = [DayOptions(seed=seed + index, hours=hours, gpus=gpus, trace=trace) for index in range(seeds)]
    with session.spinner(_progress(0, seeds)) as spinner:

        def done(index: int, simulated: Simulated) -> None:
            days[index] = simulated
            if spinner is not None:
                spinner.update(_progress(len(days), seeds))

        try:
            comparison = simulate_days(options, workers=workers, done=done)
        except ValueError as error:
            raise ConsoleError(str(error)) from None
    if not quiet:
        if seeds == 1:
            session.print(day_table(comparison.days[0]), gains_line(comparison.days[0]), latency_table(days[0].hops))
            session.print(f"{days[0].decisions} decisions in {days[0].took_s:.1f} s; digest {days[0].digest[:16]}.")
        else:
            session.print(comparison_table(comparison))
    return {
        "days": [
            {
                "day": one.day.name,
                "seed": one.day.seed,
                "digest": one.digest,
                "decisions": one.decisions,
                "rejected": one.rejected,
                "dead_letters": one.dead_letters,
                "took_s": one.took_s,
                "latency": {name: msgspec.to_builtins(hop) for name, hop in one.hops.items()},
            }
            for _, one in sorted(days.items())
        ],
        "comparison": msgspec.to_builtins(comparison),
    }


def _progress(done: int, wanted: int) -> str:
    return f"Simulating: {done} of {wanted} days" if wanted > 1 else "Simulating the day"


def write_json(file: Path, document: dict[str, Any]) -> None:
    """Write the document. ConsoleError says why it can't be."""
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    except OSError as error:
        raise ConsoleError(f"{file} can't be written: {error.strerror}.") from None
