"""faust's Kafka transport with gpugrid's client settings, where faust's own can't be set from outside.

Owns: range assignment (faust takes round-robin when an app has no tables, so equal partition numbers of two topics would
land on different members), a short fetch wait (faust's 1.5 s is also how long a seek may wait, see
`bus.kafka_consumer.FETCH_WAIT_MS`), quick sessions, and an idempotent producer. Refuses: transactions. Read next: `faust_hop.py`.
"""

from __future__ import annotations

from typing import Any

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from faust.transport.drivers import aiokafka as driver

from services.runtime.bus.kafka import BATCH_BYTES_MAX
from services.runtime.bus.kafka import REQUEST_TIMEOUT_MS as PRODUCE_TIMEOUT_MS
from services.runtime.bus.kafka_consumer import (
    FETCH_WAIT_MS,
    HEARTBEAT_MS,
    REBALANCE_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
)
from services.runtime.bus.port import MESSAGE_BYTES_MAX

POLL_RECORDS_MAX = 1_000
"""What one fetch hands to the streams at once; the streams' queues are bounded by `stream_buffer_maxsize`."""


class _ConsumerThread(driver.AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: driver.Transport) -> aiokafka.AIOKafkaConsumer:
        conf = self.app.conf
        return aiokafka.AIOKafkaConsumer(
            client_id=conf.broker_client_id,
            group_id=conf.id,
            group_instance_id=conf.consumer_group_instance_id,
            bootstrap_servers=driver.server_list(transport.url, transport.default_port),
            partition_assignment_strategy=[RangePartitionAssignor],
            enable_auto_commit=False,
            # Only for a group that never committed; `faust_hop` checks before it starts that committed offsets still exist.
            auto_offset_reset="earliest",
            max_poll_records=POLL_RECORDS_MAX,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            retry_backoff_ms=50,
        )


class _Consumer(driver.Consumer):
    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)


class _Producer(driver.Producer):
    def _settings_extra(self) -> dict[str, Any]:
        return {
            "acks": "all",
            "enable_idempotence": True,
            "linger_ms": 0,
            "max_batch_size": BATCH_BYTES_MAX,
            "max_request_size": MESSAGE_BYTES_MAX,
            "request_timeout_ms": PRODUCE_TIMEOUT_MS,
            "retry_backoff_ms": 50,
        }


class GpugridTransport(driver.Transport):
    """Set it as `app.transport` before the app starts."""

    Consumer = _Consumer
    Producer = _Producer
