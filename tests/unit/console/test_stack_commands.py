"""status, doctor, down without a stack; what the console reads of one; help, version and completion."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.main import get_command

from deploy.local import stack_file
from deploy.local.service_processes import Machines, Surroundings, service_processes
from deploy.local.stack_file import ProcessState, StackState
from schemas.catalog import Cluster, Pool, SlotKind, Slots
from schemas.commands import DrainNode
from services.console.app import build_app
from services.console.doctor import stack_findings, world_findings
from services.console.errors import ConsoleError, UsageError
from services.console.facts import World
from services.console.health_view import healths, lag_of
from services.console.local_stack import Order, Wanted, _prepare, machines_of
from services.console.session import Session
from services.console.stack import read_stack, running_stacks
from services.console.stack_view import stack_row
from services.runtime.health import HealthFile, health_path
from tests import build
from tests.unit.console.console_rig import Rig, contended

METRICS = b"""# HELP gpugrid_consumer_lag_records Records not yet read.
gpugrid_consumer_lag_records{partition="0",topic="jobs"} 1500.0
gpugrid_consumer_lag_records{partition="1",topic="jobs"} 2.0
gpugrid_consumer_lag_records{partition="0",topic="executions"} 0.0
"""


class _Endpoint(http.server.BaseHTTPRequestHandler):
    answers: dict[str, tuple[int, bytes]] = {}

    def do_GET(self) -> None:
        code, body = self.answers[self.path]
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def write_stack(run_dir: Path, **changed) -> StackState:
    """A stack file whose supervisor is this very process."""
    run_dir.mkdir(parents=True, exist_ok=True)
    pid = os.getpid()
    processes = (
        ProcessState(
            name="kafka", state="ready", pid=pid, started_s=stack_file.started_s(pid), ports={"kafka": 19_092}
        ),
        ProcessState(
            name="allocator", state=changed.pop("allocator", "ready"), pid=pid, restarts=changed.pop("restarts", 0)
        ),
    )
    state = StackState(
        name=run_dir.name,
        state=changed.pop("state", "ready"),
        supervisor_pid=pid,
        supervisor_started_s=stack_file.started_s(pid),
        processes=processes,
    )
    stack_file.write(run_dir, state)
    return state


def write_health(run_dir: Path, port: int, pid: int) -> None:
    path = health_path(run_dir, "allocator")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(HealthFile(service="allocator", instance_id="allocator", pid=pid, port=port)))


def test_a_stack_is_found_by_name_or_because_it_is_the_only_one(tmp_path: Path) -> None:
    assert read_stack(tmp_path, None) is None
    write_stack(tmp_path / "one")
    stack = read_stack(tmp_path, None)
    assert stack is not None
    assert (stack.name, stack.bootstrap, stack.clock) == ("one", "127.0.0.1:19092", "wall")
    write_stack(tmp_path / "two")
    assert [found.name for found in running_stacks(tmp_path)] == ["one", "two"]
    with pytest.raises(ConsoleError, match="Several stacks run here"):
        read_stack(tmp_path, None)
    assert read_stack(tmp_path, "two") is not None
    assert read_stack(tmp_path, "three") is None


def test_the_file_of_a_dead_supervisor_is_no_stack(tmp_path: Path) -> None:
    run_dir = tmp_path / "old"
    state = write_stack(run_dir)
    stack_file.write(run_dir, msgspec.structs.replace(state, supervisor_started_s=1.0))
    assert read_stack(tmp_path, None) is None


def test_health_tells_readiness_and_lag(tmp_path: Path, endpoint: int) -> None:
    _Endpoint.answers = {"/readyz": (200, b"{}"), "/metrics": (200, METRICS)}
    write_health(tmp_path, endpoint, os.getpid())
    (found,) = healths(tmp_path)
    assert (found.reason, found.lag) == ("", {"executions": 0, "jobs": 1502})
    _Endpoint.answers["/readyz"] = (503, b'{"ready": false, "reason": "compiling kernels"}')
    assert healths(tmp_path)[0].reason == "compiling kernels"
    assert lag_of(b"nothing") == {}


def test_a_process_that_does_not_answer_is_a_finding(tmp_path: Path, endpoint: int) -> None:
    write_stack(tmp_path / "s")
    write_health(tmp_path / "s", 1, os.getpid())
    stack = read_stack(tmp_path, "s")
    assert stack is not None
    findings = {one.name: one for one in stack_findings(stack)}
    assert findings["stack"].ok
    assert not findings["allocator"].ok
    assert "does not answer" in findings["allocator"].sentence


def test_lag_restarts_and_dead_processes_are_findings(tmp_path: Path, endpoint: int) -> None:
    _Endpoint.answers = {"/readyz": (200, b"{}"), "/metrics": (200, METRICS)}
    write_stack(tmp_path / "s", state="disturbed", allocator="backing-off", restarts=3)
    write_health(tmp_path / "s", endpoint, os.getpid())
    stack = read_stack(tmp_path, "s")
    findings = {one.name: one for one in stack_findings(stack)}
    assert "allocator is backing-off" in findings["stack"].sentence
    assert "allocator 3×" in findings["restarts"].sentence
    assert "lags behind by 1502 records of jobs" in findings["allocator"].sentence
    assert stack is not None
    assert stack_row(stack)["processes"][1]["lag"] == {"executions": 0, "jobs": 1502}


def test_doctor_reads_the_topics() -> None:
    names = {one["name"]: one for one in contended().json("doctor") if one["name"] in ("nodes", "broker", "stack")}
    assert names["nodes"]["ok"]
    assert names["broker"]["ok"]
    out = Rig().run("doctor", code=1)
    assert "No node has reported" in out


def test_the_worlds_findings() -> None:
    sizes = {"jobs": 3, "decisions": 0, "dead-letters": 2}
    world = World(unreadable=1)
    world.nodes["n00"] = build.node("n00", health=build.Health.LOST)
    world.nodes["n01"] = build.node("n01", health=build.Health.LOST)
    world.draining["n01"] = DrainNode(node="n01", cluster="c0", ordered_ms=0)
    sentences = " ".join(one.sentence for one in world_findings(world, sizes))
    assert "n01" not in sentences, "who drained it knows that it is silent"
    for words in (
        "n00: no sign of life",
        "nothing was ever decided",
        "2 records were refused",
        "1 records of the state",
    ):
        assert words in sentences


def test_status_and_down_without_a_stack(tmp_path: Path) -> None:
    rig = Rig()
    rig.session.run_root = tmp_path
    rig.run("status", code=1)
    assert "No stack runs here" in rig.stderr
    assert "nothing to stop" in rig.run("down")


def test_status_shows_the_processes(tmp_path: Path) -> None:
    write_stack(tmp_path / "s")
    rig = Rig()
    rig.session.run_root = tmp_path
    assert "kafka:19092" in rig.run("status")
    assert rig.json("status")[0]["bootstrap"] == "127.0.0.1:19092"
    write_stack(tmp_path / "s", state="disturbed")
    rig.run("status", code=1)


def test_the_order_of_up_is_kept_and_its_catalog_reused(tmp_path: Path) -> None:
    wanted = Wanted(nodes=2, node_gpus=4, catalog=None, driver="process", source="nvml", kafka_port=0, http_port=0)
    _prepare(tmp_path, wanted)
    order = msgspec.json.decode((tmp_path / "up.json").read_bytes(), type=Order)
    assert (order.machines, order.cluster, order.driver) == ((Machines("h100", ("n00", "n01")),), "c0", "process")
    _prepare(
        tmp_path,
        Wanted(
            nodes=None, node_gpus=8, catalog=None, driver="simulated", source="simulated", kafka_port=0, http_port=0
        ),
    )
    again = msgspec.json.decode((tmp_path / "up.json").read_bytes(), type=Order)
    assert again.machines == order.machines


def test_every_pool_has_its_machines_and_shared_cards_an_executor_of_their_own(tmp_path: Path) -> None:
    slots = Slots(of="h100", kind=SlotKind.MIG, per_card=2, profile="3g.40gb")
    cluster = Cluster(
        partition=0,
        pools={
            "h100": Pool(gpus=16, node_gpus=8, gpu_model="H100", memory_mib=81_559),
            "a100": Pool(gpus=16, node_gpus=8, gpu_model="A100", memory_mib=81_920),
            "h100-half": Pool(gpus=32, node_gpus=16, gpu_model="H100", memory_mib=40_000, slots=slots),
        },
    )
    found = machines_of(cluster)
    assert found == (
        Machines("a100", ("a100-00", "a100-01")),
        Machines("h100", ("h100-00",), ("h100-half",)),
        Machines("h100", ("h100-01",), ("h100-half",)),
    )
    first, *beside = found
    around = Surroundings(
        run_dir=tmp_path,
        bootstrap="127.0.0.1:9092",
        catalog=tmp_path / "catalog.toml",
        cluster="c0",
        pool=first.pool,
        nodes=first.nodes,
        beside=tuple(beside),
    )
    played = {
        spec.name: (spec.env["GPUGRID_NODES"], spec.env.get("GPUGRID_SLOT_POOLS"))
        for spec in service_processes(around)
        if spec.name.startswith("executor")
    }
    assert played == {
        "executor": ("a100-00,a100-01", None),
        "executor-h100-00": ("h100-00", "h100-half"),
        "executor-h100-01": ("h100-01", "h100-half"),
    }


def test_a_broken_catalog_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("default_cluster = 1")
    wanted = Wanted(
        nodes=2,
        node_gpus=4,
        catalog=tmp_path / "bad.toml",
        driver="simulated",
        source="simulated",
        kafka_port=0,
        http_port=0,
    )
    with pytest.raises(UsageError, match=r"bad.toml can't be used"):
        _prepare(tmp_path, wanted)


@pytest.mark.parametrize(
    ("address", "said", "code"),
    [
        ("127.0.0.1:1", "No broker answers (127.0.0.1:1: Connection refused)", 1),
        ("nonsense", "is no broker address", 2),
    ],
)
def test_a_broker_that_is_not_there_costs_one_sentence_and_no_minute(address: str, said: str, code: int) -> None:
    begun_s = time.monotonic()
    done = console("--bootstrap", address, "jobs")
    assert time.monotonic() - begun_s < 30
    assert done.returncode == code
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_a_stack_and_a_broker_it_says_how_to_get_one(tmp_path: Path) -> None:
    done = console("jobs", env={"GPUGRID_RUN_ROOT": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr == (
        "gpugrid: No stack is running here: start one with `gpugrid up`, or name a broker with --bootstrap HOST:PORT.\n"
    )


def test_help_teaches_and_needs_none_of_the_heavy_parts() -> None:
    code = (
        "import sys; from services.console.app import build_app\n"
        "try: build_app()(['--help'], prog_name='gpugrid')\n"
        "except SystemExit: pass\n"
        "heavy = {'numba', 'faust', 'aiokafka', 'numpy', 'lightgbm', 'opentelemetry', 'psutil'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    for word in ("submit", "why", "replay-decision", "doctor", "gpugrid why training-4f9k2"):
        assert word in done.stdout
    assert "serve-stack" not in done.stdout


def test_simple_commands_need_no_planner() -> None:
    code = (
        "import sys\n"
        "from services.console import follow, log_view, orders, planview, queries, sentences, tables, tracing_view, waterfall\n"
        "heavy = {'numba', 'faust', 'lightgbm', 'opentelemetry'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", sorted(one.name for one in build_app().registered_commands))
def test_every_command_has_help_with_an_example(command: str) -> None:
    out = Rig().run(command, "--help")
    assert "Usage: gpugrid" in out or "Usage: root" in out or "Usage:" in out
    if command != "serve-stack":
        assert out.count("gpugrid") >= 1


def test_every_option_says_what_it_is_for() -> None:
    def silent(command: Any, path: str) -> list[str]:
        below = [
            found for name, one in getattr(command, "commands", {}).items() for found in silent(one, f"{path} {name}")
        ]
        shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
        return [f"{path} {one.opts[0]}" for one in shown if not getattr(one, "help", None)] + below

    assert silent(get_command(build_app()), "gpugrid") == []


def test_the_shell_completes_commands_and_options() -> None:
    env = {"_GPUGRID_COMPLETE": "complete_bash", "COMP_WORDS": "gpugrid rep", "COMP_CWORD": "1"}
    assert "replay-decision" in console(env=env).stdout
    env = {"_GPUGRID_COMPLETE": "complete_bash", "COMP_WORDS": "gpugrid jobs --st", "COMP_CWORD": "2"}
    assert "--state" in console(env=env).stdout


def test_the_version_is_told() -> None:
    assert console("--version").stdout.startswith("gpugrid")


def test_the_session_finds_its_stack_once(tmp_path: Path) -> None:
    write_stack(tmp_path / "s")
    session = Session(run_root=tmp_path)
    assert session.stack() is session.stack()
    assert session.address() == "127.0.0.1:19092"
    assert Session(bootstrap="h:1", run_root=tmp_path).address() == "h:1"


def console(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GPUGRID_")} | (env or {})
    return subprocess.run(
        [sys.executable, "-m", "services.console", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )
