"""The stack on one machine: an embedded Kafka and the services as separate processes under one supervisor.

Reading order: `cache` (where downloads live), `kafka_jars` (what is downloaded, pinned and verified), `jvm` (how Java is
run), `broker` (one Kafka in a data folder), `topics` (created explicitly), `child` and `guarded` (a process that cannot
outlive us), `supervisor` (start, watch, restart, stop), `stack_file` (what `down` and `status` read), `preflight`
(one sentence for everything that can be missing).
"""
