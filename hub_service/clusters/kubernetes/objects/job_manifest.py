"""Conversion of a WorkloadSpec to a Job manifest, and back.

The Job is the only store of a submitted workload: an annotation has the whole specification. Its
pods inherit the notebook pod's settings, so that code and data are in the same place. The Job is
created suspended and has no pods until the scheduler starts it. Pure.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.kubernetes.objects.amounts import cpu_milli, larger, smaller, times
from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    ARRAY_LABEL,
    ELASTIC_LABEL,
    GANG_LABEL,
    GPU_RESOURCE,
    GPU_TYPE_LABEL,
    GUARANTEED,
    INDEX,
    MAX_RUNTIME,
    PRIORITY,
    QUEUE_REASON,
    SAVES,
    SCHEDULER,
    WORKLOAD_LABEL,
)
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import (
    OF_MEMORY,
    RESUMED,
    SHARING,
    DeviceRequest,
    annotation_variable,
    device_variable,
    memory_variables,
)
from runai.hub_service.clusters.kubernetes.objects.job_names import job_name
from runai.hub_service.clusters.workloads.worker_environment import (
    cpu_variables,
    launcher_variables,
)
from runai.hub_service.model.records import SOURCE_PLACEHOLDER, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.state.request_shape import NODE_TYPE_LABEL
from runai.hub_service.wire.amounts import MOST_GPUS, MOST_WORKERS
from runai.hub_service.wire.errors import InvalidRequest

_BOUNDED = ("cpu", "memory", "ephemeral-storage")
"""Resources whose limits and requests a job takes from its notebook."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """The admin's limits for the pods of all jobs; default: as for notebooks."""

    limits: Mapping[str, str] = field(default_factory=dict)
    """Limits of each pod, such as `{"cpu": "8"}`, instead of its notebook's."""
    has_token: bool = False
    """True if pods get a service account token, which the API server accepts."""

    def resources(self, spec: WorkloadSpec, notebook: Mapping[str, Any]) -> dict[str, Any]:
        """Return limits and requests of a worker's container, without devices.

        A notebook's limits are multiplied by the worker's GPUs. Requests are the notebook's own,
        once: without them Kubernetes would use the limits, and a job would wait for idle CPUs.
        The job's own come first, and raise its limits.

        Raises:
            InvalidRequest: the job requests more than the admin's limits allow.
        """
        count = max(1, (spec.gpus_max or spec.gpus) // WHOLE_GPU)
        allowed, notebook_requests = (notebook.get(kind) or {} for kind in ("limits", "requests"))
        limits = {name: times(str(allowed[name]), count) for name in _BOUNDED if name in allowed}
        own = _own_requests(spec)
        if "cpu" in own and "cpu" in limits:
            limits["cpu"] = larger(limits["cpu"], own["cpu"])
        if "memory" in own:
            limits["memory"] = own["memory"]
        for name in own.keys() & self.limits.keys():
            if self.limits[name] and smaller(own[name], self.limits[name]) != own[name]:
                raise InvalidRequest(
                    f"{own[name]} of {name} for each worker are more than the limit of jobs here,"
                    f" {self.limits[name]}.",
                    hint="Ask for less, or ask an admin for a higher limit.",
                    code="over_limit",
                )
        limits |= {name: amount for name, amount in self.limits.items() if amount}
        requests = dict.fromkeys(limits, "0")
        requests |= {
            name: str(notebook_requests[name]) for name in _BOUNDED if name in notebook_requests
        } | own
        for name in limits.keys() & requests.keys():
            requests[name] = smaller(requests[name], limits[name])
        return {"limits": limits, "requests": requests}


AS_NOTEBOOKS = Confinement()

AUDIENCE = "runai-worker"
"""Audience of the workers' tokens; the API server does not accept it."""
DIRECTORY = "/run/runai-elastic"
TOKEN_FOLDER = "/run/runai-token"  # noqa: S105  a folder
TOKEN_LASTS_S = 3600
_LEFT = 143


def under_relay(command: Sequence[str]) -> list[str]:
    """Return the command that runs a worker's command under the relay."""
    return ["python", "-P", "-s", "-m", "runai.elastic.pod", "--", *command]


def messages() -> tuple[Mapping[str, str], Sequence[Any], Sequence[Any]]:
    """Return the variables, volumes and mounts for a worker's messages."""
    variables = {
        "RUNAI_ELASTIC_DIR": DIRECTORY,
        "RUNAI_WORKER_TOKEN_FILE": f"{TOKEN_FOLDER}/token",
    }
    token = {"audience": AUDIENCE, "expirationSeconds": TOKEN_LASTS_S, "path": "token"}
    volumes = [
        {"name": "runai-elastic", "emptyDir": {}},
        {"name": "runai-token", "projected": {"sources": [{"serviceAccountToken": token}]}},
    ]
    mounts = [
        {"name": "runai-elastic", "mountPath": DIRECTORY},
        {"name": "runai-token", "mountPath": TOKEN_FOLDER, "readOnly": True},
    ]
    return variables, volumes, mounts


def job_fields(container: str) -> tuple[Mapping[str, Any], Sequence[Any]]:
    """Return the Job fields for elastic workers, and the failure rules of their pods.

    With them a Job completes when its last worker ends, even if other workers never started.
    """
    left = {"containerName": container, "operator": "In", "values": [_LEFT]}
    complete = {"successPolicy": {"rules": [{"succeededCount": 1}]}}
    return complete, [{"action": "Ignore", "onExitCodes": left}]


SPEC = "runai/spec"
"""Annotation of a submitted Job: its specification as JSON."""
CHECKPOINTS = "runai/checkpoints"
"""Annotation of a submitted Job: its checkpoint directory, as its pods see it."""
PAUSED_ELEMENTS = "runai/paused-elements"
"""Annotation of an array's Job: the elements that ran before, with the times of their pauses."""
DELETED_ELEMENTS = "runai/deleted-elements"
"""Annotation of an array's Job: the indexes of deleted elements, such as `0,3-9`."""
SOURCE_FILE = "/run/runai/source.py"
MOST_SPEC_BYTES = 100_000
"""The API server allows 256 KiB of annotations; the source is in two of them."""
GANG_SERVICE = "runai-jobs"
"""The chart's headless Service, by which a gang's workers find each other."""
DELETED = "runai/deleted"
"""Condition of the pod of an array's element that its user deleted: the element ends for good."""
TIMED_OUT = "runai/timed-out"
"""Condition of a pod that ran its time out, and annotation of its Job: the indexes of such pods."""
OWN_INDEX = "$(RUNAI_ARRAY_INDEX)"
"""Kubernetes expands it in the variables of an array's pods."""
_CONTAINER = "worker"
_SPEC = TypeAdapter(WorkloadSpec)


@dataclass(frozen=True, slots=True)
class PodTemplateSource:
    """Settings of a job's pod besides its program: the notebook's, or the defaults."""

    image: str = ""
    pod: Mapping[str, Any] | None = None
    """Fields of the pod's spec, such as volumes, service account and tolerations."""
    container: Mapping[str, Any] | None = None
    """Fields of its container: mounts, security context, working directory."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """Limits and requests of that container."""
    node: str = ""
    """The only node that can mount its volumes, and the claim that requires it."""
    claim: str = ""


_OF_POD = (
    "hostUsers",
    "imagePullSecrets",
    "nodeSelector",
    "runtimeClassName",
    "securityContext",
    "serviceAccountName",
    "tolerations",
)
_OF_CONTAINER = ("envFrom", "imagePullPolicy", "securityContext", "workingDir")
_OF_ONE_POD = "kube-api-access-"
"""Name prefix of the volume that the API server adds to each pod."""


def surroundings(notebook: Object) -> PodTemplateSource:
    """Return the settings of a notebook's pod that other pods can share."""
    spec = notebook["spec"]
    main = next((c for c in spec["containers"] if c["name"] == "notebook"), spec["containers"][0])
    mounts = [m for m in main.get("volumeMounts", ()) if not m["name"].startswith(_OF_ONE_POD)]
    names = {mount["name"] for mount in mounts}
    volumes = [volume for volume in spec.get("volumes", ()) if volume["name"] in names]
    of_pod = {name: spec[name] for name in _OF_POD if name in spec}
    of_container = {name: main[name] for name in _OF_CONTAINER if name in main}
    if volumes:
        of_pod["volumes"], of_container["volumeMounts"] = volumes, mounts
    return PodTemplateSource(main["image"], of_pod, of_container, main.get("resources") or {})


def manifest(
    spec: WorkloadSpec,
    template_source: PodTemplateSource,
    *,
    name: str = "",
    api_url: str = "",
    ttl_s: int | None = None,
    bounds: Confinement = AS_NOTEBOOKS,
) -> dict[str, Any]:
    """Return the Job of a workload; Kubernetes deletes it `ttl_s` seconds after its end.

    `name` replaces the Job's usual name.

    Raises:
        InvalidRequest: the workload is not possible on Kubernetes.
    """
    name = name or job_name(spec)
    _check(spec, template_source, api_url)
    spec_json = json.dumps(asdict(spec), separators=(",", ":"))
    if len(spec_json.encode()) > MOST_SPEC_BYTES:
        raise InvalidRequest(
            f"{spec.id} is too long: {len(spec_json.encode())} bytes of program and environment.",
            hint=f"At most {MOST_SPEC_BYTES}: put the program into a file of your home directory.",
        )
    labels = {"runai/project": spec.project, WORKLOAD_LABEL: spec.name}
    labels |= {ARRAY_LABEL: spec.name} if spec.is_array else {}
    is_elastic = spec.elastic and spec.workers > 1
    more, rules = job_fields(_CONTAINER) if is_elastic else ({}, ())
    checkpoints = _checkpoints(spec, template_source)
    template = {
        "metadata": {
            "labels": {
                **labels,
                "runai/kind": "train" if spec.preemptible else "build",
                **({GANG_LABEL: "true"} if spec.workers > 1 else {}),
                **({ELASTIC_LABEL: "true"} if spec.elastic else {}),
            },
            "annotations": {
                PRIORITY: str(spec.priority),
                **({SAVES: "true"} if spec.saves else {}),
                **({GUARANTEED: str(n)} if (n := spec.guaranteed_workers) else {}),
                **({} if (part := _part(spec)) is None else part.annotations),
                **({"runai/source": spec.source} if spec.source else {}),
            },
        },
        "spec": _pod(spec, template_source, name, api_url, checkpoints, bounds),
    }
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    rules = [{"action": "Ignore", "onPodConditions": [disrupted]}, *rules]
    if spec.max_runtime is not None:
        over = {"type": TIMED_OUT, "status": "True"}
        action = "FailIndex" if spec.is_array else "FailJob"
        rules = [{"action": action, "onPodConditions": [over]}, *rules]
    size: dict[str, Any] = {"completions": spec.workers, "parallelism": spec.workers}
    size["backoffLimit"] = spec.backoff_limit
    notes = {}
    if spec.is_array:
        size = {"completions": spec.array, "parallelism": 0}
        size["backoffLimitPerIndex"] = spec.backoff_limit
        deleted = {"type": DELETED, "status": "True"}
        rules = [{"action": "FailIndex", "onPodConditions": [deleted]}, *rules]
        notes = {PAUSED_ELEMENTS: "{}", DELETED_ELEMENTS: ""}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {
                SPEC: spec_json,
                QUEUE_REASON: "submitted",
                **notes,
                **({} if spec.max_runtime is None else {MAX_RUNTIME: str(spec.max_runtime)}),
                **({CHECKPOINTS: checkpoints} if checkpoints else {}),
            },
        },
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            **size,
            # A pause is no failure, and a new pod starts only when the old one is gone.
            "podFailurePolicy": {"rules": rules},
            "podReplacementPolicy": "Failed",
            **more,
            **({} if ttl_s is None else {"ttlSecondsAfterFinished": ttl_s}),
            "template": template,
        },
    }


def read_spec(annotations: Mapping[str, str]) -> WorkloadSpec | None:
    """Return the submitted specification from a Job's annotations.

    None: it was not submitted through us, or is invalid.
    """
    try:
        stored = json.loads(annotations[SPEC])
        known = {field.name for field in fields(WorkloadSpec)}
        stored = {name: value for name, value in stored.items() if name in known}
        # Any client that may create Jobs can write anything here.
        spec: WorkloadSpec = _SPEC.validate_python({**stored, "command": tuple(stored["command"])})
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None
    else:
        is_possible = 0 <= spec.gpus <= MOST_GPUS * WHOLE_GPU and 1 <= spec.workers <= MOST_WORKERS
        is_possible = is_possible and 1 <= (spec.array or 1) <= MOST_WORKERS
        return spec if is_possible else None


def _check(spec: WorkloadSpec, template_source: PodTemplateSource, api_url: str) -> None:
    if spec.kind == "session" or spec.command is None:
        raise InvalidRequest(
            "On Kubernetes JupyterHub starts sessions.", hint="Submit a job, or start a server."
        )
    if spec.is_array and (spec.workers > 1 or spec.elastic):
        what = "elastic" if spec.elastic else f"of {spec.workers} workers"
        raise InvalidRequest(
            f"The elements of {spec.id} are {what}, and on Kubernetes an element is one pod.",
            hint="Submit such jobs one by one, or an array of jobs of one worker.",
            code="not_in_array",
        )
    if spec.elastic and spec.workers > 1 and not api_url:
        raise InvalidRequest(
            "Workers of elastic jobs would not find the service: it does not know its address.",
            hint="Ask an admin to set RUNAI_API_URL for it, or leave --elastic out.",
            code="not_elastic",
        )
    if not (spec.image or template_source.image):
        raise InvalidRequest(
            f"It is not known which image {spec.id} is to run in.",
            hint="Name one (--image), or start your notebook server first: its own is used.",
            code="no_image",
        )


def _part(spec: WorkloadSpec) -> DeviceRequest | None:
    """Return the share of a device that each worker asks for, or None.

    An elastic job of one process asks for its whole devices in this form: the next pod may get
    another number of them.
    """
    if spec.gpus_max:
        return DeviceRequest(
            milli=WHOLE_GPU, devices=spec.gpus // WHOLE_GPU, most=spec.gpus_max // WHOLE_GPU
        )
    if spec.gpu_memory_mib:
        return DeviceRequest(mib=spec.gpu_memory_mib)
    return DeviceRequest(milli=spec.gpus) if spec.gpus % WHOLE_GPU else None


def _checkpoints(spec: WorkloadSpec, template_source: PodTemplateSource) -> str:
    """Return the checkpoint directory, on the first claim that the notebook may write; or ""."""
    volumes = (template_source.pod or {}).get("volumes", ())
    claims = {
        volume["name"]
        for volume in volumes
        if "persistentVolumeClaim" in volume and not volume["persistentVolumeClaim"].get("readOnly")
    }
    for mount in (template_source.container or {}).get("volumeMounts", ()):
        if mount["name"] in claims and not mount.get("readOnly"):
            return f"{mount['mountPath'].rstrip('/')}/.runai/{_element(spec)}/checkpoints"
    return ""


def _element(spec: WorkloadSpec) -> str:
    """Return the id that a worker is told; of an array's element it has its own index."""
    return f"{spec.id}-{OWN_INDEX}" if spec.is_array else spec.id


def _pod(
    spec: WorkloadSpec,
    template_source: PodTemplateSource,
    job: str,
    api_url: str,
    checkpoints: str,
    bounds: Confinement,
) -> dict[str, Any]:
    gpus = 0 if _part(spec) is not None else spec.gpus // WHOLE_GPU
    resources = bounds.resources(spec, template_source.resources)
    if gpus:
        resources["limits"][GPU_RESOURCE] = str(gpus)
    is_elastic = spec.elastic and spec.workers > 1
    variables, volumes, mounts = messages() if is_elastic else ({}, (), ())
    command = [_argument(part) for part in spec.command or ()]
    cpu = cpu_variables(spec, cpu_milli(resources["requests"].get("cpu", "0")))
    extra = {**variables, **({"RUNAI_CHECKPOINT_DIR": checkpoints} if checkpoints else {})}
    container: dict[str, Any] = {
        "name": _CONTAINER,
        **(template_source.container or {}),
        "image": spec.image or template_source.image,
        "command": under_relay(command) if is_elastic else command,
        "env": _environment(spec, job, api_url, cpu, extra),
        "resources": {kind: amounts for kind, amounts in resources.items() if amounts},
    }
    if spec.workdir:
        container["workingDir"] = spec.workdir
    pod: dict[str, Any] = {
        "enableServiceLinks": False,
        **(template_source.pod or {}),
        "automountServiceAccountToken": bounds.has_token,
        "schedulerName": SCHEDULER,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": spec.grace_seconds,
        "containers": [container],
    }
    if volumes:
        pod["volumes"] = [*pod.get("volumes", ()), *volumes]
        container["volumeMounts"] = [*container.get("volumeMounts", ()), *mounts]
    if spec.workers > 1:
        pod["subdomain"] = GANG_SERVICE
    if spec.source:
        source = {"fieldRef": {"fieldPath": "metadata.annotations['runai/source']"}}
        item = {"path": SOURCE_FILE.rpartition("/")[2], **source}
        volume = {"name": "runai-source", "downwardAPI": {"items": [item]}}
        mount = {"name": "runai-source", "mountPath": SOURCE_FILE.rpartition("/")[0]}
        pod["volumes"] = [*pod.get("volumes", ()), volume]
        container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]
    if spec.node_type:
        pod["nodeSelector"] = {**pod.get("nodeSelector", {}), NODE_TYPE_LABEL: spec.node_type}
    if spec.gpu_types:
        is_of = {"key": GPU_TYPE_LABEL, "operator": "In", "values": list(spec.gpu_types)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [is_of]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        pod["affinity"] = {"nodeAffinity": required}
    return pod


def _argument(text: str) -> str:
    """Escape an argument so that Kubernetes does not expand `$(NAME)` in it."""
    return SOURCE_FILE if text == SOURCE_PLACEHOLDER else _literal(text)


def _literal(text: str) -> str:
    """Escape text so that Kubernetes does not expand variables.

    >>> _literal("echo $(HOME) $$")
    'echo $$(HOME) $$$$'
    """
    return text.replace("$", "$$")


def _own(text: str) -> str:
    """Escape text of ours, in which an array's own index is expanded."""
    return _literal(text).replace(_literal(OWN_INDEX), OWN_INDEX)


def _environment(
    spec: WorkloadSpec,
    job: str,
    api_url: str,
    defaults: Mapping[str, str],
    extra: Mapping[str, str],
) -> Sequence[Mapping[str, Any]]:
    """Return a worker's variables; the user's win over conveniences, never over identity."""
    index = {"fieldPath": f"metadata.annotations['{INDEX}']"}
    fixed = {
        "RUNAI_WORKLOAD": _element(spec),
        "RUNAI_PROJECT": spec.project,
        "RUNAI_KIND": spec.kind,
        "RUNAI_GPU_FRACTION": str(Decimal(min(spec.gpus, WHOLE_GPU)) / WHOLE_GPU),
        **({"RUNAI_API_URL": api_url} if api_url else {}),
        **({"RUNAI_INDEX": "0"} if spec.is_array else {}),
        **extra,
    }
    is_gang = spec.workers > 1 and not spec.elastic  # elastic workers get this from their targets
    part = _part(spec)
    # A GPU image shows all of the node's devices to a container that asked for none.
    if not spec.gpus and part is None:
        fixed |= {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}
    of_pod = "RUNAI_ARRAY_INDEX" if spec.is_array else "RUNAI_INDEX"
    by_index = [of_pod]
    if is_gang:
        # The Job controller sets each pod's hostname by its index.
        fixed |= {"WORLD_SIZE": str(spec.workers), "LOCAL_RANK": "0", "MASTER_PORT": "29500"}
        fixed |= {"MASTER_ADDR": f"{job}-0.{GANG_SERVICE}"}
        launchers = launcher_variables(spec)
        by_index += ["RANK", *(name for name, same in launchers.items() if same == "RANK")]
        fixed |= {name: fixed[same] for name, same in launchers.items() if same in fixed}
    own = {"PYTHONUNBUFFERED": "1", **({} if part is None else SHARING), **defaults, **spec.env}
    worker = f"{_element(spec)}-0" if spec.is_array else f"{spec.id}-$(RUNAI_INDEX)"
    set_by_binding = {"RUNAI_WORKER", "RUNAI_RESUMED", "NVIDIA_VISIBLE_DEVICES", *OF_MEMORY}
    reserved = {*fixed, *by_index, *set_by_binding}
    return [
        *({"name": name, "valueFrom": {"fieldRef": index}} for name in by_index),
        *([] if part is None else [device_variable(), *memory_variables()]),
        annotation_variable("RUNAI_RESUMED", RESUMED),
        {"name": "RUNAI_WORKER", "value": worker},
        *({"name": n, "value": _literal(v)} for n, v in own.items() if n not in reserved),
        *({"name": n, "value": _own(v)} for n, v in fixed.items()),
    ]


def _own_requests(spec: WorkloadSpec) -> dict[str, str]:
    """Return the CPU and memory that each worker requests, as quantities."""
    cpu = {"cpu": f"{spec.cpu_milli}m"} if spec.cpu_milli else {}
    return cpu | ({"memory": f"{spec.memory_mib}Mi"} if spec.memory_mib else {})
