"""The collector keeps every failed, slow and long waiting trace and a part of the rest."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from deploy.backends.running import TraceStore, collector
from tests.infra.observed_stack import until, upstream_tracing

pytestmark = [pytest.mark.timeout(900)]
FAST = 400


def test_failed_slow_and_long_waiting_traces_are_all_kept_and_of_the_rest_a_tenth(
    store: TraceStore, tmp_path: Path
) -> None:
    with collector(tmp_path, store, sampling_wait="1s") as otlp:
        tracing = upstream_tracing(tmp_path, otlp)
        now_ns = time.time_ns()
        kept, rest = [], []
        for number in range(FAST):
            span = tracing.begin("process jobs", "", {}, start_ns=now_ns)
            span.end(end_ns=now_ns + 5_000_000)
            rest.append(span.traceparent[3:35])
            if number % 40 == 0:
                failed = tracing.begin("start", "", {}, start_ns=now_ns)
                failed.end("spawn failed", end_ns=now_ns + 1_000_000)
                slow = tracing.begin("decide", "", {}, start_ns=now_ns)
                slow.end(end_ns=now_ns + 1_500_000_000)
                waited = tracing.begin("queue wait", "", {"gpugrid.queue.wait_s": 90_000.0}, start_ns=now_ns)
                waited.end(end_ns=now_ns + 1_000_000)
                kept += [one.traceparent[3:35] for one in (failed, slow, waited)]
        tracing.stop()
        until(lambda: all(store.trace(trace_id) for trace_id in kept), "a trace that must be kept is not in the store")
        until(lambda: sum(bool(store.trace(one)) for one in rest) > 0.03 * FAST, "nothing of the rest was kept")
        share = sum(bool(store.trace(trace_id)) for trace_id in rest) / FAST
        print(f"{len(kept)} of {len(kept)} kept, and {share:.1%} of {FAST} ordinary ones")
        assert 0.03 < share < 0.2
