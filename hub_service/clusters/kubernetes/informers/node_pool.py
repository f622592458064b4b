"""One part of a large cluster, by a label: its nodes, projects, and the pods that are to go there.

A scheduler of a pool sees the nodes and the projects that carry the pool's label, and schedules the
pods that carry it; everybody else's are somebody else's, though they name this scheduler. So one
installation each can have a pool, and nothing is shared between two of them but the API server.
Pure; used by the mirrors, and by whoever makes objects.
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
class Pool:
    """What has a label of this value; without a value what has no such label; else everything."""

    key: str = ""
    value: str = ""

    @classmethod
    def parse(cls, text: str) -> "Pool":
        """Read `KEY=VALUE`, `!KEY` for what no pool of that key has, or "" for everything.

        Raises:
            ValueError: it is none of these, or Kubernetes has no such labels.

        >>> Pool.parse("runai/node-pool=a")
        Pool(key='runai/node-pool', value='a')
        >>> Pool.parse("!runai/node-pool").selector
        '!runai/node-pool'
        """
        if not text:
            return EVERYTHING
        if match := re.fullmatch(rf"!({_KEY})|({_KEY})=({_NAME})", text):
            rest, key, value = match[1], match[4], match[7]
            return cls(rest) if rest else cls(key, value)
        raise ValueError(f"{text!r} is neither KEY=VALUE nor !KEY")

    @property
    def is_part(self) -> bool:
        """Tell whether there may be others beside it."""
        return bool(self.key)

    @property
    def selector(self) -> str:
        """Return how the API server is asked for what is in it; "" for everything."""
        if not self.key:
            return ""
        return f"{self.key}={self.value}" if self.value else f"!{self.key}"

    @property
    def labels(self) -> dict[str, str]:
        """Return what makes an object one of it."""
        return {self.key: self.value} if self.value else {}

    def put_in(self, made: Object) -> Object:
        """Return an object that is to be made, and its template of pods, with the labels of it."""
        if not self.labels:
            return made
        metadata = made.get("metadata", {})
        labels = {**metadata.get("labels", {}), **self.labels}
        marked = {**made, "metadata": {**metadata, "labels": labels}}
        if (template := made.get("spec", {}).get("template")) is not None:
            marked["spec"] = {**made["spec"], "template": self.put_in(template)}
        return marked

    def has(self, found: Object) -> bool:
        """Tell whether an object, or a template of pods, is in it."""
        labels: Mapping[str, str] = found.get("metadata", {}).get("labels") or {}
        return not self.key or labels.get(self.key, "") == self.value

    def read_pod(self, found: Object) -> Pod | None:
        """Parse a pod; one for another pool is somebody else's. None: it takes room nowhere."""
        pod = read_pod(found)
        if self.has(found) or pod.scheduler != SCHEDULER:
            return pod
        return replace(pod, scheduler=ELSEWHERE) if pod.holds else None

    def read_job(self, found: Object) -> Job | None:
        """Parse a Job; None: its pods are for another pool."""
        return read_job(found) if self.has(found["spec"]["template"]) else None

    def read_pytorch_job(self, found: Object) -> Job | None:
        """Parse a PyTorchJob; None: pods of it are for another pool."""
        templates = [role["template"] for role in found["spec"]["pytorchReplicaSpecs"].values()]
        return read_pytorch_job(found) if all(map(self.has, templates)) else None

    def seen_from(self, pods: Iterable[Pod], nodes: Mapping[str, object]) -> list[Pod]:
        """Leave out pods of others that are on no node of it."""
        if not self.key:
            return list(pods)
        return [pod for pod in pods if pod.scheduler == SCHEDULER or pod.node in nodes]


EVERYTHING = Pool()
"""All of a cluster, as one scheduler has it where there are no pools."""
