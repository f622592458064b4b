"""Pods, nodes and namespaces as frozen data, with the fields that scheduling needs.

Objects compare by value, so that a heartbeat or an image pull is no change. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runai.hub_service.clusters.kubernetes.client.api import Object
from runai.hub_service.clusters.kubernetes.objects.amounts import (
    cpu_milli,
    memory_mib,
    requested,
    when,
    whole,
)
from runai.hub_service.clusters.kubernetes.objects.container_starts import obstacle
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import (
    BoundDevices,
    DeviceRequest,
    blindness,
    read_grant,
    read_part,
)
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import (
    Demands,
    Taint,
    read_demands,
    read_stock,
    read_taints,
    unkept,
)
from runai.hub_service.scheduler.model.json_codec import MAX_GPUS
from runai.hub_service.scheduler.model.quantity import MAX_DEVICES, WHOLE_GPU, MilliGpu

FINALIZER = "batch.kubernetes.io/job-tracking"
FINALIZER_REMOVED = "runai/leaving"
"""Annotation: we removed the finalizer because the pod is about to be evicted."""

Counting = Literal["", "counted", "left out"]
"""State of the finalizer by which a Job controller counts a pod's end.

"": never set; "counted": set; "left out": removed by us before the pod's eviction.
"""


def read_counting(metadata: Object) -> Counting:
    """Return whether a Job controller counts how a pod ends."""
    if FINALIZER in metadata.get("finalizers", ()):
        return "counted"
    annotations: Mapping[str, str] = metadata.get("annotations", {})
    return "left out" if FINALIZER_REMOVED in annotations else ""


def remove_finalizer_patch(uid: str) -> dict[str, Any]:
    """Return the strategic merge patch that excludes a pod's end from its Job's count."""
    taken = {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}
    return {"metadata": {"uid": uid, "annotations": {FINALIZER_REMOVED: "1"}, **taken}}


def restore_finalizer_patch(uid: str) -> dict[str, Any]:
    """Return the patch that reverts `remove_finalizer_patch`: the pod stays after all."""
    annotations = {FINALIZER_REMOVED: None}
    return {"metadata": {"uid": uid, "annotations": annotations, "finalizers": [FINALIZER]}}


SCHEDULER = "runai-scheduler"
GPU_RESOURCE = "nvidia.com/gpu"
GPU_TYPE_LABEL = "nvidia.com/gpu.product"
GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"  # MiB, by NVIDIA's feature discovery
PROJECT_LABELS = ("runai/project", "project", "runai/queue", "kai.scheduler/queue")
KIND_LABEL = "runai/kind"
GANG_LABEL = "runai/gang"
ARRAY_LABEL = "runai/array"
"""Label of an array's Job and its pods: the array's name."""
ELASTIC_LABEL = "elastic"
"""Label of the original Run:AI."""
INDEX = "batch.kubernetes.io/job-completion-index"
QUEUE_REASON = "runai/held"
"""Annotation: the scheduler keeps the Job suspended; the value is why it waits."""
KILLED = "runai/killed"
"""Annotation of a Job: when a kubelet last killed a pod of it at the end of its grace period."""
PRIORITY = "runai/priority"
MAX_RUNTIME = "runai/max-runtime"
"""Annotation of a Job or a pod: its time limit in seconds of running."""
SAVES = "runai/saves"
"""Annotation of a Job or pod: "true" if it saves its work when it is stopped."""
GUARANTEED = "runai/guaranteed-workers"
"""Annotation of an elastic Job or its pods: its workers that no other project takes."""
PYTORCH_JOB = "PyTorchJob"
"""Kind of Kubeflow."""
REPLICA_INDEX = "training.kubeflow.org/replica-index"
ROLE = "training.kubeflow.org/replica-type"
"""Labels by which Kubeflow's operator distinguishes the pods of a PyTorchJob."""
RESERVATIONS = "runai-reservation"
"""Namespace of the reservation pods; only the scheduler may create pods in it."""
RESERVED_DEVICE = "run.ai/reserve_for_gpu_index"
"""Annotation of a reservation pod: the UUID of its device (name from KAI and fake-gpu-operator)."""
RESERVED_MIB = "runai/gpu-memory-mib"
"""Annotation of a reservation pod: the memory of its device in MiB."""
# Annotations of KubeSpawner, unescaped.
USER = "hub.jupyter.org/username"
SERVER = "hub.jupyter.org/servername"
JOB_KINDS = frozenset({"Job", PYTORCH_JOB})
"""Kinds that create the pods of trainings, and report when all exist."""
SIGKILLED = 137
CLOCKS_DIFFER_S = 2.0
"""Tolerance between a node's clock and the API server's, both in whole seconds."""
_FINISHED = frozenset({"Succeeded", "Failed"})
WORKLOAD_LABEL = "runai/workload"
"""Label of a submitted Job and its pods: the workload's name."""
_NOT_RESIZED = (
    "It keeps the GPUs that it asks for: nobody can change what a kubelet gave to a pod."
    " Submit it with runai submit --elastic, or ask by gpu-fraction 1 and runai/max-gpus."
)
PRIORITIES = {"train": 50, "build": 100, "inference": 125}

PodKind = Literal["train", "build", "inference"]


@dataclass(frozen=True, slots=True)
class Owner:
    """The controller of a pod, such as its Job."""

    kind: str
    name: str
    uid: str

    @property
    def is_job(self) -> bool:
        """Return True if the owner recreates a deleted pod."""
        return self.kind in JOB_KINDS


@dataclass(frozen=True, slots=True)
class Pod:
    """One worker, of any scheduler. Times in Unix seconds."""

    uid: str
    namespace: str
    name: str
    created: float
    scheduler: str
    project: str
    kind: PodKind
    priority: int
    gpus: int
    cpu_milli: int
    memory_mib: int
    demands: Demands
    owner: Owner | None = None
    is_gang: bool = False
    """True if the pod has the gang label; pods of an Indexed Job need none."""
    is_elastic: bool = False
    """True if the pod has the elastic label."""
    saves: bool = False
    """True if the pod's annotation says that it saves its work when it is stopped."""
    guaranteed: int | None = None
    """Guaranteed workers of its elastic Job, as its annotation says."""
    node: str = ""
    is_finished: bool = False
    is_gated: bool = False
    deleted: float | None = None
    """Latest time at which it is gone; None: not being deleted."""
    bound: float | None = None
    sentence: str = field(default="", compare=False)
    """Why it waits, as last written by us."""
    unsupported: str = ""
    """Why this scheduler cannot run it, as a sentence."""
    remark: str = ""
    """Unsupported wish without which it can run, as a sentence; sent at its start."""
    is_up: bool = False
    """True if its containers run."""
    exit_code: int | None = None
    is_killed: bool = False
    """True if it was deleted, and its kubelet killed it at the end of its grace period."""
    user: str = ""
    """The owner, if it is a notebook server."""
    server: str = ""
    index: int | None = None
    """Index in an Indexed Job; for a PyTorchJob, set by `adopted`."""
    role: str = ""
    """Role in a PyTorchJob: master or worker."""
    worker: str = ""
    """Worker name in the core; "" means `key`."""
    seat: str = ""
    """Place of the worker: its next pod has the same. "" means the pod's own UID."""
    is_made: bool = True
    """False for a worker without a pod: its Job must still create one."""
    device_request: DeviceRequest | None = None
    """Requested share of a device, instead of `gpus`."""
    grant: BoundDevices | None = None
    """Device shares it was bound to, if it asked for a share."""
    is_blind: str = ""
    """Why it would not see its share.

    It counts only for created pods, since admission may fix a template's.
    """
    device: str = ""
    """UUID of the device of a reservation pod; "" if not reported yet."""
    device_mib: int = 0
    """Memory of that device in MiB; 0 if not reported yet."""
    why: str = ""
    """The kubelet's reason for its end."""
    claims: tuple[str, ...] = ()
    """Names of the claims of its volumes."""
    address: str = ""
    """Its IP address; "" before it has one."""
    counting: Counting = ""
    array: str = ""
    """Name of the job array to which it belongs."""
    obstacle: str = ""
    """Why its containers do not run though it is bound, as a clause."""
    ended: float | None = None
    max_runtime: int | None = None
    """Its time limit in seconds, as its annotation says."""

    @property
    def key(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def called(self) -> str:
        """Return the worker's name in the core."""
        return self.worker or self.key

    @property
    def place(self) -> str:
        """Return the key under which devices are reserved for the worker."""
        return self.seat or self.uid

    @property
    def is_reservation(self) -> bool:
        """Return True if it is a reservation pod."""
        return self.namespace == RESERVATIONS and self.scheduler == SCHEDULER

    def milli_gpus(self, device_mib: int = 0) -> MilliGpu:
        """Return its whole request in milli-GPU, for devices of that size."""
        if self.device_request is not None:
            return self.device_request.milli_of(device_mib)
        return MilliGpu(self.gpus * WHOLE_GPU)

    @property
    def may_be_nominated(self) -> bool:
        """Return True if devices may be reserved for it.

        It waits, or will restart on other devices.
        """
        return not self.node or (self.deleted is not None and self.may_be_resized)

    @property
    def may_be_resized(self) -> bool:
        """Return True if its successor may get more or fewer whole devices."""
        return self.device_request is not None and self.device_request.most > 0

    @property
    def uses_node(self) -> bool:
        """Return True if it uses resources of a node."""
        return bool(self.node) and not self.is_finished


@dataclass(frozen=True, slots=True)
class KubeNode:
    """Capacity, GPU type, labels and taints of one Kubernetes node."""

    name: str
    gpus: int
    cpu_milli: int
    memory_mib: int
    gpu_type: str
    gpu_memory_mib: int
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    is_open: bool
    """True if Ready and not cordoned."""
    stock: Mapping[str, int] = field(default_factory=dict)
    """Extended resources besides GPUs: allocatable, or what is left."""
    gpu_capacity: int = 0
    """GPUs that it has, as its kubelet counts them; `gpus` are those that it offers."""

    @property
    def most_gpus(self) -> int:
        """Return the GPUs that it has, offered or not."""
        return max(self.gpus, self.gpu_capacity)


def read_pod(found: Object) -> Pod:
    """Parse a pod."""
    metadata, spec, status = found["metadata"], found["spec"], found.get("status", {})
    labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {})
    owner = _owner(metadata)
    scheduled = condition(status, "PodScheduled")
    is_bound = scheduled.get("status") == "True"
    kind = _kind(labels, spec, owner)
    deleted = metadata.get("deletionTimestamp")
    gpus = min(max(0, requested(spec, GPU_RESOURCE, whole)), MAX_GPUS)
    device_request, wrong = read_part(annotations, gpus)
    node = spec.get("nodeName", "")
    is_elastic = labels.get(ELASTIC_LABEL) == "true"
    claims = _claims(metadata["name"], spec)
    return Pod(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        created=when(metadata["creationTimestamp"]),
        scheduler=spec.get("schedulerName", ""),
        project=project_label(labels),
        kind=kind,
        priority=_priority(spec, annotations, kind),
        gpus=gpus,
        cpu_milli=requested(spec, "cpu", cpu_milli),
        memory_mib=requested(spec, "memory", memory_mib),
        demands=read_demands(spec),
        owner=owner,
        is_gang=labels.get(GANG_LABEL) == "true",
        is_elastic=is_elastic,
        saves=annotations.get(SAVES) == "true",
        guaranteed=figure(annotations.get(GUARANTEED, "")),
        node=node,
        is_finished=status.get("phase") in _FINISHED,
        is_gated=bool(spec.get("schedulingGates")),
        deleted=None if deleted is None else when(deleted),
        bound=when(scheduled["lastTransitionTime"]) if is_bound else None,
        sentence="" if is_bound else scheduled.get("message", ""),
        unsupported=_unsupported(spec, wrong or _half_a_gang(labels, owner), kind, owner),
        remark=_NOT_RESIZED if is_elastic and not _is_resized(labels, device_request) else "",
        is_up=status.get("phase") == "Running",
        exit_code=_exit_code(status),
        is_killed=_is_killed(metadata, spec, status),
        user=annotations.get(USER, ""),
        server=annotations.get(SERVER, ""),
        index=figure(annotations.get(INDEX) or labels.get(REPLICA_INDEX, "")),
        role=labels.get(ROLE, ""),
        device_request=device_request,
        grant=read_grant(annotations) if node and device_request is not None else None,
        is_blind="" if device_request is None else blindness(spec),
        device=annotations.get(RESERVED_DEVICE, ""),
        device_mib=figure(annotations.get(RESERVED_MIB, "")) or 0,
        why=": ".join(filter(None, (status.get("reason", ""), status.get("message", "")))),
        claims=claims,
        address=status.get("podIP", ""),
        counting=read_counting(metadata),
        array=labels.get(ARRAY_LABEL, ""),
        obstacle=obstacle(status, claims) if node else "",
        ended=_end(status),
        max_runtime=figure(annotations.get(MAX_RUNTIME, "")) or None,
    )


def read_node(found: Object) -> KubeNode:
    """Parse a node."""
    metadata, spec, status = found["metadata"], found.get("spec", {}), found.get("status", {})
    labels, has = metadata.get("labels", {}), status.get("allocatable", {})
    memory = labels.get(GPU_MEMORY_LABEL, "")
    is_ready = condition(status, "Ready").get("status") == "True"
    return KubeNode(
        name=metadata["name"],
        gpus=_devices(has),
        cpu_milli=cpu_milli(has.get("cpu", "0")),
        memory_mib=memory_mib(has.get("memory", "0")),
        gpu_type=labels.get(GPU_TYPE_LABEL, ""),
        gpu_memory_mib=figure(memory) or 0,
        labels=labels,
        taints=read_taints(spec),
        is_open=is_ready and not spec.get("unschedulable", False),
        stock=read_stock(has),
        gpu_capacity=_devices(status.get("capacity", {})),
    )


def _devices(amounts: Object) -> int:
    # Each device gets a number, and any client that may write node status may set any count.
    return min(max(0, whole(amounts.get(GPU_RESOURCE, "0"))), MAX_DEVICES)


def project_label(labels: Mapping[str, str]) -> str:
    """Return the project in the labels, by any of its spellings; else ""."""
    return next((labels[label] for label in PROJECT_LABELS if labels.get(label)), "")


def _is_resized(labels: Mapping[str, str], device_request: DeviceRequest | None) -> bool:
    return WORKLOAD_LABEL in labels or (device_request is not None and device_request.most > 0)


def _claims(pod: str, spec: Object) -> tuple[str, ...]:
    """Return the names of a pod's claims; ephemeral ones are named after the pod."""
    volumes = spec.get("volumes", ())
    named = (
        v["persistentVolumeClaim"]["claimName"] for v in volumes if "persistentVolumeClaim" in v
    )
    own = (f"{pod}-{volume['name']}" for volume in volumes if "ephemeral" in volume)
    return (*named, *own)


def _owner(metadata: Object) -> Owner | None:
    for reference in metadata.get("ownerReferences", ()):
        if reference.get("controller"):
            return Owner(reference["kind"], reference["name"], reference["uid"])
    return None


def _kind(labels: Mapping[str, str], spec: Object, owner: Owner | None) -> PodKind:
    """Return the kind from label or PriorityClass; else train for a Job's pod, or build."""
    for declared in (labels.get(KIND_LABEL), spec.get("priorityClassName")):
        match declared:
            case "train" | "build" | "inference":
                return declared
    return "train" if owner is not None and owner.is_job else "build"


def _priority(spec: Object, annotations: Mapping[str, str], kind: PodKind) -> int:
    """Return the priority from the annotation, the PriorityClass, or the kind's default."""
    declared = figure(annotations.get(PRIORITY, ""))
    if declared is not None:
        return declared
    # The API server writes 0 to a pod that names no class.
    own: int | None = spec.get("priority")
    if own is None or (own == 0 and not spec.get("priorityClassName")):
        return PRIORITIES[kind]
    return own


MOST_DIGITS = 10


def figure(text: str) -> int | None:
    """Parse a non-negative integer; None: it is none, or has more than 10 digits."""
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None


def _exit_code(status: Object) -> int | None:
    """Return the exit code of a pod: the first that is not 0 counts."""
    ended = [
        state["terminated"]["exitCode"]
        for container in status.get("containerStatuses", ())
        if "terminated" in (state := container.get("state", {}))
    ]
    return next((code for code in ended if code), 0 if ended else None)


def _is_killed(metadata: Object, spec: Object, status: Object) -> bool:
    """Return True if a container of a deleted pod was killed at the end of the grace period.

    A deletion's time is that of its request and the grace period, which the kubelet's own deletion
    sets to 0.
    """
    if "deletionTimestamp" not in metadata:
        return False
    given = int(metadata.get("deletionGracePeriodSeconds") or 0)
    grace = given or int(spec.get("terminationGracePeriodSeconds", 30))
    over = when(metadata["deletionTimestamp"]) - given + grace - CLOCKS_DIFFER_S
    return any(
        end.get("exitCode") == SIGKILLED
        and end.get("reason") != "OOMKilled"
        and when(end.get("finishedAt") or metadata["creationTimestamp"]) >= over
        for container in status.get("containerStatuses", ())
        if (end := container.get("state", {}).get("terminated", {}))
    )


def _end(status: Object) -> float | None:
    """Return the time at which the last of a pod's containers ended."""
    ends = [
        when(at)
        for container in status.get("containerStatuses", ())
        if (at := container.get("state", {}).get("terminated", {}).get("finishedAt"))
    ]
    return max(ends, default=None)


def condition(status: Object, kind: str) -> Object:
    """Return a condition of a status; {} without it."""
    found = (c for c in status.get("conditions", ()) if c["type"] == kind)
    return next(found, {})


def _half_a_gang(labels: Mapping[str, str], owner: Owner | None) -> str:
    """Return why a gang needs a Job: without its size, pods would start alone."""
    if labels.get(GANG_LABEL) != "true" or (owner is not None and owner.is_job):
        return ""
    return f"{GANG_LABEL} is for the pods of a Job, which says how many start together: use a Job"


def _unsupported(spec: Object, wrong: str, kind: PodKind, owner: Owner | None) -> str:
    if kind == "train" and owner is None:
        return "training pods must belong to a Job, which makes them again after a pause"
    return wrong or unkept(spec)
