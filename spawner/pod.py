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
from runai.spawner.session_request import SessionRequest
from runai.spawner.start_output import last_lines

SCHEDULER: Final = "runai-scheduler"
GPU_RESOURCE: Final = "nvidia.com/gpu"
GPU_TYPE_LABEL: Final = "nvidia.com/gpu.product"
SESSION_PRIORITY: Final = "100"
CONTAINER: Final = "notebook"
MESSAGE_BYTES: Final = 2048  # of its output, that a kubelet keeps of a container's end
POD_MESSAGES_BYTES: Final = 12 * 1024  # in equal shares for all containers
_OVER: Final = ("Failed", "Succeeded")
_REASONS: Final = {
    "Completed": "",
    "Error": "",
    "OOMKilled": "out of memory",
    "ContainerCannotRun": "it could not be started",
    "StartError": "it could not be started",
}
VISIBLE_DEVICES: Final = "metadata.annotations['runai/visible-devices']"
"""Written by the scheduler at binding, so that containers see only their devices."""
_MEMORY_ANNOTATIONS: Final = {
    "RUNAI_GPU_MEMORY_LIMIT_MIB": "runai/gpu-memory-limit-mib",
    "RUNAI_GPU_MEMORY_LIMITS_MIB": "runai/gpu-memory-limits-mib",
    "RUNAI_GPU_DEVICES_MIB": "runai/gpu-devices-mib",
    "RUNAI_GPU_CONTEXT_MIB": "runai/gpu-context-mib",
}
"""Memory limits in the binding's annotations: `runai_limits` enforces them in programs."""
_DEVICE_VARIABLES: Final = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
# Else frameworks allocate all memory of a GPU, including the neighbour's share.
_SHARED_GPU_VARIABLES: Final = {
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


def environment(request: SessionRequest, *, workload: str, api_url: str = "") -> dict[str, str]:
    """Return a server's variables: its identity and the service's URL."""
    env = {"RUNAI_API_URL": api_url} if api_url else {}
    if request.project is None:
        return env
    amount = request.amount
    env |= {"RUNAI_KIND": "session", "RUNAI_PROJECT": request.project, "RUNAI_WORKLOAD": workload}
    if not amount.memory_mib:
        env["RUNAI_GPU_FRACTION"] = f"{min(amount.gpus, Decimal(1)):f}"
    return env | _SHARED_GPU_VARIABLES if _is_shared(amount) else env


def with_session(pod: V1Pod, request: SessionRequest, gpu_types: Sequence[str] = ()) -> V1Pod:
    """Set a pod's GPUs to the session's choice in place; earlier GPU settings are removed.

    `gpu_types` are the nodes' types that it may use, the preferred first; empty: any.
    """
    amount = request.amount
    container = next(c for c in pod.spec.containers if c.name == CONTAINER)
    # So that a start that fails can say why, without a right on logs.
    policy = container.termination_message_policy or "FallbackToLogsOnError"
    container.termination_message_policy = policy
    whole_gpus = 0 if _is_shared(amount) else amount.milli_gpus // 1000
    container.resources = _with_gpus(container.resources, whole_gpus)
    # Values of the image or a configured environment could open other workloads' devices.
    own_names = {*_DEVICE_VARIABLES, *_MEMORY_ANNOTATIONS}
    container.env = [e for e in container.env or () if _name(e) not in own_names]
    if _is_shared(amount):
        container.env.append(_field_variable("NVIDIA_VISIBLE_DEVICES", VISIBLE_DEVICES))
        container.env += [
            _field_variable(name, f"metadata.annotations['{note}']")
            for name, note in _MEMORY_ANNOTATIONS.items()
        ]
    elif not _requests_devices(container.resources):
        container.env.append(V1EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="void"))
        container.env.append(V1EnvVar(name="CUDA_VISIBLE_DEVICES", value=""))
    limit = request.fields.get("max_runtime")
    if request.project is not None:
        pod.spec.scheduler_name = SCHEDULER
        labels = {"runai/project": request.project, "runai/kind": "build"}
        pod.metadata.labels = {**(pod.metadata.labels or {}), **labels}
        pod.metadata.annotations = {
            "runai/priority": SESSION_PRIORITY,
            **(pod.metadata.annotations or {}),
            **_share_annotation(amount),
            **({"runai/max-runtime": str(limit)} if limit else {}),
        }
        if gpu_types:
            _require_types(pod, gpu_types)
    return pod


def _require_types(pod: V1Pod, gpu_types: Sequence[str]) -> None:
    """Restrict a pod in place to nodes with one of the types of GPU."""
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
class PodExit:
    """The end of a server."""

    how: str = ""
    """A few words; "": with success, or unknown."""
    lines: str = ""
    """The last lines of its output, with secrets masked, or the runtime's error."""


@dataclass(frozen=True, slots=True)
class PodStart:
    """The state of a pod's start."""

    node: str = ""
    """Node that it is bound to; "": it still waits."""
    sentence: str = ""
    """The scheduler's reason for the wait."""
    end: PodExit | None = None
    """Its container's first end."""
    is_deleted: bool = False


def start_state(pod: Mapping[str, Any]) -> PodStart:
    """Parse a pod as the API server returns it."""
    status = pod.get("status", {})
    node = pod["spec"].get("nodeName", "")
    scheduled: Mapping[str, Any] = next(
        (c for c in status.get("conditions") or () if c["type"] == "PodScheduled"), {}
    )
    waits = scheduled.get("status") == "False"
    return PodStart(
        node=node,
        sentence=(scheduled.get("message") or "") if waits and not node else "",
        end=_first_exit(pod),
        is_deleted="deletionTimestamp" in pod.get("metadata", {}),
    )


def _first_exit(pod: Mapping[str, Any]) -> PodExit | None:
    """Return the first end of the server, after which the kubelet restarts it; None before."""
    status = pod.get("status", {})
    container = _notebook_of(status.get("containerStatuses") or ())
    states = (container.get(state) or {} for state in ("lastState", "state"))
    ends = (state["terminated"] for state in states if state.get("terminated"))
    terminated: Mapping[str, Any] = next(ends, {})
    if status.get("phase") == "Failed" and (why := status.get("message") or status.get("reason")):
        how = " ".join(why.split()).rstrip(".")  # the node's, such as an eviction's
    elif terminated or container.get("restartCount") or status.get("phase") in _OVER:
        how = _exit_text(terminated)
    else:
        return None
    message = _whole_lines(terminated.get("message") or "", pod["spec"])
    return PodExit(how, last_lines(message, _environment_of(pod["spec"])))


def _exit_text(terminated: Mapping[str, Any]) -> str:
    """Return a few words on how a container ended, "" after a success."""
    code, reason = terminated.get("exitCode"), terminated.get("reason") or ""
    words = [f"exit code {code}" if code else "", _REASONS.get(reason, reason)]
    return ": ".join(filter(None, words))


def _whole_lines(message: str, spec: Mapping[str, Any]) -> str:
    """Drop lines that the kubelet may have cut: a part of a secret would not be masked.

    It cuts the beginning of the output, and the end of what exceeds the container's share.
    """
    containers = len(spec.get("containers", ())) + len(spec.get("initContainers") or ())
    size, share = len(message.encode()), POD_MESSAGES_BYTES // max(containers, 1)
    if size >= min(MESSAGE_BYTES, share):
        message = message.partition("\n")[2]
    return message.rpartition("\n")[0] if size >= share else message


def _environment_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the server's environment, without values that are only references."""
    variables = _notebook_of(spec.get("containers", ())).get("env") or ()
    return {variable["name"]: variable["value"] for variable in variables if "value" in variable}


def _notebook_of(containers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the notebook's container, or its status; {} if there is none."""
    return next((c for c in containers if c["name"] == CONTAINER), {})


def _is_shared(amount: Amount) -> bool:
    return bool(amount.memory_mib or amount.milli_gpus % 1000)


def _share_annotation(amount: Amount) -> dict[str, str]:
    """Return the annotation that requests a share of a GPU; {} for whole GPUs or none."""
    if amount.memory_mib:
        return {"gpu-memory": str(amount.memory_mib)}
    return {"gpu-fraction": amount.text()} if _is_shared(amount) else {}


def _with_gpus(before: V1ResourceRequirements | None, gpus: int) -> V1ResourceRequirements:
    """Set the number of whole GPUs in place, 0 by removing them; return the resources."""
    resources = before or V1ResourceRequirements()
    for kind in ("limits", "requests"):
        amounts = {k: v for k, v in (getattr(resources, kind) or {}).items() if k != GPU_RESOURCE}
        setattr(resources, kind, amounts | ({GPU_RESOURCE: str(gpus)} if gpus else {}))
    return resources


def _requests_devices(resources: V1ResourceRequirements) -> bool:
    """Return True if a device plugin assigns the devices: whole GPUs or MIG slices."""
    limits = (resources.limits or {}).items()
    return any(name.startswith("nvidia.com/") and str(amount) != "0" for name, amount in limits)


def _field_variable(variable: str, field: str) -> V1EnvVar:
    source = V1EnvVarSource(field_ref=V1ObjectFieldSelector(field_path=field))
    return V1EnvVar(name=variable, value_from=source)


def _name(variable: Any) -> str:  # noqa: ANN401 - a V1EnvVar, or a dict of extra_container_config
    name: str = variable["name"] if isinstance(variable, dict) else variable.name
    return name
