"""A real Slurm on this machine: one controller and two nodes with eight GPUs each, which are copies of /dev/null. Needs root."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import closing
from pathlib import Path

from services.executor.shell.drivers.slurm import Slurm

READY_WAIT_S = 30.0
NODES = ("n1", "n2")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmctldPort={port}
StateSaveLocation={base}/state
SlurmctldPidFile={base}/run/slurmctld.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdSpoolDir={base}/spool/%n
SlurmdPidFile={base}/run/slurmd-%n.pid
SlurmdLogFile={base}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
MailProg=/bin/true
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2,bf_continue,batch_sched_delay=0,defer_batch
PriorityType=priority/basic
GresTypes=gpu
MessageTimeout=2
KillWait=2
MinJobAge=300
SlurmdTimeout=300
TCPTimeout=2
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=8 RealMemory=1000 Gres=gpu:h200:8 State=UNKNOWN
PartitionName=gpu Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Empty if a Slurm can be run here."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "squeue", "scancel") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: make test-slurm installs what is missing"
    return "" if os.getuid() == 0 else "only root can make the devices and run slurmd"


class SlurmCluster:
    """Started by `with`; `controller` can be stopped and started again."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._pids: dict[str, int] = {}
        self._ports = free_ports(3)
        self.environment = os.environ | {"SLURM_CONF": str(base / "slurm.conf")}
        self.slurm = Slurm(environment=self.environment)

    def __enter__(self) -> SlurmCluster:
        for name in ("state", "run", "log", "dev", *(f"spool/{node}" for node in NODES)):
            (self.base / name).mkdir(parents=True)
        for index in range(8):
            os.mknod(self.base / "dev" / f"nvidia{index}", 0o666 | 0o020000, os.makedev(1, 3))
        host = socket.gethostname().split(".")[0]
        text = CONFIGURATION.format(
            base=self.base, host=host, port=self._ports[0], first=self._ports[1], last=self._ports[1] + 1
        )
        (self.base / "slurm.conf").write_text(text)
        (self.base / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu Type=h200 File={self.base}/dev/nvidia[0-7]\n")
        (self.base / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        self.start_controller()
        for node in NODES:
            self._start(node, "slurmd", "-D", "-f", str(self.base / "slurm.conf"), "-N", node, "-c")
        self._until(lambda: self._says("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * 2, "nodes never came up")
        return self

    def __exit__(self, *_: object) -> None:
        self._says("scancel", "--full", "--signal=KILL", "--user=root")
        for name in list(self._pids):
            self.stop(name)

    def start_controller(self) -> None:
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.base / "slurm.conf"))

    def stop(self, name: str) -> None:
        """In order: a controller killed with -9 forgets its newest jobs, and gives their numbers away again."""
        pid = self._pids.pop(name)
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)

    def _start(self, name: str, *command: str) -> None:
        with (self.base / "log" / f"{name}.out").open("ab") as out:
            self._pids[name] = subprocess.Popen(command, stdout=out, stderr=out, env=self.environment).pid

    def _says(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment)
        return done.stdout

    def _until(self, condition, what: str) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + READY_WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self._says('sinfo', '-N', '-l')}"
            time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Neighbouring ports that nobody listens on."""
    for first in range(26_800, 30_000, 10):
        with closing(socket.socket()) as probe:
            try:
                probe.bind(("127.0.0.1", first))
            except OSError:
                continue
            return [first + offset for offset in range(count)]
    raise AssertionError("no free ports")
