"""The embedded broker as one process of a supervised stack: same data after every restart, topics before anything else.

Resolve the jars first (`kafka_jars.resolve`, as `make setup` does): a download inside the supervising thread could not
be interrupted. Read next: `supervisor`.
"""

from __future__ import annotations

from collections.abc import Sequence

from deploy.local.broker import READY_WAIT_S, STOP_GRACE_S, EmbeddedBroker, answers
from deploy.local.ports import free_port
from deploy.local.specification import ProcessSpec
from deploy.local.topics import create_topics
from schemas.topics import TOPICS, Topic


def broker_process(broker: EmbeddedBroker, topics: Sequence[Topic] = TOPICS) -> ProcessSpec:
    """Stage 0 of a stack; `broker.address` is final from here on, for the environment of the others."""
    if broker.port == 0:
        broker.port = free_port()
    return ProcessSpec(
        name="kafka",
        argv=broker.prepare,
        ready=lambda: answers(broker.port),
        stage=0,
        ready_wait_s=READY_WAIT_S,
        stop_grace_s=STOP_GRACE_S,
        explain=broker.explain,
        on_first_ready=lambda: _create(broker.address, topics),
        ports={"kafka": broker.port},
        cwd=broker.data_dir.parent,
    )


def _create(address: str, topics: Sequence[Topic]) -> None:
    create_topics(address, topics)
