"""The Kafka jars: pinned in `kafka.lock.toml`, downloaded once, verified, and then used without a network.

Owns download and verification. Refuses a jar whose SHA-256 is not the locked one, and resolves nothing at run time: the
dependency graph is walked only by `relock`, when the lock file is written. Read next: `broker`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from deploy.local.cache import cache_root, directory_lock, usable_folder, write_failure

KAFKA = "org.apache.kafka:kafka_2.13"
LOG_BRIDGE = "org.apache.logging.log4j:log4j-slf4j-impl"  # Kafka's own build leaves the choice of a logger to the user
LOCK_FILE = Path(__file__).with_name("kafka.lock.toml")
DOWNLOADS_AT_ONCE = 4  # polite to a public registry, and enough to fill a 10 MB/s line
TRIES_MAX = 3  # one hiccup and one unlucky retry; more would hide that there is no network
RETRY_WAIT_S = 1.0
READ_TIMEOUT_S = 20  # silence on a connection; a slow line that delivers is fine
OTHER_DOWNLOAD_WAIT_S = 600.0  # as long as another process may take to fill the cache on a slow line
FREE_BYTES_MIN = 300 * 1024 * 1024  # 45 MB of jars twice, while staged, and 70 MB of ahead-of-time cache twice


class KafkaUnavailableError(RuntimeError):
    """The jars could not be had; the message is one sentence that says what to do."""


@dataclass(frozen=True)
class Jar:
    """One locked file of the registry."""

    group: str
    artifact: str
    version: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """As the registry names it."""
        return f"{self.artifact}-{self.version}.jar"


@dataclass(frozen=True)
class KafkaLock:
    """What `kafka.lock.toml` says."""

    version: str
    jars: tuple[Jar, ...]
    digest: str

    @property
    def size_bytes(self) -> int:
        """All jars together."""
        return sum(jar.size_bytes for jar in self.jars)


class Progress(Protocol):
    """Told of downloads as they happen, from several threads."""

    def begin(self, bytes_total: int) -> None:
        """A download of this size starts."""

    def add(self, count_bytes: int) -> None:
        """So many bytes have arrived."""

    def waiting(self) -> None:
        """Another process is downloading."""


class NoProgress:
    """Says nothing."""

    def begin(self, bytes_total: int) -> None:
        """Say nothing."""

    def add(self, count_bytes: int) -> None:
        """Say nothing."""

    def waiting(self) -> None:
        """Say nothing."""


def read_lock(path: Path = LOCK_FILE) -> KafkaLock:
    """The pinned jars."""
    text = path.read_bytes()
    data = tomllib.loads(text.decode())
    jars = tuple(Jar(**entry) for entry in data["jar"])
    return KafkaLock(version=data["kafka"], jars=jars, digest=hashlib.sha256(text).hexdigest()[:12])


def kafka_home(lock: KafkaLock) -> Path:
    """The cache folder for exactly these jars."""
    return cache_root() / "kafka" / f"{lock.version}-{lock.digest}"


def jar_paths(home: Path, lock: KafkaLock) -> list[Path]:
    """The class path, in the lock file's order (the ahead-of-time cache depends on it)."""
    return [home / "jars" / jar.file_name for jar in lock.jars]


def is_complete(home: Path, lock: KafkaLock) -> bool:
    """Whether every jar is there in full size; contents were verified when they came (and by `doctor`)."""
    for jar, path in zip(lock.jars, jar_paths(home, lock), strict=True):
        try:
            if path.stat().st_size != jar.size_bytes:
                return False
        except OSError:
            return False
    return True


def damaged(home: Path, lock: KafkaLock) -> list[str]:
    """Names of jars that are missing or differ from the lock: reads everything, about 0.1 s."""
    pairs = zip(lock.jars, jar_paths(home, lock), strict=True)
    return [jar.file_name for jar, path in pairs if not path.is_file() or _sha256(path) != jar.sha256]


def resolve(lock: KafkaLock | None = None, progress: Progress | None = None) -> Path:
    """The folder that holds all jars, downloading what is missing; safe among processes; offline once complete."""
    lock = lock or read_lock()
    progress = progress or NoProgress()
    home = kafka_home(lock)
    if is_complete(home, lock):
        return home
    parent = usable_folder(home.parent)
    with directory_lock(parent, OTHER_DOWNLOAD_WAIT_S, progress.waiting):
        if is_complete(home, lock):
            return home
        _require_space(parent, FREE_BYTES_MIN)
        staging = parent / f".partial-{lock.digest}"  # verified jars stay here when a download is interrupted
        try:
            _download_missing(staging, lock, progress)
        except OSError as error:
            sentence = write_failure(parent, error, "set GPUGRID_CACHE to a folder on another disk")
            raise KafkaUnavailableError(sentence) from error
        if home.exists():
            shutil.rmtree(home)
        staging.replace(home)
    return home


def _require_space(folder: Path, need_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < need_bytes:
        raise KafkaUnavailableError(
            f"The disk of {folder} has {free_bytes >> 20} MiB free and Kafka needs {need_bytes >> 20} MiB: free some "
            "space, or set GPUGRID_CACHE to a folder on another disk."
        )


def _download_missing(staging: Path, lock: KafkaLock, progress: Progress) -> None:
    jars = staging / "jars"
    jars.mkdir(parents=True, exist_ok=True)
    for stale in staging.glob("repository-*"):
        shutil.rmtree(stale, ignore_errors=True)
    missing = [jar for jar in lock.jars if not _is_verified(jars / jar.file_name, jar)]
    progress.begin(sum(jar.size_bytes for jar in missing))
    cancelled = threading.Event()
    with tempfile.TemporaryDirectory(prefix="repository-", dir=staging) as repository:
        context = _maven_context(Path(repository), progress, cancelled)
        with ThreadPoolExecutor(DOWNLOADS_AT_ONCE, thread_name_prefix="kafka-jar") as pool:
            try:
                futures = [pool.submit(_download, context, jar, jars, cancelled) for jar in missing]
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            except BaseException:
                cancelled.set()  # running downloads stop at their next chunk, so that Ctrl-C is prompt
                pool.shutdown(wait=False, cancel_futures=True)
                raise


class _CancelledError(Exception):
    """The download was given up because another failed or the user interrupted."""


def _maven_context(repository: Path, progress: Progress, cancelled: threading.Event) -> Any:
    from jgo.maven import MavenContext, PythonResolver

    def on_file(_name: str, _size: int) -> AbstractContextManager[Callable[[int], None]]:
        return _chunks(progress, cancelled)

    mirror = os.environ.get("GPUGRID_MAVEN_REPOSITORY")
    return MavenContext(
        resolver=PythonResolver(progress_callback=on_file),
        repo_cache=repository,
        remote_repos={"mirror": mirror.rstrip("/")} if mirror else None,
        timeout=READ_TIMEOUT_S,
    )


@contextlib.contextmanager
def _chunks(progress: Progress, cancelled: threading.Event) -> Iterator[Callable[[int], None]]:
    def arrived(count_bytes: int) -> None:
        if cancelled.is_set():
            raise _CancelledError
        progress.add(count_bytes)

    yield arrived


def _download(context: Any, jar: Jar, jars: Path, cancelled: threading.Event) -> None:
    from requests import RequestException

    artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact()
    for attempt in range(1, TRIES_MAX + 1):
        try:
            found: Path = artifact.resolve()
            break
        except (RuntimeError, RequestException) as error:
            artifact.cached_path.unlink(missing_ok=True)  # a partial file must not pass for a cached one
            if attempt == TRIES_MAX:
                raise KafkaUnavailableError(
                    f"Kafka could not be downloaded ({jar.file_name}: {_reason(error)}): check the network or proxy "
                    "settings, or set GPUGRID_MAVEN_REPOSITORY to a Maven repository that this machine can reach."
                ) from error
            if cancelled.wait(RETRY_WAIT_S * attempt):
                raise _CancelledError from error
    actual = _sha256(found)
    if actual != jar.sha256:
        raise KafkaUnavailableError(
            f"The registry delivered {jar.file_name} with SHA-256 {actual[:16]}... instead of {jar.sha256[:16]}...: do "
            "not trust it; try another network or mirror, and report it if it stays."
        )
    found.replace(jars / jar.file_name)


def _reason(error: Exception) -> str:
    """A few words for people: the innermost cause without addresses."""
    text = str(error)
    for needle, words in (
        ("not found in remote", "the registry does not have it or refuses it"),
        ("Name or service not known", "the registry's name does not resolve"),
        ("name resolution", "the registry's name does not resolve"),
        ("Connection refused", "connection refused"),
        ("CERTIFICATE_VERIFY_FAILED", "its TLS certificate is not trusted here"),
        ("ProxyError", "the proxy does not answer"),
        ("timed out", "no answer in time"),
        ("unreachable", "network unreachable"),
    ):
        if needle in text:
            return words
    return type(error).__name__


def _is_verified(path: Path, jar: Jar) -> bool:
    return path.is_file() and path.stat().st_size == jar.size_bytes and _sha256(path) == jar.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def relock(version: str, target: Path = LOCK_FILE) -> int:
    """Resolve Kafka's dependencies afresh and write the lock file; returns the number of jars."""
    with tempfile.TemporaryDirectory(prefix="gpugrid-relock-") as repository:
        context = _maven_context(Path(repository), NoProgress(), threading.Event())
        inputs, transitive = context.resolver.resolve([context.create_dependency(f"{KAFKA}:{version}")])
        # The bridge joins after resolution: resolved together, its parent's managed versions would displace Kafka's own.
        found = [dependency.artifact for dependency in (*inputs, *transitive)]
        log4j = next(artifact.version for artifact in found if artifact.artifactId == "log4j-core")
        found.append(context.create_dependency(f"{LOG_BRIDGE}:{log4j}").artifact)
        lines = ["# Written by `python -m deploy.local.broker lock`: every jar that the embedded Kafka needs.", ""]
        lines += [f'kafka = "{version}"', ""]
        for artifact in sorted(found, key=lambda item: (item.groupId, item.artifactId)):
            path = artifact.resolve()
            lines += ["[[jar]]", f'group = "{artifact.groupId}"', f'artifact = "{artifact.artifactId}"']
            lines += [f'version = "{artifact.version}"', f"size_bytes = {path.stat().st_size}"]
            lines += [f'sha256 = "{_sha256(path)}"', ""]
    target.write_text("\n".join(lines[:-1]) + "\n")
    return len(found)
