"""What the supervisor is told about a process: how to start it, when it is ready, and what to do when it dies.

Data and two probes; owns no process. Read next: `supervisor`.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from deploy.local.ports import HOST

PROBE_WAIT_S = 0.3  # a health endpoint on loopback answers in milliseconds; the supervising thread waits no longer

Argv = Sequence[str] | Callable[[], Sequence[str]]
Probe = Callable[[], bool]


@dataclass(frozen=True)
class RestartPolicy:
    """When to start again, after which pause, and when to give up.

    `back_off_s` is taken in order by deaths within `window_s`; a process that lived longer starts over. The first pause
    is none: a killed process should be back at once, and only one that keeps dying should be slowed down.
    """

    when: Literal["always", "on_failure", "never"] = "always"
    back_off_s: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 5.0)
    restarts_max: int = 8
    window_s: float = 60.0
    first_tries_max: int = 3  # a process that was never ready is most likely misconfigured: say so soon

    def pause_s(self, exit_code: int, recent_deaths: int, was_ready: bool = True) -> float | None:
        """Seconds until the next start after the `recent_deaths`-th death within the window; None: not again."""
        if self.when == "never" or (self.when == "on_failure" and exit_code == 0):
            return None
        if recent_deaths > self.restarts_max or (not was_ready and recent_deaths >= self.first_tries_max):
            return None
        return self.back_off_s[min(recent_deaths, len(self.back_off_s)) - 1]


@dataclass(frozen=True)
class ProcessSpec:
    """One process of a stack.

    `argv` may be a function, called before every start, that prepares things and returns the command line; what it
    raises as RuntimeError or OSError counts as a failed start. `env` is added to the supervisor's own environment.
    Processes of one `stage` start together once all earlier stages are ready; stages stop in reverse.
    `on_first_ready` runs in the supervising thread before the next stage starts.
    `progress` says how far a start has come: one that says something new goes on beyond `ready_wait_s`.
    `explain` puts a death into words where the last line of the process's output would not.
    `keep_orphans`: what the process started survives its death (and is adopted by the next one), never the stack's.
    """

    name: str
    argv: Argv
    env: Mapping[str, str] = field(default_factory=dict)
    ready: Probe | None = None
    stage: int = 0
    restart: RestartPolicy = RestartPolicy()
    ready_wait_s: float = 60.0
    progress: Callable[[], str] | None = None
    stop_grace_s: float = 10.0
    keep_orphans: bool = False
    explain: Callable[[], str] | None = None
    on_first_ready: Callable[[], None] | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    cwd: Path | None = None


def http_ready(port: int, path: str = "/ready") -> Probe:
    """Ready when `GET path` on loopback answers 200."""
    return lambda: _get(port, path)[0] == http.client.OK


def http_progress(port: int, path: str = "/ready") -> Callable[[], str]:
    """What `GET path` on loopback answers; empty if nobody does."""
    return lambda: _get(port, path)[1]


def _get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=PROBE_WAIT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


def file_ready(path: Path) -> Probe:
    """Ready when the file exists; the process must remove a stale one before it begins."""
    return path.exists
