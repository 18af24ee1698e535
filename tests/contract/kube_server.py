"""A small stand-in for a Kubernetes cluster, in this process: the API's endpoints that the driver uses, and a kubelet that really runs
the containers' commands as processes of this machine. Answers have the shape of the real API (version 1.36: Status objects, 404, 409,
background deletion with grace); what it leaves out is scheduling, images, admission and authentication.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

from kubernetes import client

JOBS = re.compile(r"/apis/batch/v1/namespaces/([^/]+)/jobs(?:/([^/]+))?")
PODS = re.compile(r"/api/v1/namespaces/([^/]+)/pods(?:/([^/]+))?(/log)?")


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Kubelet:
    """One pod's only container as a process group."""

    def __init__(self, pod: dict[str, Any]) -> None:
        self.pod = pod
        self.output = b""
        self._process: subprocess.Popen[bytes] | None = None
        container = pod["spec"]["containers"][0]
        environment = {each["name"]: each["value"] for each in container["env"]}
        path = environment.get("PATH", "/usr/local/bin:/usr/bin:/bin")
        try:
            self._process = subprocess.Popen(
                container["command"],
                env=environment | {"PATH": path, "NVIDIA_VISIBLE_DEVICES": "0"},
                cwd=container["workingDir"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            message = f"failed to create task: {error}"
            self._say(
                "Failed", terminated={"exitCode": 128, "reason": "StartError", "message": message, "finishedAt": now()}
            )
            return
        self._started = now()
        self._say("Running", running={"startedAt": self._started})
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output += line
        code = self._process.wait()
        exit_code = code if code >= 0 else 128 - code  # as container runtimes report signals
        reason = "Completed" if exit_code == 0 else "Error"
        ended = {"exitCode": exit_code, "reason": reason, "startedAt": self._started, "finishedAt": now()}
        self._say("Succeeded" if exit_code == 0 else "Failed", terminated=ended)

    def end(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def gone(self, wait_s: float) -> bool:
        if self._process is None:
            return True
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _say(self, phase: str, **state: Any) -> None:
        running = "running" in state
        status = {
            "name": "job",
            "ready": running,
            "started": running,
            "restartCount": 0,
            "image": "i",
            "imageID": "",
            "state": state,
        }
        self.pod["status"] = {"phase": phase, "containerStatuses": [status]}


class KubeServer:
    """`with` starts it. `pull`: what a container waits for instead of beginning. `deaf`: every request is answered by 503;
    `deaf_after_create`: so many, once a Job was created, whose own answer is lost, too. `logless`: nothing gives its output."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.kubelets: dict[str, Kubelet] = {}
        self.pull = ""
        self.deaf = False
        self.deaf_after_create = 0
        self.logless = False
        self.asked_while_deaf = 0
        self.created = 0
        self.lock = threading.RLock()

    def __enter__(self) -> KubeServer:
        server = self
        handler = type("Handler", (_Handler,), {"server_state": server})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        for kubelet in self.kubelets.values():
            kubelet.end(signal.SIGKILL)

    @property
    def configuration(self) -> Any:
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{self._http.server_address[1]}"
        configuration.retries = False
        return configuration

    def create(self, namespace: str, manifest: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = manifest["metadata"]["name"]
        with self.lock:
            if name in self.jobs:
                return 409, failure(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
            self.created += 1
            self.deaf = self.deaf_after_create > 0
            manifest["metadata"] |= {"namespace": namespace, "uid": f"uid-{self.created}", "creationTimestamp": now()}
            manifest["status"] = {"active": 1}
            self.jobs[name] = manifest
            pod_name = f"{name}-{self.created:05}"
            template = manifest["spec"]["template"]
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": pod_name,
                    "namespace": namespace,
                    "labels": template["metadata"]["labels"] | {"job-name": name},
                },
                "spec": template["spec"],
                "status": {"phase": "Pending"},
            }
            self.pods[pod_name] = pod
            if self.pull:
                waiting = {"waiting": {"reason": self.pull, "message": "not found"}}
                status = {
                    "name": "job",
                    "ready": False,
                    "restartCount": 0,
                    "image": "i",
                    "imageID": "",
                    "state": waiting,
                }
                pod["status"]["containerStatuses"] = [status]
            else:
                self.kubelets[pod_name] = Kubelet(pod)
            return 201, manifest

    def delete(self, name: str) -> tuple[int, dict[str, Any]]:
        with self.lock:
            if name not in self.jobs:
                return 404, failure(404, "NotFound", f'jobs.batch "{name}" not found')
            job = self.jobs.pop(name)
            owned = [pod for pod in self.pods.values() if pod["metadata"]["labels"]["job-name"] == name]
        grace_s = job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for pod in owned:
            threading.Thread(target=self._end, args=(pod["metadata"]["name"], grace_s), daemon=True).start()
        return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def delete_pod(self, name: str) -> tuple[int, dict[str, Any]]:
        if name not in self.pods:
            return 404, failure(404, "NotFound", f'pods "{name}" not found')
        pod = self.pods[name]
        self._end(name, 0)
        return 200, pod

    def _end(self, name: str, grace_s: float) -> None:
        kubelet = self.kubelets.get(name)
        if kubelet is not None:
            kubelet.end(signal.SIGTERM if grace_s else signal.SIGKILL)
            if grace_s and not kubelet.gone(grace_s):
                kubelet.end(signal.SIGKILL)
            kubelet.gone(10)
        with self.lock:
            self.pods.pop(name, None)


def failure(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


class _Handler(BaseHTTPRequestHandler):
    server_state: KubeServer

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""

    def _answer(self) -> None:
        state = self.server_state
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if state.deaf:
            state.asked_while_deaf += 1
            if state.deaf_after_create and state.asked_while_deaf >= state.deaf_after_create:
                state.deaf = False
            self._send(503, failure(503, "ServiceUnavailable", "the server is currently unable to handle the request"))
            return
        url = urlparse(self.path)
        if (found := JOBS.fullmatch(url.path)) is not None:
            self._send(*self._job(found[1], found[2], body))
        elif (found := PODS.fullmatch(url.path)) is not None:
            self._pod(found[2], bool(found[3]), parse_qs(url.query))
        else:
            self._send(404, failure(404, "NotFound", "the server could not find the requested resource"))

    def _job(self, namespace: str, name: str | None, body: bytes) -> tuple[int, dict[str, Any]]:
        state = self.server_state
        if self.command == "POST":
            done = state.create(namespace, json.loads(body))
            return (503, failure(503, "ServiceUnavailable", "lost")) if state.deaf else done
        if self.command == "DELETE":
            return state.delete(name or "")
        if name not in state.jobs:
            return 404, failure(404, "NotFound", f'jobs.batch "{name}" not found')
        return 200, state.jobs[name]

    def _pod(self, name: str | None, log: bool, query: dict[str, list[str]]) -> None:
        state = self.server_state
        if name is None:
            label, _, value = query["labelSelector"][0].partition("=")
            with state.lock:
                items = [pod for pod in state.pods.values() if pod["metadata"]["labels"].get(label) == value]
            self._send(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
        elif self.command == "DELETE":
            self._send(*state.delete_pod(name))
        elif log and state.logless:
            self._send(500, failure(500, "InternalError", "the node is not reachable"))
        elif log and name in state.kubelets:
            self._send_bytes(200, state.kubelets[name].output, "text/plain")
        else:
            self._send(404, failure(404, "NotFound", f'pods "{name}" not found'))

    def _send(self, code: int, content: dict[str, Any]) -> None:
        self._send_bytes(code, json.dumps(content).encode(), "application/json")

    def _send_bytes(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
