"""One node pool of a large cluster, selected by a label: its nodes, projects and pods.

The scheduler of a pool watches the nodes and projects that carry the pool's label, and schedules
the pods that carry it. All other pods belong to another scheduler, even if they name this one. So
each pool can have its own installation, and two installations share only the API server.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.kubernetes.objects.core_objects import SCHEDULER, Pod, read_pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job, read_job
from runai.hub_service.clusters.kubernetes.objects.pytorch_job import read_pytorch_job

ELSEWHERE = "the scheduler of another pool"
_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_KEY = rf"(?:{_DOMAIN}/)?{_NAME}"


@dataclass(frozen=True, slots=True)
class NodePool:
    """Label selector of a pool; without a key it selects everything.

    A key without a value selects objects that lack the label.
    """

    key: str = ""
    value: str = ""

    @classmethod
    def parse(cls, text: str) -> "NodePool":
        """Parse `KEY=VALUE`, `!KEY` for objects without that label, or "" for everything.

        Raises:
            ValueError: the text has none of these forms, or is not a valid Kubernetes label.

        >>> NodePool.parse("runai/node-pool=a")
        NodePool(key='runai/node-pool', value='a')
        >>> NodePool.parse("!runai/node-pool").selector
        '!runai/node-pool'
        """
        if not text:
            return EVERYTHING
        if match := re.fullmatch(rf"!({_KEY})|({_KEY})=({_NAME})", text):
            lacked_key, key, value = match[1], match[4], match[7]
            return cls(lacked_key) if lacked_key else cls(key, value)
        raise ValueError(f"{text!r} is neither KEY=VALUE nor !KEY")

    @property
    def is_part(self) -> bool:
        """Return True if the cluster may have other pools."""
        return bool(self.key)

    @property
    def selector(self) -> str:
        """Return the label selector for API requests; "" selects everything."""
        if not self.key:
            return ""
        return f"{self.key}={self.value}" if self.value else f"!{self.key}"

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels that put an object in the pool."""
        return {self.key: self.value} if self.value else {}

    def with_labels(self, new: Object) -> Object:
        """Return a new object, and its pod template, with the pool's labels."""
        if not self.labels:
            return new
        metadata = new.get("metadata", {})
        labels = {**metadata.get("labels", {}), **self.labels}
        labelled = {**new, "metadata": {**metadata, "labels": labels}}
        if (template := new.get("spec", {}).get("template")) is not None:
            labelled["spec"] = {**new["spec"], "template": self.with_labels(template)}
        return labelled

    def has(self, found: Object) -> bool:
        """Return True if an object or a pod template is in the pool."""
        labels: Mapping[str, str] = found.get("metadata", {}).get("labels") or {}
        return not self.key or labels.get(self.key, "") == self.value

    def read_pod(self, found: Object) -> Pod | None:
        """Parse a pod; a pod of another pool gets another scheduler. None: it uses no resources."""
        pod = read_pod(found)
        if self.has(found) or pod.scheduler != SCHEDULER:
            return pod
        return replace(pod, scheduler=ELSEWHERE) if pod.uses_node else None

    def read_job(self, found: Object) -> Job | None:
        """Parse a Job; None: its pods belong to another pool."""
        return read_job(found) if self.has(found["spec"]["template"]) else None

    def read_pytorch_job(self, found: Object) -> Job | None:
        """Parse a PyTorchJob; None: some of its pods belong to another pool."""
        templates = [role["template"] for role in found["spec"]["pytorchReplicaSpecs"].values()]
        return read_pytorch_job(found) if all(map(self.has, templates)) else None

    def relevant_pods(self, pods: Iterable[Pod], nodes: Mapping[str, object]) -> list[Pod]:
        """Return the pool's own pods, and other schedulers' pods on its nodes."""
        if not self.key:
            return list(pods)
        return [pod for pod in pods if pod.scheduler == SCHEDULER or pod.node in nodes]


EVERYTHING = NodePool()
"""The whole cluster: one scheduler, no pools."""
