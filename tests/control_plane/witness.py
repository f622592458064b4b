"""A watch of every change of every pod, which reports violations of three invariants.

    with Witness(plane):        # around the faults of the test
        ...

1. No node has more pods bound and not ended than it has devices for.
2. No pod is bound to one node and then to another.
3. No worker of a Job has two pods that are bound at once.

It follows the API server's watch from one version to the next, so it misses no change between two
reads. While that server is down nothing changes either.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any, Self

import httpx

from control_plane.calls import ApiRefused
from control_plane.plane import ControlPlane

WATCH_S = 1
"""The server ends a watch after this, which bounds the wait of `__exit__`."""
WITHIN_S = 90
GPU = "nvidia.com/gpu"
INDEX = "batch.kubernetes.io/job-completion-index"


class Witness:
    """An observer of all pods, for as long as a `with` lasts."""

    def __init__(self, plane: ControlPlane) -> None:
        """Create the observer; the watch begins with `with`."""
        self._plane = plane
        self._pods: dict[str, dict[str, Any]] = {}
        self._nodes: dict[str, str] = {}
        self._device_counts: dict[str, int] = {}
        self._stopped = threading.Event()
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.violations: list[str] = []
        """Violations seen so far."""
        self.bound: set[str] = set()
        """UIDs of the pods that were bound."""

    def __enter__(self) -> Self:
        """Start the watch; return when all existing pods have been read."""
        self._thread.start()
        assert self._began.wait(WITHIN_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop, and fail the test if there were violations."""
        self._stopped.set()
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()
        if kind is None:
            assert not self.violations, "\n".join(self.violations)

    def _watch(self) -> None:
        version = ""
        while not self._stopped.is_set():
            try:
                version = self._follow(version) if version else self._list()
            except (ApiRefused, httpx.TransportError):
                self._stopped.wait(0.05)  # the API server is being restarted: retry
            except BaseException as failed:  # noqa: BLE001  handed over to the test
                self.violations.append(f"the witness failed: {failed!r}")
                return

    def _list(self) -> str:
        listed = self._plane.request("GET", "/api/v1/pods")
        self._pods = {found["metadata"]["uid"]: found for found in listed["items"]}
        for found in listed["items"]:
            self._check(found)
        self._began.set()
        return str(listed["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> str:
        address = f"/api/v1/pods?watch=1&timeoutSeconds={WATCH_S}&resourceVersion={version}"
        for line in self._plane.lines(address):
            event = json.loads(line)
            if event["type"] == "ERROR":  # too long ago: the changes in between are lost
                return ""
            found = event["object"]
            version = str(found["metadata"]["resourceVersion"])
            if event["type"] == "DELETED":
                self._pods.pop(found["metadata"]["uid"], None)
            else:
                self._pods[found["metadata"]["uid"]] = found
                self._check(found)
        return version

    def _check(self, pod: dict[str, Any]) -> None:
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        if not node:
            return
        before = self._nodes.setdefault(uid, node)
        if before != node:
            self.violations.append(f"{_full_name(pod)} was bound to {before}, then to {node}")
        if uid in self.bound:
            return
        self.bound.add(uid)
        node_pods = [
            p for p in self._pods.values() if p["spec"].get("nodeName") == node and _is_active(p)
        ]
        requested = sum(map(_gpus, node_pods))
        if requested > self._devices(node):
            names = ", ".join(sorted(_full_name(p) for p in node_pods if _gpus(p)))
            self.violations.append(
                f"{node} has {self._devices(node)} GPUs, and {requested} are given: {names}"
            )
        twins = [
            p for p in self._pods.values() if _worker_key(p) and _worker_key(p) == _worker_key(pod)
        ]
        if sum(1 for p in twins if p["spec"].get("nodeName") and _is_active(p)) > 1:
            self.violations.append(
                f"{_full_name(pod)} is bound beside another pod of the same worker"
            )

    def _devices(self, node: str) -> int:
        if node not in self._device_counts:
            try:
                found = self._plane.request("GET", f"/api/v1/nodes/{node}")
            except ApiRefused as refused:
                if refused.status != 404:
                    raise
                return sys.maxsize  # it is gone, and its devices are free
            self._device_counts[node] = int(found["status"]["allocatable"].get(GPU, 0))
        return self._device_counts[node]


def _is_active(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") not in ("Succeeded", "Failed")


def _gpus(pod: dict[str, Any]) -> int:
    limits = (c.get("resources", {}).get("limits", {}) for c in pod["spec"]["containers"])
    return sum(int(of.get(GPU, 0)) for of in limits)


def _worker_key(pod: dict[str, Any]) -> tuple[str, str] | None:
    index = pod["metadata"].get("annotations", {}).get(INDEX)
    owners = pod["metadata"].get("ownerReferences", ())
    return (owners[0]["uid"], index) if owners and index is not None else None


def _full_name(pod: dict[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
