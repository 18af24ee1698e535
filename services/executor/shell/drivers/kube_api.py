"""The few calls of the Kubernetes API that the driver makes, through the official client, off the event loop.

Owns: threads around a blocking client, and which answers mean "there is none". Refuses: retrying (who asks decides) and reading meaning
into objects (`kubernetes.py`). Read next: `kubernetes.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

REQUEST_WAIT_S = 20.0
"""An API server that takes longer is asked again."""
NOT_FOUND, CONFLICT = 404, 409
MAY_BE_DONE = (408, 429)


class KubeError(OSError):
    """The API server refused, or did not answer. `status` 0: nothing is known."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status

    @property
    def is_refusal(self) -> bool:
        """It was understood and not done; anything else may have been done all the same."""
        return 400 <= self.status < 500 and self.status not in MAY_BE_DONE


class KubeApi:
    """Jobs and pods of one namespace. `configuration`: of the official client; None: in a pod its service account, else kubectl's."""

    def __init__(self, namespace: str, configuration: Any = None) -> None:
        from kubernetes import client, config

        if configuration is None:
            configuration = client.Configuration()
            try:
                config.load_incluster_config(client_configuration=configuration)
            except config.ConfigException:
                config.load_kube_config(client_configuration=configuration)
        api = client.ApiClient(configuration)
        self._namespace = namespace
        self._jobs = client.BatchV1Api(api)
        self._pods = client.CoreV1Api(api)

    async def create(self, manifest: dict[str, Any]) -> None:
        """One that exists already under the name is ours from before. Raises KubeError."""
        try:
            await self._call(self._jobs.create_namespaced_job, self._namespace, manifest)
        except KubeError as error:
            if error.status != CONFLICT:
                raise

    async def job(self, name: str) -> Any:
        """The Job, or None if there is none. Raises KubeError."""
        return await self._found(self._jobs.read_namespaced_job, name, self._namespace)

    async def pods(self, name: str) -> list[Any]:
        """The pods of a Job. Raises KubeError."""
        listed = await self._call(self._pods.list_namespaced_pod, self._namespace, label_selector=f"job-name={name}")
        return list(listed.items)

    async def log(self, pod: str) -> str:
        """What the pod's only container wrote. Raises KubeError."""
        text = await self._found(self._pods.read_namespaced_pod_log, pod, self._namespace)
        return text or ""

    async def delete(self, name: str) -> None:
        """The Job and its pods, which get SIGTERM and their grace. Raises KubeError."""
        await self._found(self._jobs.delete_namespaced_job, name, self._namespace, propagation_policy="Background")

    async def delete_pod(self, pod: str) -> None:
        """At once. Raises KubeError."""
        await self._found(self._pods.delete_namespaced_pod, pod, self._namespace, grace_period_seconds=0)

    async def _found(self, call: Any, *given: Any, **named: Any) -> Any:
        try:
            return await self._call(call, *given, **named)
        except KubeError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    async def _call(self, call: Any, *given: Any, **named: Any) -> Any:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return await asyncio.to_thread(call, *given, _request_timeout=REQUEST_WAIT_S, **named)
        except ApiException as error:
            raise KubeError(
                error.status or 0, f"Kubernetes API: {error.status} {error.reason}: {_said(error)}"
            ) from None
        except (HTTPError, OSError) as error:
            raise KubeError(0, f"Kubernetes API: no answer ({error})") from None


def _said(error: Any) -> str:
    body = error.body
    return (body.decode(errors="replace") if isinstance(body, bytes) else str(body or ""))[:500]
