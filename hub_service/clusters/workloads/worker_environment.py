"""Environment of a worker on any cluster, and its allocation for the node's agent.

It has the platform's variables, and the frameworks' settings that keep them within a share. The
cluster adds the user's account (HOME, PATH). Pure.
"""

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import PurePath

from runai.hub_service.limits import with_hook
from runai.hub_service.limits.sharing import Sharing
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import (
    ACTIVE,
    Allocation,
    WorkerRecord,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.model.workload_spec import MIN_CPU_MILLI
from runai.hub_service.processes.session_end import SESSION_ID
from runai.hub_service.processes.shell_environment import CPU_VARIABLES, TORCHRUN_VARIABLES
from runai.hub_service.scheduler.model.quantity import memory_of_fraction
from runai.hub_service.scheduler.model.snapshot import DeviceShare

CONTEXT_MIB = 500
"""Device memory of a process's CUDA context, counted inside its share (a first guess)."""

MEBIBYTE = 1024 * 1024

_TORCHRUN_ALONE = re.compile(r"--standalone\b|--nnodes[= ]1(?![\d:])")


def worker_environment(
    row: WorkloadRecord,
    worker: WorkerRecord,
    devices: Sequence[Device],
    *,
    api_url: str,
    sharing: Sharing,
    enforced: bool = False,
) -> dict[str, str]:
    """Return a worker's variables in addition to its user's; `devices` are its node's.

    The user's own variables override defaults, but never identity and devices. A default request
    of CPU counts where control groups enforce it (`enforced`).
    """
    spec = row.spec
    granted = [devices[share.device] for share in worker.devices]
    milli = min((share.gpus for share in worker.devices), default=0)
    limits_mib = memory_limits(spec, worker.devices, devices)
    context_mib = 0 if all(device.simulated for device in granted) else CONTEXT_MIB
    return {
        "PYTHONUNBUFFERED": "1",
        **_framework_variables(limits_mib, context_mib, granted),
        **cpu_variables(spec, _requested_cpu(spec, enforced=enforced)),
        **spec.env,
        **_hook_variables(spec, granted),
        **_device_variables(granted),
        **_sharing_variables(row, worker, devices, sharing),
        "RUNAI_WORKLOAD": row.id,
        "RUNAI_WORKER": worker.name,
        "RUNAI_PROJECT": spec.project,
        "RUNAI_KIND": spec.kind,
        "RUNAI_GPU_FRACTION": str(Decimal(milli) / 1000),
        "RUNAI_GPU_MEMORY_LIMIT_MIB": str(min(limits_mib, default=0)),
        "RUNAI_GPU_MEMORY_LIMITS_MIB": ",".join(map(str, limits_mib)),
        "RUNAI_GPU_DEVICES_MIB": ",".join(str(device.memory_mib) for device in granted),
        "RUNAI_GPU_CONTEXT_MIB": str(context_mib),
        "RUNAI_CHECKPOINT_DIR": row.checkpoint_dir,
        "RUNAI_RESUMED": "1" if row.resumed else "0",
        "RUNAI_API_URL": api_url,
        **({SESSION_ID: row.uid} if spec.command is None else {}),
        **({"RUNAI_ELASTIC_DIR": elastic_dir(row)} if spec.elastic else {}),
        **_gang_variables(row, worker),
        **({} if spec.array_index is None else {"RUNAI_ARRAY_INDEX": str(spec.array_index)}),
    }


def memory_limits(
    spec: WorkloadSpec, shares: Sequence[DeviceShare], devices: Sequence[Device]
) -> list[int]:
    """Return the limit in MiB on each device, in the order of the shares."""
    return [
        spec.gpu_memory_mib or memory_of_fraction(share.gpus, devices[share.device].memory_mib)
        for share in shares
    ]


def allocation(
    record: WorkloadRecord, worker: WorkerRecord, devices: Sequence[Device]
) -> Allocation:
    """Return a worker's allocation for its node's agent; `devices` are the node's."""
    spec = record.spec
    limits = memory_limits(spec, worker.devices, devices)
    return Allocation(
        record.id,
        worker.name,
        spec.project,
        spec.user,
        worker.devices,
        process=worker.process,
        limits_mib=tuple(
            None if limit >= devices[share.device].memory_mib else limit
            for limit, share in zip(limits, worker.devices, strict=True)
        ),
        is_server=spec.kind == "session" and spec.command is None,
        checkpoint_dir=record.checkpoint_dir,
    )


def launcher_variables(spec: WorkloadSpec) -> Mapping[str, str]:
    """Return a gang's variables for launchers, each with the name of the one that has its value.

    Lightning and torchrun overwrite `RANK` and `WORLD_SIZE`, which would make each worker a
    training of its own. A torchrun for one node gets none: it would wait for a second one.
    """
    if spec.workers == 1 or spec.elastic:
        return {}
    text = " ".join((*(spec.command or ()), spec.source or ""))
    is_for_one_node = "PET_STANDALONE" in spec.env or spec.env.get("PET_NNODES") == "1"
    is_single_node = is_for_one_node or _TORCHRUN_ALONE.search(text)
    names = {"NODE_RANK": "RANK", **({} if is_single_node else TORCHRUN_VARIABLES)}
    return {name: equal_to for name, equal_to in names.items() if name not in spec.env}


def cpu_variables(spec: WorkloadSpec, milli: int) -> dict[str, str]:
    """Return the variables that name a worker's CPUs, for programs, Python and joblib.

    `OMP_NUM_THREADS` is set to 1 alone: each rank of torchrun and each process of joblib would
    start a larger number of threads, while by themselves they divide the CPUs.
    """
    if not milli or spec.elastic:
        return {}
    cpus = max(1, milli // 1000)
    named = CPU_VARIABLES if cpus == 1 else CPU_VARIABLES[:-1]  # the last is OMP_NUM_THREADS
    return dict.fromkeys(named, str(cpus))


def _requested_cpu(spec: WorkloadSpec, *, enforced: bool) -> int:
    """Return a worker's request in milli-CPU; 0 without one, or if it is the minimum."""
    is_default = enforced and spec.cpu_milli > MIN_CPU_MILLI
    return spec.cpu_milli if spec.cpu_asked or is_default else 0


def elastic_dir(record: WorkloadRecord) -> str:
    """Return the directory shared by an elastic job's cluster and workers, beside checkpoints."""
    return str(PurePath(record.checkpoint_dir).parent / "elastic")


def _sharing_variables(
    record: WorkloadRecord, worker: WorkerRecord, devices: Sequence[Device], sharing: Sharing
) -> Mapping[str, str]:
    """Return the variables for a share of one device, else {}.

    A process can be the client of one sharing daemon only.
    """
    limits = allocation(record, worker, devices).limits_mib
    if len(limits) != 1 or limits[0] is None:
        return {}
    return sharing.variables(devices[worker.devices[0].device].uuid, limits[0])


def _hook_variables(spec: WorkloadSpec, granted: Sequence[Device]) -> Mapping[str, str]:
    """Add the hook that limits each Python process to PYTHONPATH, before the user's entries."""
    return {"PYTHONPATH": with_hook(spec.env.get("PYTHONPATH", ""))} if granted else {}


def _device_variables(granted: Sequence[Device]) -> dict[str, str]:
    """Return the variables that show a worker its granted devices only."""
    uuids = ",".join(device.uuid for device in granted)
    return {
        # UUIDs: NVML and CUDA number devices differently, and MPS numbers them anew.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": uuids,  # empty hides all of them
        "RUNAI_GPU_DEVICES": uuids,  # the grant, should a program change the former
        "NVIDIA_VISIBLE_DEVICES": uuids or "void",
    }


def _framework_variables(
    limits_mib: Sequence[int], context_mib: int, granted: Sequence[Device]
) -> Mapping[str, str]:
    """Return the frameworks' settings that keep a process within its share of memory."""
    variables = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if all(limit >= device.memory_mib for limit, device in zip(limits_mib, granted, strict=True)):
        return variables
    # Both accept one value for all devices. A share may be smaller than a context.
    usable = min(max(limit - context_mib, limit // 2) for limit in limits_mib)
    fraction = Decimal(usable) / max(device.memory_mib for device in granted)
    return variables | {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{fraction:.4f}",
        "CUPY_GPU_MEMORY_LIMIT": str(usable * MEBIBYTE),
    }


def _gang_variables(row: WorkloadRecord, worker: WorkerRecord) -> dict[str, str]:
    """Return a worker's rank and rendezvous address in its gang.

    Its local rank is 0, since each worker sees only its own devices.
    """
    if row.spec.workers == 1:
        return {}
    active_indexes = [w.index for w in row.workers if w.state in ACTIVE]
    variables = {
        "RANK": str(active_indexes.index(worker.index)),
        "WORLD_SIZE": str(len(active_indexes)),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(row.master_port),
    }
    return variables | {
        name: variables[equal_to] for name, equal_to in launcher_variables(row.spec).items()
    }
