"""faust's Kafka transport with gpugrid's client settings, where faust's own can't be set from outside.

Owns: range assignment (faust takes round-robin when an app has no tables, so equal partition numbers of two topics would
land on different members), a short fetch wait (faust's 1.5 s is also how long a seek may wait, see
`bus.kafka_consumer.FETCH_WAIT_MS`), quick sessions, an idempotent producer, a seek to the beginning where nothing was committed,
and delivery to the streams without four tasks per record (that alone: 990 instead of 590 to 800 events/s on a third of a
core). Refuses: transactions. Read next: `faust_hop.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import ConsumerStoppedError, KafkaError
from faust.transport.consumer import CONSUMER_FETCHING
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

FETCH_POLL_S = 1.0
"""How long one look into the consumer's thread waits for records; they end it at once."""
DELIVERED_IN_A_ROW_MAX = 100
"""Records handed to the streams before other tasks get a turn."""


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

    async def seek_to_committed(self) -> Any:
        """Committed offsets by partition, None where nothing was; afterwards each partition stands at its own.

        faust throws away what a fetch brings while a rebalance is under way and relies on this to read it again, but aiokafka
        leaves a partition without a committed offset where the thrown-away fetch has put it. Whoever took over from a member
        that died before its first commit would skip that member's records, and its own first commit would lose them for good.
        """
        return await self.call_thread(self._rewind)

    async def _rewind(self) -> Any:
        consumer = self._ensure_consumer()
        committed = await consumer.seek_to_committed()
        # Between the two awaits a partition may have been taken away; the next assignment rewinds again.
        untouched = [part for part, offset in committed.items() if not offset and part in consumer.assignment()]
        if untouched:
            await consumer.seek_to_beginning(*untouched)
        return committed

    async def take_coordination_error(self) -> KafkaError | None:
        """The error aiokafka's group routine waits with until somebody asks; faust never does, and stands still for ever."""
        try:
            if self._consumer is not None and self._consumer._coordinator is not None:
                self._consumer._coordinator.check_errors()
        except KafkaError as error:
            return error
        return None


class _Consumer(driver.Consumer):
    async def take_coordination_error(self) -> KafkaError | None:
        """Asked for regularly by `faust_hop`; taking it lets aiokafka join its group again."""
        thread: Any = self._thread
        inner = thread._consumer
        coordinator = None if inner is None else inner._coordinator
        if coordinator is None:
            return None
        if coordinator._pending_exception is None and not coordinator._coordination_task.done():
            return None
        return await thread.call_thread(thread.take_coordination_error)

    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def _drain_messages(self, fetcher: Any) -> None:
        """As faust's: hand what was fetched to the streams until told to stop. Only the usual case is short-cut."""
        try:
            while not (self._stopped.is_set() or fetcher._stopped.is_set()):
                self.diag.set_flag(CONSUMER_FETCHING)
                await asyncio.sleep(0)
                delivered = 0
                async for part, message in self.getmany(timeout=FETCH_POLL_S):
                    await self._deliver(part, message)
                    delivered += 1
                    if delivered % DELIVERED_IN_A_ROW_MAX == 0:
                        await asyncio.sleep(0)
        except (ConsumerStoppedError, asyncio.CancelledError):
            if not self.transport.app.should_stop:
                raise
        finally:
            self.diag.unset_flag(CONSUMER_FETCHING)

    async def _deliver(self, part: Any, message: Any) -> None:
        read = self._read_offset[part]
        if read is not None and message.offset < read:
            return
        if read and message.offset - read > 1 and self.app.topics.acks_enabled_for(message.topic):
            await self._add_gap(part, read + 1, message.offset)
        conductor: Any = self.app.topics
        channels = conductor._tp_index[part]
        if self.app.flow_control.is_active() and not any(channel.queue.full() for channel in channels):
            await self.callback(message)  # can't block: flow is on and there is room
        else:
            # faust does this for every record, at the price of four tasks each; here only when delivery may have to wait
            # and a rebalance must be able to interrupt it.
            await self.wait_first(self.callback(message), self.suspend_flow.wait())
        self._read_offset[part] = message.offset


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
