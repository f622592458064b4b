"""Convert a submission to stored specs: defaults, limits and error messages.

Pure. It refuses requests that are contradictory or can never run; requests that have to wait are
accepted.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

from runai.hub_service.model import time_limits
from runai.hub_service.model.device import NodeCapacity
from runai.hub_service.model.gpu_types import largest_entry, resolve_types
from runai.hub_service.model.records import Code, ProjectSpec, WorkloadSpec
from runai.hub_service.processes.program_files import MISSING
from runai.hub_service.scheduler.model.quantity import (
    WHOLE_GPU,
    MilliGpu,
    count_text,
    fraction_of_memory,
    gpu_text,
)
from runai.hub_service.wire.errors import InvalidRequest, NotFound
from runai.hub_service.wire.workload_request import Executor, SubmitRequest, request_fields

SERVER_PREFIX = "lab-"
"""Beginning of the names of notebook servers' sessions, which no submission can take."""


def elastic_gpus(request: SubmitRequest) -> MilliGpu:
    """Return the GPUs of an elastic job's workers: 1, or a single worker's request.

    Raises:
        InvalidRequest: the request cannot be elastic.
    """
    if request.kind == "session":
        raise InvalidRequest(
            "A session cannot be elastic: it keeps what it has.",
            hint="Submit a job, or leave --elastic out.",
            code="not_elastic",
        )
    if request.preemptible is False:
        raise InvalidRequest(
            "An elastic job cannot keep all of its GPUs: it gives back those beyond its least.",
            hint="Leave out that it is never preempted, or --elastic.",
            code="not_elastic",
        )
    if request.gpu_memory_mib:
        raise InvalidRequest(
            f"An elastic job takes whole GPUs, not {request.gpu_memory_mib} MiB of one.",
            hint="Give --gpus or --workers instead of --gpu-memory.",
            code="not_elastic",
        )
    milli = WHOLE_GPU if request.gpus is None else MilliGpu(int(request.gpus * WHOLE_GPU))
    if milli < WHOLE_GPU or milli % WHOLE_GPU:
        raise InvalidRequest(
            f"An elastic job takes whole GPUs, not {gpu_text(milli)}.",
            hint="Ask for --gpus 1 or more, or leave --elastic out.",
            code="not_elastic",
        )
    if request.workers > 1 and milli != WHOLE_GPU:
        raise InvalidRequest(
            f"Each worker of an elastic job has 1 GPU, not {gpu_text(milli)}.",
            hint=f"Give --workers {request.workers} alone, or --gpus {milli // WHOLE_GPU} for one"
            " process of several GPUs.",
            code="not_elastic",
        )
    return milli


_DECIDED = frozenset(
    {"project", "name", "command", "gpus", "gpu_memory_mib", "memory_mib", "min_workers"}
    | {"preemptible", "priority", "max_runtime", "image", "code", "umask"}
)
"""Fields that a request and a specification have under one name, with different values."""
_COPIED = [
    each.name
    for each in fields(WorkloadSpec)
    if each.name in SubmitRequest.model_fields and each.name not in _DECIDED
]
CPU_MILLI, MEMORY_MIB = 1000, 1024
"""Request of a worker without a GPU that names none: nothing else would make it wait."""
MIN_CPU_MILLI, MIN_MEMORY_MIB = 100, 64
"""Request of a worker without a whole GPU that names less: thousands would start at once."""
_EXECUTOR_NAMES: Mapping[Executor, str] = {"kubernetes": "Kubernetes", "local": "one machine"}
_EXECUTOR_JOBS: Mapping[Executor, str] = {
    "kubernetes": "run in pods",
    "local": "run as programs of this machine",
}
PRIORITIES = {"low": 25, "normal": 50, "high": 75}
SESSION_PRIORITY = 100
LONGEST_NAME = 38
FEW = 64
"""Numbers tried one by one for a generated name; a search of thousands would dominate."""


@dataclass(frozen=True, slots=True)
class SubmissionContext:
    """Context of a submission: projects, taken names, devices."""

    projects: Mapping[str, ProjectSpec]
    taken: Container[str]
    """Ids of all workloads."""
    largest_device_mib: int
    most_devices: int = 0
    """Devices of the largest node."""
    executor: Executor = "local"
    """What starts the jobs here."""
    gpu_types: Collection[str] = ()
    """Types of its devices."""
    default_cpu: bool = True
    """True if a worker without a whole GPU requests CPU and memory although it names none."""
    largest: NodeCapacity | None = None
    """The most CPU and memory that one node has; None: requests are not compared with nodes."""
    largest_by_type: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Devices of the largest node of each type, and the memory of its largest device."""


class _WorkerRequest(NamedTuple):
    """Resources that each worker requests of its node, at least."""

    gpus: MilliGpu
    gpu_memory_mib: int
    gpu_types: Sequence[str]
    """Types that it accepts; empty: any."""
    cpu_milli: int
    memory_mib: int


def find_project(
    name: str, projects: Mapping[str, ProjectSpec], yours: Sequence[str]
) -> ProjectSpec:
    """Return the project of that name.

    Raises:
        NotFound: there is none; the hint lists the caller's projects.
    """
    if name not in projects:
        raise NotFound(f"There is no project {name}.", hint=_yours(yours), code="unknown_project")
    return projects[name]


def choose_project(
    request: SubmitRequest, projects: Mapping[str, ProjectSpec], yours: Sequence[str]
) -> ProjectSpec:
    """Return the requested project, or the caller's only one.

    Raises:
        NotFound: the named one does not exist.
        InvalidRequest: none is named and there are none or several to choose from.
    """
    if request.project is not None:
        return find_project(request.project, projects, yours)
    if len(yours) == 1:
        return projects[yours[0]]
    if not yours:
        raise InvalidRequest(
            "You are not a member of any project.",
            hint="Ask a project's admin to add you.",
            code="no_project",
        )
    raise InvalidRequest(
        f"You are in {len(yours)} projects: {', '.join(yours)}.",
        hint="Name one (--project), or choose your default: runai project use NAME.",
        code="which_project",
    )


def check_limit(
    requested: MilliGpu, project: ProjectSpec, projects: Mapping[str, ProjectSpec]
) -> None:
    """Raise InvalidRequest if a project, or one of its ancestors, may never hold as much.

    Raises:
        InvalidRequest: it exceeds a limit.
    """
    above: ProjectSpec | None = project
    while above is not None:
        if above.limit is not None and requested > above.limit:
            raise InvalidRequest(
                f"{count_text(requested)} are more than project {above.name} may ever hold:"
                f" its limit is {gpu_text(above.limit)}.",
                hint="Ask for fewer, or ask an admin for a higher limit.",
                code="over_limit",
            )
        above = projects.get(above.parent) if above.parent else None


def build_quota(project: ProjectSpec) -> MilliGpu | None:
    """Return the quota of its sessions: the build quota, never above the quota; None: unlimited."""
    if project.build_quota is None or project.quota is None:
        return project.quota if project.build_quota is None else project.build_quota
    return min(project.build_quota, project.quota)


def workload_spec(
    request: SubmitRequest,
    *,
    user: str,
    project: ProjectSpec,
    site: SubmissionContext,
    key: str = "",
) -> WorkloadSpec:
    """Return the specification to store: of a workload, or of a whole array.

    Raises:
        InvalidRequest: the request is contradictory, or can never run in this project.
    """
    _check_shape(request)
    _check_executor(request, site.executor)
    gpus = elastic_gpus(request) if request.elastic else _gpus(request)
    preemptible = request.kind == "job" if request.preemptible is None else request.preemptible
    default_min = 1 if request.elastic else request.workers
    min_workers = default_min if request.min_workers is None else request.min_workers
    _check_guarantee(request, min_workers)
    gpus_max = MilliGpu(0)
    if request.elastic and request.workers == 1:
        gpus_max = MilliGpu(max(gpus, site.most_devices * WHOLE_GPU))
    gpu_types: tuple[str, ...] = ()
    if request.gpu_type:
        _check_requests_gpus(request)
        gpu_types = resolve_types(request.gpu_type, site.gpu_types)
    needed = WHOLE_GPU if request.elastic else gpus
    _check_fits_project(request, needed, min_workers, preemptible, gpu_types, project, site)
    command = None if request.command is None else tuple(request.command)
    cpu, memory = _beside_gpus(request, site)
    if site.largest is not None:
        worker = _WorkerRequest(needed, request.gpu_memory_mib or 0, gpu_types, cpu, memory)
        _check_gpus_fit_node(worker, site)
        _check_cpu_and_memory_fit_node(worker, site.largest)
    spec = WorkloadSpec(
        project=project.name,
        name=_name(request, project.name, site.taken),
        user=user,
        command=command,
        gpus=gpus,
        gpu_memory_mib=request.gpu_memory_mib or 0,
        cpu_milli=cpu,
        cpu_asked=bool(request.cpu),
        memory_mib=memory,
        memory_asked=bool(request.memory_mib),
        min_workers=min_workers,
        gpus_max=gpus_max,
        preemptible=preemptible,
        priority=_priority(request),
        max_runtime=time_limits.limit_of(
            request.max_runtime, request.expected_runtime, request.kind, project
        ),
        image=request.image or "",
        code=_code(request),
        gpu_types=gpu_types,
        key=key,
        **{name: getattr(request, name) for name in _COPIED},
    )
    return with_min_resources(spec) if site.default_cpu else spec


def with_min_resources(spec: WorkloadSpec) -> WorkloadSpec:
    """Return the specification with the CPU and memory that a worker requests at least.

    Whole GPUs bound the number of workers by themselves.
    """
    if spec.gpus >= WHOLE_GPU:
        return spec
    cpu, memory = max(spec.cpu_milli, MIN_CPU_MILLI), max(spec.memory_mib, MIN_MEMORY_MIB)
    return replace(spec, cpu_milli=cpu, memory_mib=memory)


def _check_shape(request: SubmitRequest) -> None:
    if request.command is None and request.kind == "job":
        raise InvalidRequest(
            "A job needs a command.", hint="For example: runai submit exp1 -- python train.py."
        )
    if request.gpus and request.gpu_memory_mib:
        raise InvalidRequest(
            "Both GPUs and GPU memory are given.", hint="Give one of them: --gpus or --gpu-memory."
        )
    if request.min_workers is not None and request.min_workers > request.workers:
        raise InvalidRequest(
            f"--min-workers {request.min_workers} is more than --workers {request.workers}.",
            hint="Ask for more --workers, or lower --min-workers.",
        )
    if request.kind == "session" and (request.workers > 1 or request.array is not None):
        raise InvalidRequest(
            "A session is one process.", hint="Submit a job for several workers or an array."
        )
    if request.kind == "session" and request.saves:
        raise InvalidRequest(
            "A session cannot save its work when it is stopped: it ends.",
            hint="Submit a job, or leave --saves out.",
            code="not_saving",
        )


def _check_guarantee(request: SubmitRequest, min_workers: int) -> None:
    guaranteed = request.guaranteed_workers
    if guaranteed is None:
        return
    if not request.elastic:
        raise InvalidRequest(
            f"{guaranteed} guaranteed workers are asked for, and the job is not elastic.",
            hint="Give --elastic, or leave --guaranteed-workers out.",
            code="not_elastic",
        )
    if not min_workers <= guaranteed <= request.workers:
        raise InvalidRequest(
            f"{guaranteed} guaranteed workers are not between the least ({min_workers}) and all"
            f" ({request.workers}).",
            hint=f"Give --guaranteed-workers from {min_workers} to {request.workers}.",
        )


def _code(request: SubmitRequest) -> Code | None:
    if request.code is None:
        return None
    files = {name: digest for name, digest in request.code.files.items() if digest != MISSING}
    return Code(files, request.code.commit)


def _check_requests_gpus(request: SubmitRequest) -> None:
    if not request.gpus and not request.gpu_memory_mib:
        raise InvalidRequest(
            f"A GPU's type is given ({request.gpu_type}), and no GPU is asked for.",
            hint="Say how many: --gpus 1, or --gpu-memory 8G.",
        )


def _check_executor(request: SubmitRequest, executor: Executor) -> None:
    """Raise InvalidRequest if a field is set that this executor cannot fulfil."""
    for each in request_fields():
        option = each.option
        if option.only_on in {None, executor} or getattr(request, each.name) == each.default:
            continue
        raise InvalidRequest(
            f"{option.flags[-1]} is for {_EXECUTOR_NAMES[option.only_on]}; jobs here"
            f" {_EXECUTOR_JOBS[executor]}.",
            hint=option.elsewhere,
            code="other_executor",
        )
    if request.image is not None and request.kind == "session":
        raise InvalidRequest(
            "The image of a session is chosen where servers are started.",
            hint="Leave the image out (--image), or choose it in JupyterHub.",
        )


def _gpus(request: SubmitRequest) -> MilliGpu:
    milli = MilliGpu(int((request.gpus or 0) * WHOLE_GPU))
    if milli > WHOLE_GPU and milli % WHOLE_GPU:
        raise InvalidRequest(
            f"{gpu_text(milli)} GPUs are not possible: above one GPU only whole ones are.",
            hint=f"Ask for {milli // WHOLE_GPU} or {milli // WHOLE_GPU + 1}, or for less than 1.",
            code="not_whole",
        )
    return milli


def _beside_gpus(request: SubmitRequest, site: SubmissionContext) -> tuple[int, int]:
    """Return the CPU and memory that each worker requests.

    In Kubernetes' pods a worker without a GPU requests what its user's notebook does.
    """
    has_default = (
        not (request.gpus or request.gpu_memory_mib or request.elastic) and site.default_cpu
    )
    cpu, memory = (CPU_MILLI, MEMORY_MIB) if has_default else (0, 0)
    if request.cpu is not None:
        cpu = int(request.cpu * 1000)
    return cpu, memory if request.memory_mib is None else request.memory_mib


def _check_gpus_fit_node(worker: _WorkerRequest, site: SubmissionContext) -> None:
    """Raise InvalidRequest if no node of the accepted types has the GPUs, or their memory."""
    most_devices, device_mib = site.most_devices, site.largest_device_mib
    of_types = or_other_type = ""
    if worker.gpu_types:
        sizes = [site.largest_by_type.get(gpu_type, (0, 0)) for gpu_type in worker.gpu_types]
        most_devices, device_mib = max(many for many, _ in sizes), max(mib for _, mib in sizes)
        of_types = f" of type {' or '.join(worker.gpu_types)}"
        or_other_type = ", or for another --gpu-type"
    if worker.gpus > most_devices * WHOLE_GPU:
        or_workers = ", or for more --workers" if worker.gpus > WHOLE_GPU and most_devices else ""
        raise _over_node(
            count_text(worker.gpus),
            str(most_devices),
            f"--gpus {most_devices}{or_workers}{or_other_type}",
            unit=f"node{of_types}",
        )
    if worker.gpu_memory_mib > device_mib:
        option = f"--gpu-memory {_memory_option(device_mib)}" if device_mib else "--gpus 0"
        raise _over_node(
            f"{_memory_text(worker.gpu_memory_mib)} of one GPU",
            _memory_text(device_mib),
            f"{option}{or_other_type}",
            unit=f"GPU{of_types}",
        )


def _check_cpu_and_memory_fit_node(worker: _WorkerRequest, largest: NodeCapacity) -> None:
    """Raise InvalidRequest if no node has the CPU, or the memory."""
    most_cpu, most_memory = largest.cpu_milli, largest.memory_mib
    if most_cpu is not None and worker.cpu_milli > most_cpu:
        raise _over_node(
            count_text(worker.cpu_milli, "CPU"), gpu_text(most_cpu), f"--cpu {gpu_text(most_cpu)}"
        )
    if most_memory is not None and worker.memory_mib > most_memory:
        raise _over_node(
            f"{_memory_text(worker.memory_mib)} of memory",
            _memory_text(most_memory),
            f"--memory {_memory_option(most_memory)}",
        )


def _over_node(amount: str, largest: str, option: str, *, unit: str = "node") -> InvalidRequest:
    return InvalidRequest(
        f"Each worker requests {amount}, more than any {unit} has: the largest has {largest}.",
        hint=f"Ask for at most {option}.",
        code="over_node",
    )


def _memory_text(mib: int) -> str:
    """Format an amount exactly: 2048 is 2 GiB, 1500 is 1500 MiB."""
    gib, rest = divmod(mib, 1024)
    return f"{mib} MiB" if rest or not gib else f"{gib} GiB"


def _memory_option(mib: int) -> str:
    """Format an amount as options take it: 2G, 1500M."""
    return _memory_text(mib).replace(" ", "").removesuffix("iB")


def _check_fits_project(
    request: SubmitRequest,
    gpus: MilliGpu,
    min_workers: int,
    preemptible: bool,  # noqa: FBT001  one of several facts
    gpu_types: Collection[str],
    project: ProjectSpec,
    site: SubmissionContext,
) -> None:
    """Raise InvalidRequest if the request could never start, however long it waited."""
    each = gpus
    if request.gpu_memory_mib and site.largest_device_mib:
        each = fraction_of_memory(request.gpu_memory_mib, site.largest_device_mib)
    requested = MilliGpu(each * min_workers)
    check_limit(requested, project, site.projects)
    quotas = [build_quota(project)]
    if project.quota_by_type is not None:
        types = gpu_types or site.gpu_types
        quotas.append(largest_entry(project.quota_by_type, types, site.gpu_types))
    quota = min((r for r in quotas if r is not None), default=None)
    if not preemptible and quota is not None and requested > quota:
        on = "" if quota == quotas[0] else " on GPUs of one type"
        raise InvalidRequest(
            f"{count_text(requested)} for a session are more than project {project.name}"
            f" may ever give to sessions: its build quota{on} is {gpu_text(quota)}.",
            hint="Ask for fewer, submit a job, or let it be stopped for others (--preemptible).",
            code="over_build_quota",
        )


def _priority(request: SubmitRequest) -> int:
    if request.kind == "session" and "priority" not in request.model_fields_set:
        return SESSION_PRIORITY
    if isinstance(request.priority, int):
        return request.priority
    return PRIORITIES[request.priority]


def _name(request: SubmitRequest, project: str, taken: Container[str]) -> str:
    name = request.name
    if name is None:
        name = f"{request.kind}-{_free(f'{project}/{request.kind}', taken)}"
    first = f"{name}-0" if request.array else name
    if request.command is not None and first.startswith(SERVER_PREFIX):
        raise InvalidRequest(
            f"The name {name} is not free: notebook servers have names that begin with"
            f" {SERVER_PREFIX}.",
            hint="Choose another name.",
            code="name_of_servers",
        )
    if request.array and len(name) + 1 + len(str(request.array - 1)) > LONGEST_NAME:
        raise InvalidRequest(
            f"The name {name} is too long for an array of {request.array}.",
            hint=f"With its index it must have at most {LONGEST_NAME} characters.",
        )
    return name


def _free(stem: str, taken: Container[str]) -> int:
    """Return the smallest free number; beyond the first few, the one after some taken number."""
    for number in range(1, FEW + 1):
        if not _is_used(f"{stem}-{number}", taken):
            return number
    low, high = FEW, 2 * FEW
    while _is_used(f"{stem}-{high}", taken):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _is_used(f"{stem}-{middle}", taken):
            low = middle
        else:
            high = middle
    return high


def _is_used(workload: str, taken: Container[str]) -> bool:
    return workload in taken or f"{workload}-0" in taken


def _yours(yours: Sequence[str]) -> str:
    if not yours:
        return "You are not a member of any project: ask a project's admin to add you."
    return f"Yours: {', '.join(yours)}."
