"""What a broker finds in its data folder before it starts: configuration, log settings, and a formatted log folder.

Owns these files. Refuses nothing; reformats nothing that was ever formatted, so data survives every restart.
Read next: `broker`.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

from deploy.local.cache import directory_lock
from deploy.local.jvm import java_argv
from deploy.local.kafka_jars import KafkaLock, KafkaUnavailableError, jar_paths
from deploy.local.ports import HOST

NODE_ID = 1
FORMAT_WAIT_S = 60.0  # the format tool takes 2 s alone on two cores
BOOTSTRAP = "bootstrap.checkpoint"
LOG_FILE_MIB = 8  # two files of this size; an hour of a busy broker writes less than one

# Why these and not the defaults: one node has no second replica; one partition instead of 50 for the internal topics
# makes start and recovery quick; no rebalance delay, since a group here is complete when its processes are up. After
# kill -9 the controller refuses the new broker until the old one's session has run out: 3 s instead of 9.
_FIXED = f"""process.roles=broker,controller
node.id={NODE_ID}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
"""


def write_configuration(data_dir: Path, port: int, controller_port: int) -> Path:
    """Write `server.properties` and the log settings; returns the former."""
    properties = data_dir / "server.properties"
    lines = [
        f"controller.quorum.voters={NODE_ID}@{HOST}:{controller_port}",
        f"listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        f"advertised.listeners=PLAINTEXT://{HOST}:{port}",
        f"log.dirs={_escaped(log_dir(data_dir))}",
    ]
    properties.write_text(_FIXED + "\n".join(lines) + "\n")
    log_settings_path(data_dir).write_text(_log_settings(data_dir / "kafka.log"))
    return properties


def log_dir(data_dir: Path) -> Path:
    """Where Kafka keeps topics."""
    return data_dir / "log"


def log_settings_path(data_dir: Path) -> Path:
    """The log4j configuration of this broker."""
    return data_dir / "log4j2.properties"


def format_log_dir(data_dir: Path, checkpoint: Path) -> None:
    """Make the log folder a formatted one, unless it is; the same two files that Kafka's format tool writes.

    The tool takes a Java start of 2 s; copying its checkpoint (which names no cluster) takes none.
    """
    folder = log_dir(data_dir)
    meta = folder / "meta.properties"
    if meta.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(checkpoint, folder / BOOTSTRAP)
    text = f"version=1\ncluster.id={_kafka_uuid()}\nnode.id={NODE_ID}\ndirectory.id={_kafka_uuid()}\n"
    unfinished = folder / "meta.properties.new"
    unfinished.write_text(text)
    unfinished.replace(meta)  # last and at once: an interrupted format is simply done again


def bootstrap_checkpoint(home: Path, lock: KafkaLock) -> Path:
    """Kafka's own bootstrap checkpoint for a new cluster of this version, made once per cache by its format tool."""
    checkpoint = home / BOOTSTRAP
    if checkpoint.exists():
        return checkpoint
    with directory_lock(home, FORMAT_WAIT_S), tempfile.TemporaryDirectory(prefix=".format-", dir=home) as name:
        if checkpoint.exists():
            return checkpoint
        scratch = Path(name)
        properties = write_configuration(scratch, port=9092, controller_port=9093)  # never bound: the tool only writes
        argv = java_argv(
            jar_paths(home, lock), options=(f"-Dlog4j2.configurationFile={log_settings_path(scratch).as_uri()}",)
        )
        argv += ["kafka.tools.StorageTool", "format", "--cluster-id", _kafka_uuid(), "--config", str(properties)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=FORMAT_WAIT_S, check=False)
        if done.returncode != 0:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
            raise KafkaUnavailableError(
                f"Kafka's format tool failed ({last[0]}): remove {home} and run make setup again."
            )
        (log_dir(scratch) / BOOTSTRAP).replace(checkpoint)
    return checkpoint


def _kafka_uuid() -> str:
    """A random id as Kafka writes them; never with a leading dash, which its tools would read as an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _escaped(path: Path) -> str:
    return str(path).replace("\\", "\\\\")


def _log_settings(target: Path) -> str:
    return f"""rootLogger.level = info
rootLogger.appenderRef.file.ref = File
appender.file.type = RollingFile
appender.file.name = File
appender.file.fileName = {target}
appender.file.filePattern = {target}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}} %p %m (%c{{1}})%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {LOG_FILE_MIB} MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
"""
