"""What `python -m deploy.local.broker` does for people: fill the cache with progress shown, relock, run by hand.

Owns the words and the progress bar. Refuses decisions; `kafka_jars` and `broker` make them.
"""

from __future__ import annotations

import signal
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from deploy.local import kafka_jars, warm_start
from deploy.local.broker import EmbeddedBroker


class ProgressBar:
    """Downloads as one bar; a line now and then where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("Kafka {task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("jars", total=None, start=False, visible=False)

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, bytes_total: int) -> None:
        """Show the bar."""
        if not self._console.is_terminal:  # a bar cannot move in a log file
            self._console.print(f"Downloading Kafka ({bytes_total / 1e6:.0f} MB, once) ...")
        self._bar.update(self._task, total=bytes_total, visible=True)
        self._bar.start_task(self._task)

    def add(self, count_bytes: int) -> None:
        """Move the bar."""
        self._bar.advance(self._task, count_bytes)

    def waiting(self) -> None:
        """Say why nothing moves."""
        self._console.print("Another process is downloading Kafka; waiting for it ...")


def resolve_with_progress(console: Console | None = None) -> int:
    """Fill the cache: jars, bootstrap checkpoint, ahead-of-time cache. Quick and quiet when all is there."""
    console = console or Console(stderr=True)
    with ProgressBar(console) as bar:
        home = kafka_jars.resolve(progress=bar)
    if not warm_start.aot_cache_path(home).exists():
        console.print("Preparing Kafka for quick starts (once, about 10 s) ...")
        if not warm_start.record():
            console.print("That did not work; Kafka will take 3 s longer to start, nothing else changes.")
    console.print(f"Kafka {kafka_jars.read_lock().version} is ready in {home}.")
    return 0


def lock(version: str) -> int:
    """Rewrite the lock file from the registry."""
    count = kafka_jars.relock(version)
    print(f"Locked Kafka {version}: {count} jars in {kafka_jars.LOCK_FILE.name}.")
    return 0


def run(folder: Path, port: int) -> int:
    """A broker in the foreground, for experiments."""
    with EmbeddedBroker(folder, port=port) as broker:
        print(f"Kafka is ready on {broker.address} (data in {broker.data_dir}); Ctrl-C stops it.", flush=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0
