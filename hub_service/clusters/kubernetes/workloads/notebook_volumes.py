"""Settings that a job inherits from its user's notebook, and its volumes' node.

A job runs on the notebook's node if a volume cannot be mounted on any other.
"""

from collections.abc import Sequence
from dataclasses import replace

from runai.hub_service.clusters.kubernetes.client.api import Api, Object, translate_api_errors
from runai.hub_service.clusters.kubernetes.events.pod_conditions import pod_path
from runai.hub_service.clusters.kubernetes.objects.core_objects import KubeNode, Pod
from runai.hub_service.clusters.kubernetes.objects.job_manifest import (
    PodTemplateSource,
    surroundings,
)
from runai.hub_service.model.records import WorkloadSpec
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, MilliGpu, count_text
from runai.hub_service.wire.errors import InvalidRequest

_ON_SEVERAL_NODES = frozenset({"ReadWriteMany", "ReadOnlyMany"})


async def beside(api: Api, notebook: Pod) -> PodTemplateSource:
    """Return the pod settings of jobs that run beside a notebook.

    Raises:
        InvalidRequest: only the notebook's pod can mount one of its volumes.
    """
    with translate_api_errors():
        source = surroundings(await api.get(pod_path(notebook)))
        path = f"/api/v1/namespaces/{notebook.namespace}/persistentvolumeclaims"
        claims = [await api.get(f"{path}/{name}") for name in _claims(source)]
    return _pinned_to_volume_node(source, claims, notebook.node)


def _claims(source: PodTemplateSource) -> list[str]:
    volumes = (source.pod or {}).get("volumes", ())
    return [
        v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v
    ]


def _pinned_to_volume_node(
    source: PodTemplateSource, claims: Sequence[Object], node: str
) -> PodTemplateSource:
    for claim in claims:
        name = claim["metadata"]["name"]
        modes = set(claim.get("status", {}).get("accessModes") or claim["spec"]["accessModes"])
        if modes & _ON_SEVERAL_NODES:
            continue
        if "ReadWriteOnce" not in modes:
            raise InvalidRequest(
                f"The volume {name} of your notebook can be mounted by one pod at a time.",
                hint="Ask an admin for one that is ReadWriteOnce or ReadWriteMany.",
                code="volume_in_use",
            )
        here = {"key": "metadata.name", "operator": "In", "values": [node]}
        required = {"nodeSelectorTerms": [{"matchFields": [here]}]}
        rule = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        return replace(source, pod={**(source.pod or {}), "affinity": rule}, node=node, claim=name)
    return source


def check_room(spec: WorkloadSpec, source: PodTemplateSource, node: KubeNode | None) -> None:
    """Reject a job that can never run on the only node with its volume.

    Raises:
        InvalidRequest: the node has too few GPUs.
    """
    requested = WHOLE_GPU if spec.gpus_max else MilliGpu(spec.gpus * spec.min_workers)
    if not source.node or node is None or requested <= node.most_gpus * WHOLE_GPU:
        return
    has = count_text(MilliGpu(node.most_gpus * WHOLE_GPU))
    raise InvalidRequest(
        f"{spec.id} asks for {count_text(requested)}, and {node.name} has {has}: the volume"
        f" {source.claim} of your notebook can be mounted on that node alone.",
        hint="Ask for fewer, or ask an admin for a volume that is ReadWriteMany.",
        code="volume_on_one_node",
    )
