"""Copy this file into your project: checkpoints on request and progress for a job that runs under gpugrid.

    job = Job()
    state = load(job.resume_location) if job.resume_location else fresh()
    for step in range(state.step, steps):
        train(state)
        job.progress(step=step + 1, fraction=(step + 1) / steps, samples_per_s=rate)
        if job.checkpoint_wanted():
            job.saved((step + 1) / steps, save(state))

Standard library only, Python 3.8 and later, no part of gpugrid needed; without gpugrid around it everything is a no-op.
"""

import json
import os
import signal
import socket
from pathlib import Path


class Job:
    """`resume_fraction` and `resume_location`: what an earlier attempt has saved (0.0 and "" at the first start)."""

    def __init__(self, on: str = "SIGUSR1") -> None:
        self.resume_fraction = float(os.environ.get("GPUGRID_RESUME_FRACTION", "0"))
        self.resume_location = os.environ.get("GPUGRID_RESUME_LOCATION", "")
        self._request = os.environ.get("GPUGRID_CHECKPOINT_REQUEST", "")
        self._asked = False
        self._answered = 0.0
        signal.signal(getattr(signal, on), self._ask)

    def _ask(self, *_: object) -> None:
        self._asked = True

    def checkpoint_wanted(self) -> bool:
        """True once per request, whether it came by signal or by file. Cheap: ask after every step."""
        asked, self._asked = self._asked, False
        requested = self._requested_at()
        if requested == 0.0:
            return asked
        wanted, self._answered = requested > self._answered, requested
        return wanted

    def saved(self, fraction: float, location: str) -> None:
        """After the checkpoint is on disk: `fraction` of the whole job is safe at `location`. Also without having been asked."""
        self._say("checkpoint", {"fraction": fraction, "location": location}, "GPUGRID_CHECKPOINT_ANSWER")

    def progress(self, **facts: float) -> None:
        """`step`, `fraction`, `samples_per_s`: any of them, as often as you like."""
        self._say("progress", facts, "GPUGRID_PROGRESS")

    def _requested_at(self) -> float:
        try:
            return Path(self._request).stat().st_mtime_ns if self._request else 0.0
        except OSError:
            return 0.0

    def _say(self, kind: str, content: dict, variable: str) -> None:
        """A line on the socket; a file, if nobody listens there at the moment."""
        path = os.environ.get("GPUGRID_SOCKET", "")
        if path:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                    line.settimeout(1.0)
                    line.connect(path)
                    line.sendall(json.dumps({kind: content}).encode() + b"\n")
                return
            except OSError:
                pass
        path = os.environ.get(variable, "")
        if path:
            fresh = Path(path + ".new")
            fresh.write_text(json.dumps(content))
            fresh.replace(path)
