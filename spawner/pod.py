"""A notebook's pod: the changes for a session's choice, and the state of its start.

Pure: adds project, kind, scheduler and GPUs to KubeSpawner's pod, by the labels, annotations and
resources that our scheduler reads; parses a pod of the API server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from kubernetes_asyncio.client import (
    V1Affinity,
    V1EnvVar,
    V1EnvVarSource,
    V1NodeAffinity,
    V1NodeSelector,
    V1NodeSelectorRequirement,
    V1NodeSelectorTerm,
    V1ObjectFieldSelector,
    V1Pod,
    V1ResourceRequirements,
)

from runai.spawner.amount import Amount
from runai.spawner.session import SessionRequest

SCHEDULER: Final = "runai-scheduler"
GPU_RESOURCE: Final = "nvidia.com/gpu"
GPU_TYPE_LABEL: Final = "nvidia.com/gpu.product"
SESSION_PRIORITY: Final = "100"
VISIBLE_DEVICES: Final = "metadata.annotations['runai/visible-devices']"
"""Written by the scheduler at binding, so that containers see only their devices."""
_OF_MEMORY: Final = {
    "RUNAI_GPU_MEMORY_LIMIT_MIB": "runai/gpu-memory-limit-mib",
    "RUNAI_GPU_MEMORY_LIMITS_MIB": "runai/gpu-memory-limits-mib",
    "RUNAI_GPU_DEVICES_MIB": "runai/gpu-devices-mib",
    "RUNAI_GPU_CONTEXT_MIB": "runai/gpu-context-mib",
}
"""Memory limits in the binding's annotations: `runai_limits` enforces them in programs."""
_HIDING: Final = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
# Else frameworks allocate all memory of a GPU, including the neighbour's share.
_SHARING: Final = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def environment(request: SessionRequest, *, workload: str, api_url: str = "") -> dict[str, str]:
    """Return a server's variables: its identity and the service's URL."""
    env = {"RUNAI_API_URL": api_url} if api_url else {}
    if request.project is None:
        return env
    amount = request.amount
    env |= {"RUNAI_KIND": "session", "RUNAI_PROJECT": request.project, "RUNAI_WORKLOAD": workload}
    if not amount.memory_mib:
        env["RUNAI_GPU_FRACTION"] = f"{min(amount.gpus, Decimal(1)):f}"
    return env | _SHARING if _is_shared(amount) else env


def with_session(pod: V1Pod, request: SessionRequest, gpu_types: Sequence[str] = ()) -> V1Pod:
    """Set a pod's GPUs to the session's choice in place; earlier GPU settings are removed.

    `gpu_types` are the nodes' types that it may use, the preferred first; empty: any.
    """
    amount = request.amount
    container = next(c for c in pod.spec.containers if c.name == "notebook")
    whole = 0 if _is_shared(amount) else amount.milli_gpus // 1000
    container.resources = _resources(container.resources, whole)
    # Never from the image or a configured environment: they open other workloads' devices.
    written = {*_HIDING, *_OF_MEMORY}
    container.env = [e for e in container.env or () if _name(e) not in written]
    if _is_shared(amount):
        container.env.append(_shown("NVIDIA_VISIBLE_DEVICES", VISIBLE_DEVICES))
        container.env += [
            _shown(name, f"metadata.annotations['{note}']") for name, note in _OF_MEMORY.items()
        ]
    elif not _requests_devices(container.resources):
        container.env.append(V1EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="void"))
        container.env.append(V1EnvVar(name="CUDA_VISIBLE_DEVICES", value=""))
    if request.project is not None:
        pod.spec.scheduler_name = SCHEDULER
        labels = {"runai/project": request.project, "runai/kind": "build"}
        pod.metadata.labels = {**(pod.metadata.labels or {}), **labels}
        pod.metadata.annotations = {
            "runai/priority": SESSION_PRIORITY,
            **(pod.metadata.annotations or {}),
            **_part(amount),
            **({} if request.time is None else {"runai/max-runtime": str(request.time)}),
        }
        if gpu_types:
            _require_types(pod, gpu_types)
    return pod


def _require_types(pod: V1Pod, gpu_types: Sequence[str]) -> None:
    is_of = V1NodeSelectorRequirement(key=GPU_TYPE_LABEL, operator="In", values=list(gpu_types))
    spec: Any = pod.spec  # the stubs know no field that is not set
    if spec.affinity is None:
        spec.affinity = V1Affinity()
    if spec.affinity.node_affinity is None:
        spec.affinity.node_affinity = V1NodeAffinity()
    of_node = spec.affinity.node_affinity
    required = of_node.required_during_scheduling_ignored_during_execution
    # One of the terms must hold, so each gets the types.
    terms = [V1NodeSelectorTerm()] if required is None else required.node_selector_terms
    for term in terms:
        term.match_expressions = [*(term.match_expressions or ()), is_of]
    of_node.required_during_scheduling_ignored_during_execution = V1NodeSelector(
        node_selector_terms=terms
    )


@dataclass(frozen=True, slots=True)
class PodStart:
    """The state of a pod's start."""

    node: str = ""
    """Node that it is bound to; "": it still waits."""
    sentence: str = ""
    """The scheduler's reason for the wait."""
    ended: str = ""
    """Reason of its early end; "": it has not ended."""


def start_state(pod: Mapping[str, Any]) -> PodStart:
    """Parse a pod as the API server returns it."""
    status = pod.get("status", {})
    node = pod["spec"].get("nodeName", "")
    scheduled: Mapping[str, Any] = next(
        (c for c in status.get("conditions") or () if c["type"] == "PodScheduled"), {}
    )
    waits = scheduled.get("status") == "False"
    return PodStart(
        node, (scheduled.get("message") or "") if waits and not node else "", _end(status)
    )


def _end(status: Mapping[str, Any]) -> str:
    if status.get("phase") not in ("Failed", "Succeeded"):
        return ""
    for container in status.get("containerStatuses") or ():
        if container["name"] == "notebook" and (end := container["state"].get("terminated")):
            why = end.get("message") or end.get("reason") or ""
            return f"exit code {end['exitCode']}{': ' + why if why else ''}"
    return status.get("message") or status.get("reason") or "for no reason that Kubernetes tells"


def _is_shared(amount: Amount) -> bool:
    return bool(amount.memory_mib or amount.milli_gpus % 1000)


def _part(amount: Amount) -> dict[str, str]:
    if amount.memory_mib:
        return {"gpu-memory": str(amount.memory_mib)}
    return {"gpu-fraction": amount.text()} if _is_shared(amount) else {}


def _resources(before: V1ResourceRequirements | None, gpus: int) -> V1ResourceRequirements:
    resources = before or V1ResourceRequirements()
    for kind in ("limits", "requests"):
        amounts = {k: v for k, v in (getattr(resources, kind) or {}).items() if k != GPU_RESOURCE}
        setattr(resources, kind, amounts | ({GPU_RESOURCE: str(gpus)} if gpus else {}))
    return resources


def _requests_devices(resources: V1ResourceRequirements) -> bool:
    """Return True if a device plugin assigns the devices: whole GPUs or MIG slices."""
    limits = (resources.limits or {}).items()
    return any(name.startswith("nvidia.com/") and str(amount) != "0" for name, amount in limits)


def _shown(variable: str, field: str) -> V1EnvVar:
    source = V1EnvVarSource(field_ref=V1ObjectFieldSelector(field_path=field))
    return V1EnvVar(name=variable, value_from=source)


def _name(variable: Any) -> str:  # noqa: ANN401 - a V1EnvVar, or a dict of extra_container_config
    name: str = variable["name"] if isinstance(variable, dict) else variable.name
    return name
