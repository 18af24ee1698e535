"""One embedded Kafka: a real broker and controller in one Java process, on loopback, in one data folder.

    with EmbeddedBroker(folder) as broker:
        ...  # broker.address, broker.kill(), broker.start(), broker.ready(30)

Owns the process and its folder. Refuses to listen on anything but loopback, to reformat data, to run twice on one folder and to
outlive its owner (see `guarded`). The folder is locked by the owner: Kafka takes a lock of its own only after it has opened the
metadata log, and a second one on a busy machine reads, and may write, what the first is writing. `python -m deploy.local.broker
resolve` fills the cache.
Read next: `topics`, `supervisor`.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from deploy.local.broker_files import (
    bootstrap_checkpoint,
    format_log_dir,
    log_settings_path,
    write_configuration,
)
from deploy.local.cache import directory_lock, write_failure
from deploy.local.guarded import GuardedProcess
from deploy.local.jvm import HEAP_MIB, aot_cache_path, java_argv
from deploy.local.kafka_jars import KafkaUnavailableError, Progress, jar_paths, read_lock, resolve
from deploy.local.ports import HOST, free_port, is_free

READY_WAIT_S = 60.0  # 1 s alone with a warm cache, 4 s without; recovery after kill -9 of a full log adds seconds
STOP_GRACE_S = 15.0  # an orderly stop takes 0.5 s; a broker that hangs longer recovers its log at the next start
PORT_TRIES_MAX = 3  # two stacks that start together may draw the same free port
POLL_S = 0.02
PROBE_WAIT_S = 0.5
_API_VERSIONS = struct.pack(">hhihB", 18, 0, 1, 1, ord("g"))  # api, version, correlation id, client id "g"


class BrokerFailedError(RuntimeError):
    """The broker did not start; the message is one sentence that says what to do."""


def answers(port: int, wait_s: float = PROBE_WAIT_S) -> bool:
    """Whether a Kafka broker serves requests on loopback `port` (it opens the port last of all)."""
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), wait_s) as connection:
        connection.sendall(struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS)
        return len(connection.recv(4)) == 4
    return False


class EmbeddedBroker:
    """A broker in `data_dir`; `port` 0 means a free one, kept over restarts so that clients find it again."""

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        heap_mib: int = HEAP_MIB,
        java_options: tuple[str, ...] = (),
        progress: Progress | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.port = port
        self.controller_port = 0
        self.process: GuardedProcess | None = None
        self._port_is_free_to_change = port == 0
        self._heap_mib = heap_mib
        self._java_options = java_options
        self._progress = progress
        self._held: ExitStack | None = None

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{HOST}:{self.port}"

    @property
    def log_path(self) -> Path:
        """What the Java process printed; Kafka's own log is `kafka.log` beside it."""
        return self.data_dir / "kafka.out"

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        if self.process is None:
            raise BrokerFailedError("The broker is not running: call start() first.")
        return self.process.pid

    def prepare(self) -> list[str]:
        """Everything short of starting: jars, ports, configuration, format; returns the command line."""
        lock = read_lock()
        home = resolve(lock, self._progress)
        checkpoint = bootstrap_checkpoint(home, lock)
        self._choose_ports()
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            properties = write_configuration(self.data_dir, self.port, self.controller_port)
            format_log_dir(self.data_dir, checkpoint)
        except OSError as error:
            raise BrokerFailedError(write_failure(self.data_dir, error, "use a run folder on another disk")) from error
        options = [f"-Dlog4j2.configurationFile={log_settings_path(self.data_dir).as_uri()}"]
        ahead_of_time = aot_cache_path(home)
        if ahead_of_time.exists() and not self._java_options:
            options.append(f"-XX:AOTCache={ahead_of_time}")
        argv = java_argv(jar_paths(home, lock), heap_mib=self._heap_mib, options=(*options, *self._java_options))
        return [*argv, "kafka.Kafka", str(properties)]

    def start(self) -> None:
        """Start the process; `ready` says when it serves."""
        if self.process is not None and self.process.poll() is None:
            raise BrokerFailedError(f"The broker on {self.address} is already running: stop it first.")
        self._hold_folder()
        try:
            argv = self.prepare()
            self.process = GuardedProcess(argv, log_path=self.log_path, cwd=self.data_dir)
        except BaseException:
            self._let_go()
            raise

    def ready(self, wait_s: float = READY_WAIT_S) -> None:
        """Wait until requests are answered."""
        deadline = time.monotonic() + wait_s
        tries = 1
        while True:
            process = self.process
            if process is None:
                raise BrokerFailedError("The broker is not running: call start() first.")
            if process.poll() is not None:
                if not (self._port_is_free_to_change and self._lost_its_port() and tries < PORT_TRIES_MAX):
                    raise BrokerFailedError(self.explain())
                tries += 1
                process.close()
                self.port = self.controller_port = 0
                self.start()
            elif answers(self.port):
                self._port_is_free_to_change = False
                return
            elif time.monotonic() > deadline:
                raise BrokerFailedError(
                    f"Kafka on {self.address} did not answer within {wait_s:.0f} s: see {self.data_dir}/kafka.log, and "
                    "try again when the machine is less busy."
                )
            select.select([process], [], [], POLL_S)

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Orderly stop; killed after `grace_s`. Nothing of it is left on return."""
        if self.process is not None:
            self.process.stop(grace_s)
            self.process = None
        self._let_go()

    def kill(self) -> None:
        """SIGKILL, as a test or a power cut would; `start` recovers the same data."""
        if self.process is not None:
            self.process.close()
            self.process = None
        self._let_go()

    def __enter__(self) -> EmbeddedBroker:
        try:
            self.start()
            self.ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def explain(self) -> str:
        """Why the broker ended, in one sentence, as far as its logs tell."""
        text = self._last_log()
        if "No space left on device" in text:
            return f"Kafka stopped because the disk of {self.data_dir} is full: free some space and start again."
        if self._lost_its_port():
            return f"Kafka could not bind port {self.port} or {self.controller_port}: stop what listens there."
        if "Failed to acquire lock on file" in text:
            return self._taken()
        if "insufficient memory" in text.lower() or "Could not reserve enough space" in text:
            return f"There is too little memory for Kafka's {self._heap_mib} MiB heap: close something and start again."
        hint = next(
            (line for line in reversed(text.splitlines()) if "ERROR" in line or "Error" in line), "no reason given"
        )
        return f"Kafka stopped ({hint.strip()[:200]}): see {self.data_dir}/kafka.log."

    def _hold_folder(self) -> None:
        """Nobody else starts a broker there until `stop` or `kill`, or this process ends."""
        if self._held is not None:
            return
        held = ExitStack()
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            held.enter_context(directory_lock(self.data_dir, wait_s=0.0))
        except TimeoutError:
            raise BrokerFailedError(self._taken()) from None
        except OSError as error:
            raise BrokerFailedError(write_failure(self.data_dir, error, "use a run folder on another disk")) from error
        self._held = held

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def _taken(self) -> str:
        return f"Another broker runs on {self.data_dir}: stop it (gpugrid down) or use another run folder."

    def _choose_ports(self) -> None:
        if self.port == 0:
            self.port = free_port()
        elif not is_free(self.port):
            raise BrokerFailedError(
                f"Port {self.port} on {HOST} is in use: stop what listens there, or choose another port for Kafka."
            )
        if self.controller_port == 0 or not is_free(self.controller_port):
            self.controller_port = free_port(taken=(self.port,))

    def _lost_its_port(self) -> bool:
        return "Address already in use" in self._last_log() or "Failed to bind" in self._last_log()

    def _last_log(self) -> str:
        text = ""
        for path in (self.data_dir / "kafka.log", self.log_path):
            with contextlib.suppress(OSError):
                text += path.read_text(errors="replace")[-20_000:]
        return text


def main(argv: list[str]) -> int:
    """`resolve` fills the cache, `lock [VERSION]` rewrites the lock file, `run FOLDER [PORT]` runs until Ctrl-C."""
    from deploy.local import broker_commands

    try:
        match argv:
            case ["resolve"]:
                return broker_commands.resolve_with_progress()
            case ["lock", *version]:
                return broker_commands.lock(version[0] if version else read_lock().version)
            case ["run", folder, *port]:
                return broker_commands.run(Path(folder), int(port[0]) if port else 0)
    except (KafkaUnavailableError, BrokerFailedError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; what was downloaded so far is kept.", file=sys.stderr)
        return 130
    print(main.__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
