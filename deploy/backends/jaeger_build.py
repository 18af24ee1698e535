"""Jaeger v2 built from its Go module, once, into the user's cache folder.

Owns: the pinned version, the build and its place. About twelve minutes of one processor, so it is never started by a test: a
test asks `jaeger_path` and skips loudly. Refuses: a half-built binary (it is renamed into place when complete).
Read next: `running.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from deploy.local.cache import cache_root, directory_lock, usable_folder

VERSION = "v1.76.0"
"""Of the module github.com/jaegertracing/jaeger; its `cmd/jaeger` is the v2 binary."""
MODULE = "github.com/jaegertracing/jaeger/cmd/jaeger"
BUILD_WAIT_S = 3600.0
"""For another process that builds at this moment."""
COMMAND_S_MAX = 3600.0
NICE = 19
"""A build must not disturb what else the machine does."""


class JaegerBuildError(RuntimeError):
    """One sentence that says what to do."""


def jaeger_path() -> Path | None:
    """The built binary, or None if it was not built yet."""
    path = _folder() / "jaeger"
    return path if path.is_file() and os.access(path, os.X_OK) else None


def build_jaeger(say: Callable[[str], None]) -> Path:
    """The binary, building it if it is missing. Raises JaegerBuildError."""
    if (found := jaeger_path()) is not None:
        return found
    go = shutil.which("go")
    if go is None:
        raise JaegerBuildError(
            "Go is not installed: install Go 1.25 or newer and run this again, or do without Jaeger."
        )
    folder = usable_folder(_folder())
    with directory_lock(folder, BUILD_WAIT_S, lambda: say("waiting for another build of Jaeger")):
        if (found := jaeger_path()) is not None:
            return found
        say(f"building Jaeger {VERSION} on one processor at the lowest priority: about twelve minutes, once")
        return _build(go, folder)


def _build(go: str, folder: Path) -> Path:
    module = folder / "module"
    module.mkdir(exist_ok=True)
    if not (module / "go.mod").exists():
        _run([go, "mod", "init", "gpugrid.test/jaeger"], module)
    _run([go, "get", "-tool", f"{MODULE}@{VERSION}"], module)
    fresh = folder / "jaeger.new"
    _run([go, "build", "-p", "1", "-trimpath", "-ldflags=-s -w", "-o", str(fresh), MODULE], module)
    return fresh.replace(folder / "jaeger")


def _run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "GOMAXPROCS": "1"}
    nice = ["nice", "-n", str(NICE)] if shutil.which("nice") else []
    done = subprocess.run(
        [*nice, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise JaegerBuildError(f"`{' '.join(command[:3])}` failed ({last}): read {folder}, fix it, and run this again.")


def _folder() -> Path:
    return cache_root() / "jaeger" / VERSION
