"""Runs one job and writes down how it ended. Started by path with a bare interpreter, so it imports the standard library only.

Owns: the job's process from before its first instruction until nothing of it is left. It outlives the executor, which is why
it exists: whoever adopts the job later reads `exit.json`. Files in its folder, each written in one step:
`spec.json` (in), `claim` (whoever creates it owns the attempt: this runner, or an executor that gave it up), `job.json`
(the job's process), `exit.json` (how it ended). Refuses: everything else. Read next: `drivers/process.py`.
"""

import contextlib
import errno
import json
import os
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
LEFTOVER_ROUNDS_MAX = 1_000
"""Killing what escaped into sessions of its own: each round kills every child there is; forks faster than that are lost."""
RETRY_S = 0.1
GROUP_ROUNDS_MAX = 100
JOB_NOTE, EXIT_NOTE = "job.json", "exit.json"
NOTES = (JOB_NOTE, EXIT_NOTE)
NOTE_BYTES = 512
"""A note is filled up with spaces to that length: its room is taken before the job begins, so that a full disk hides no end."""
GROUP_PAUSE_S = 0.01
"""A second in all; a control group that stays is empty and costs nothing."""
FORWARDED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT)
RESET_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)


def main(folder: str, notify_fd: int) -> None:
    with open(os.path.join(folder, "spec.json"), "rb") as file:  # noqa: PTH123, PTH118 - pathlib doubles the start-up time
        spec = json.load(file)
    os.set_inheritable(notify_fd, False)
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    for name in NOTES:
        reserve(folder, name)
    adopt_orphans()
    if not claim(folder, {"pid": os.getpid(), "ticks": start_ticks()}):
        for name in NOTES:
            os.unlink(room_of(folder, name))  # noqa: PTH108
        return
    for name in spec.get("inherit", ()):
        if name in os.environ:
            spec["environment"][name] = os.environ[name]
    child, error = spawn(spec)
    if error is not None:
        write(folder, EXIT_NOTE, {"errno": error[1], "stage": error[0], "wall_ms": wall_ms()})
    else:
        write(folder, JOB_NOTE, {"pid": child, "ticks": start_ticks(child), "wall_ms": wall_ms()})
    told(notify_fd)
    if error is None:
        if spec.get("forward"):
            forward(child)
        write(folder, EXIT_NOTE, watch(child, spec.get("group", "")), durable=True)
    remove_group(spec.get("group", ""))


def forward(child: int) -> None:
    """Where only this process can be signalled (a batch system), hand on: the end to the whole group, anything else to the job."""
    waiting = []

    def hand_on(received: int, _: object) -> None:
        if received != signal.SIGALRM:
            waiting.append(received)
        for number in [number for number in waiting if catches(child, number)]:
            waiting.remove(number)
            os.kill(child, number)
        if waiting:  # the job has only just begun: its default action would end it
            signal.setitimer(signal.ITIMER_REAL, RETRY_S)

    for number in (*FORWARDED_SIGNALS, signal.SIGALRM):
        signal.signal(number, hand_on)
    signal.signal(signal.SIGTERM, lambda received, _: os.killpg(child, received))


def catches(pid: int, number: int) -> bool:
    """It has installed a handler for the signal."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def adopt_orphans() -> None:
    """What the job leaves behind becomes a child of ours. Before it begins: a short one leaves things behind at once."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def claim(folder: str, content: dict) -> bool:
    """Create `claim` with its content in one step; False if it exists."""
    fresh = f"{folder}/claim.{os.getpid()}"
    with open(fresh, "w") as file:  # noqa: PTH123
        json.dump(content, file)
    try:
        os.link(fresh, f"{folder}/claim")
    except FileExistsError:
        return False
    finally:
        os.unlink(fresh)  # noqa: PTH108
    return True


def spawn(spec: dict) -> tuple[int, "tuple[str, int] | None"]:
    """(pid, None) of the running job, or (0, (stage, errno)) if it could not be started."""
    read_fd, write_fd = os.pipe()
    try:
        log_fd = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        return 0, ("log", error.errno or errno.EIO)
    make_group(spec.get("group", ""))
    try:
        child = os.fork()
    except OSError as error:
        return 0, ("fork", error.errno or errno.EAGAIN)
    if child == 0:
        become(spec, log_fd, write_fd)
    os.close(write_fd)
    os.close(log_fd)
    failure = os.read(read_fd, 64)
    os.close(read_fd)
    if not failure:
        return child, None
    os.waitpid(child, 0)
    stage, _, number = failure.decode().partition(" ")
    return 0, (stage, int(number))


def become(spec: dict, log_fd: int, write_fd: int) -> None:
    """In the child: a session of its own, its files, its folder, its command. Never returns."""
    stage = "setup"
    try:
        os.setsid()
        enter_group(spec.get("group", ""))
        null_fd = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null_fd, 0)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        for number in RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        stage = "directory"
        os.chdir(spec["directory"])
        stage = "exec"
        os.execvpe(spec["command"][0], spec["command"], spec["environment"])  # noqa: S606
    except Exception as error:
        # Also what isn't an OSError, for example a NUL in an argument: it must not look like a job that began.
        os.write(write_fd, f"{stage} {getattr(error, 'errno', None) or errno.EINVAL}".encode())
    finally:
        os._exit(127)


def make_group(group: str) -> None:
    """The job's control group, if the machine has one for us; without it the process group has to do."""
    if group:
        with contextlib.suppress(OSError):
            os.mkdir(group)  # noqa: PTH102


def enter_group(group: str) -> None:
    """In the child: before its first instruction, so that nothing it starts is ever outside."""
    if group:
        with contextlib.suppress(OSError), open(f"{group}/cgroup.procs", "w") as file:  # noqa: PTH123
            file.write("0")


def end_group(group: str) -> None:
    """Kill whatever is in it, whoever its parent is by now."""
    if group:
        with contextlib.suppress(OSError), open(f"{group}/cgroup.kill", "w") as file:  # noqa: PTH123
            file.write("1")


def remove_group(group: str) -> None:
    """End whatever is in it, and remove it. Nothing happens where there is none; what was killed takes a moment to go."""
    for _ in range(GROUP_ROUNDS_MAX if group else 0):
        try:
            os.rmdir(group)  # noqa: PTH106
        except FileNotFoundError:
            return
        except OSError:
            end_group(group)
            time.sleep(GROUP_PAUSE_S)
        else:
            return


def watch(child: int, group: str) -> dict:
    """Wait for the job's end, end whatever it left behind, and say how it ended."""
    while True:
        seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if seen is not None and seen.si_pid == child:
            break
        if seen is not None:
            os.waitpid(seen.si_pid, 0)
    ended_ms = wall_ms()
    # Not yet reaped, so its pid can't name another group.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    end_group(group)
    _, status = os.waitpid(child, 0)
    end_leftovers()
    code = os.waitstatus_to_exitcode(status)
    return {"wall_ms": ended_ms, "signal": -code} if code < 0 else {"wall_ms": ended_ms, "code": code}


def end_leftovers() -> None:
    """Kill and reap every process that the job left to us."""
    for _ in range(LEFTOVER_ROUNDS_MAX):
        for child in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children() -> list:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def reserve(folder: str, name: str) -> None:
    """Room for a note. Raises OSError on a full disk: nothing has begun then, and nobody has claimed to."""
    with open(room_of(folder, name), "w") as file:  # noqa: PTH123
        file.write(" " * NOTE_BYTES)


def room_of(folder: str, name: str) -> str:
    """This runner's own: another one for the same attempt may just be losing the claim."""
    return f"{folder}/{name}.{os.getpid()}"


def write(folder: str, name: str, content: dict, durable: bool = False) -> None:
    """All of it or nothing, into the room that was reserved; an exit must survive a power cut, a running job doesn't survive one anyway."""
    fresh = room_of(folder, name)
    with open(fresh, "r+") as file:  # noqa: PTH123
        file.write(json.dumps(content).ljust(NOTE_BYTES))
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(fresh, f"{folder}/{name}")  # noqa: PTH105


def told(notify_fd: int) -> None:
    """Wake the executor, if it still lives."""
    try:
        os.write(notify_fd, b"\n")
        os.close(notify_fd)
    except OSError:
        pass


def start_ticks(pid: "int | None" = None) -> int:
    """When a process started, in clock ticks since boot: with its pid, its identity."""
    with open(f"/proc/{pid or os.getpid()}/stat", "rb") as file:  # noqa: PTH123
        return int(file.read().rpartition(b")")[2].split()[19])


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    main(sys.argv[1], int(sys.argv[2]))
