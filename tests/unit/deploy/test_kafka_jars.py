"""Jars come once, verified, resumable, one process at a time; whatever goes wrong is one sentence and leaves no debris."""

from __future__ import annotations

import hashlib
import http.server
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.kafka_jars import (
    LOCK_FILE,
    Jar,
    KafkaLock,
    KafkaUnavailableError,
    damaged,
    is_complete,
    jar_paths,
    kafka_home,
    read_lock,
    resolve,
)

WAIT_S = 30.0
CONTENTS = {f"part{index}": bytes([index]) * (40_000 + index) for index in range(6)}


def _lock() -> KafkaLock:
    jars = tuple(
        Jar("org.example", name, "1.0", len(data), hashlib.sha256(data).hexdigest()) for name, data in CONTENTS.items()
    )
    return KafkaLock(version="0.0", jars=jars, digest="d0")


class Registry:
    """A Maven repository on loopback: counts requests, and can lie, refuse, or hang after the first bytes."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.wrong = ""
        self.refused = ""
        self.hanging = ""
        self.hangs = threading.Event()
        self._release = threading.Event()
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        name = request.path.rpartition("/")[2]
        artifact = name.removesuffix("-1.0.jar")
        if artifact not in CONTENTS or artifact == self.refused:
            request.send_error(404)
            return
        self.requests.append(artifact)
        data = b"\xff" * len(CONTENTS[artifact]) if artifact == self.wrong else CONTENTS[artifact]
        request.send_response(200)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if artifact == self.hanging:
            request.wfile.write(data[:10_000])
            request.wfile.flush()
            self.hangs.set()
            self._release.wait(WAIT_S)
            return
        request.wfile.write(data)

    def close(self) -> None:
        self._release.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry of one's own, and an empty cache."""
    running = Registry()
    monkeypatch.setenv("GPUGRID_MAVEN_REPOSITORY", running.url)
    monkeypatch.setenv("GPUGRID_CACHE", str(tmp_path / "cache"))
    yield running
    running.close()


def _debris(tmp_path: Path) -> list[str]:
    """What lies in the cache besides jars."""
    return [str(path) for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.parent.name != "jars"]


def test_the_committed_lock_is_whole() -> None:
    lock = read_lock(LOCK_FILE)
    names = [jar.artifact for jar in lock.jars]
    assert len(set(names)) == len(names)
    assert {"kafka_2.13", "kafka-clients", "kafka-server", "log4j-slf4j-impl"} <= set(names)
    assert all(len(jar.sha256) == 64 and jar.size_bytes > 0 for jar in lock.jars)
    kafka_versions = {jar.version for jar in lock.jars if jar.group == "org.apache.kafka"}
    assert kafka_versions == {lock.version}


def test_jars_come_once_and_then_without_a_network(registry: Registry, tmp_path: Path) -> None:
    lock = _lock()
    home = resolve(lock)
    assert [path.read_bytes() for path in jar_paths(home, lock)] == list(CONTENTS.values())
    assert sorted(registry.requests) == sorted(CONTENTS)
    registry.close()
    assert resolve(lock) == home
    assert _debris(tmp_path) == []
    assert damaged(home, lock) == []


def test_a_wrong_checksum_is_refused(registry: Registry, tmp_path: Path) -> None:
    registry.wrong = "part3"
    with pytest.raises(KafkaUnavailableError, match=r"delivered part3-1\.0\.jar with SHA-256 .* do not trust it"):
        resolve(_lock())
    assert not kafka_home(_lock()).exists()
    assert _debris(tmp_path) == []


def test_an_interrupted_download_goes_on_where_it_was(registry: Registry) -> None:
    registry.refused = "part5"
    with pytest.raises(KafkaUnavailableError, match="the registry does not have it or refuses it"):
        resolve(_lock())
    registry.refused = ""
    already = list(registry.requests)
    resolve(_lock())
    assert registry.requests[len(already) :] == ["part5"]


def test_no_registry_gets_one_sentence(registry: Registry) -> None:
    registry.close()
    with pytest.raises(KafkaUnavailableError, match=r"connection refused\): check the network or proxy settings"):
        resolve(_lock())


def test_a_damaged_jar_is_found_and_a_short_one_replaced(registry: Registry) -> None:
    lock = _lock()
    home = resolve(lock)
    path = jar_paths(home, lock)[2]
    path.write_bytes(b"\x00" * path.stat().st_size)
    assert damaged(home, lock) == [path.name]
    path.write_bytes(b"short")
    assert not is_complete(home, lock)
    assert damaged(resolve(lock), lock) == []


RESOLVE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import resource
if len(sys.argv) > 1:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
from test_kafka_jars import _lock
from deploy.local.kafka_jars import KafkaUnavailableError, resolve
try:
    print(resolve(_lock()))
except KafkaUnavailableError as error:
    print(error)
"""


def test_two_processes_share_one_download(registry: Registry) -> None:
    both = [subprocess.Popen([sys.executable, "-c", RESOLVE], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=WAIT_S)[0].strip() for process in both]
    assert answers == [str(kafka_home(_lock()))] * 2
    assert sorted(registry.requests) == sorted(CONTENTS)


def test_a_full_disk_gets_one_sentence(registry: Registry, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", RESOLVE, "20000"], capture_output=True, text=True, timeout=WAIT_S)
    assert "is full: free some space, or set GPUGRID_CACHE to a folder on another disk." in done.stdout, done.stderr
    assert _debris(tmp_path) == []


def test_an_interrupt_is_prompt_and_leaves_no_debris(registry: Registry, tmp_path: Path) -> None:
    registry.hanging = "part4"
    process = subprocess.Popen([sys.executable, "-c", RESOLVE], stderr=subprocess.PIPE, text=True)
    assert registry.hangs.wait(WAIT_S)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert _debris(tmp_path) == []
