"""A small process for supervisor tests: says it is ready by a file, stops on SIGTERM, leaves a child behind if told to.

Not a test: run as `python supervised_program.py READY_FILE [--child] [--stubborn] [--fail]`.
"""

import signal
import subprocess
import sys
import threading
from pathlib import Path


def main() -> None:
    """Be a service."""
    ready, options = Path(sys.argv[1]), sys.argv[2:]
    ready.unlink(missing_ok=True)
    if "--fail" in options:
        print("no such setting: GPUGRID_NONSENSE")
        sys.exit(3)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: None if "--stubborn" in options else stop.set())
    if "--child" in options:
        # In a session of its own, as a job of an executor would be.
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)", f"job-of-{ready}"]
        subprocess.Popen(sleeper, start_new_session=True)
    ready.write_text("ready")
    while not stop.wait(0.05):
        pass
    with (ready.parent / "order").open("a") as order:
        order.write(f"{ready.name}\n")


if __name__ == "__main__":
    main()
