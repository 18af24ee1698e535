"""Runs a backtest for people (progress, tables) or programs (one document), and writes its picture and rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from services.console.errors import ConsoleError, UsageError
from services.console.session import Session
from services.replay.backtest import Backtest, BacktestOptions, run_backtest, settled
from services.replay.core.beliefs import Level


def options_of(
    *,
    trace: str,
    file: Path | None,
    start: str | None,
    days: int,
    gpus: int | None,
    load: str | None,
    levels: str,
    schedulers: str | None,
    seed: int,
) -> BacktestOptions:
    """From the words of the command line. UsageError says which word is none."""
    options = BacktestOptions(
        trace=trace,
        file=file,
        start=start,
        days=days,
        gpus=gpus,
        seed=seed,
        load=_load(load),
        levels=tuple(_level(name) for name in _words(levels)),
    )
    return options if schedulers is None else replace(options, schedulers=_words(schedulers))


def run(
    session: Session, options: BacktestOptions, *, workers: int, svg: Path | None, csv: Path | None, as_json: bool
) -> None:
    """Run and show."""
    from services.replay.shell.backtest_picture import backtest_svg
    from services.replay.shell.backtest_rows import backtest_csv
    from services.replay.shell.backtest_view import backtest_tables

    found = _found(session, options, workers)
    if svg is not None:
        _write(svg, backtest_svg(found))
    if csv is not None:
        _write(csv, backtest_csv(found))
    if as_json:
        session.json(msgspec.to_builtins(found))
    else:
        session.print(backtest_tables(found))


def _found(session: Session, options: BacktestOptions, workers: int) -> Backtest:
    try:
        with session.spinner("Looking for the load at which FIFO's P90 wait exceeds two hours") as spinner:
            chosen = settled(options)

            def done(name: str, finished: int, of: int) -> None:
                if spinner is not None:
                    spinner.update(f"Backtest at load {chosen.load:g}: {finished} of {of} runs, last {name}")

            if spinner is not None:
                spinner.update(f"Backtest at load {chosen.load:g}")
            return run_backtest(chosen, workers=workers, done=done)
    except ValueError as error:
        raise ConsoleError(f"{str(error)[:1].upper()}{str(error)[1:]}.") from None


def _load(word: str | None) -> float | None:
    if word is None:
        return None
    try:
        return float(word)
    except ValueError:
        raise UsageError(f"--load {word} is neither a number nor auto.") from None


def _level(word: str) -> Level:
    try:
        return Level(word)
    except ValueError:
        raise UsageError(f"--levels {word} is none of {', '.join(level.value for level in Level)}.") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConsoleError(f"{file} can't be written: {error.strerror}.") from None
