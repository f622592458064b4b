"""Build the environment that tells a worker who it is and hands it its devices.

Knows the names on the wire and what the frameworks need to stay within a share. Pure; leaves the
user's account (HOME, PATH) to the cluster. The same on every cluster; called by `local` and
`simulated`.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal

from runai.hub_service.agent.devices import Device
from runai.hub_service.clusters.records import WorkerRecord, WorkloadSpec
from runai.hub_service.clusters.row import ACTIVE, Row
from runai.hub_service.scheduler.quantity import WHOLE_GPU, memory_of_fraction

__all__ = ["CONTEXT_MIB", "worker_environment"]

CONTEXT_MIB = 500
"""Device memory of a process's CUDA context, counted inside its share (a first guess)."""

MEBIBYTE = 1024 * 1024


def worker_environment(
    row: Row, worker: WorkerRecord, devices: Sequence[Device], *, api_url: str
) -> dict[str, str]:
    """Return what a worker needs beyond its user's own environment; `devices` are its node's.

    What a user adds wins over conveniences, never over identity and devices.
    """
    spec = row.spec
    granted = [devices[share.device] for share in worker.devices]
    milli = min((share.gpus for share in worker.devices), default=0)
    limit_mib = _memory_limit(spec, milli, granted)
    context_mib = 0 if all(device.simulated for device in granted) else CONTEXT_MIB
    return {
        "PYTHONUNBUFFERED": "1",
        **_frameworks(spec, milli, limit_mib, context_mib, granted),
        **spec.env,
        **_devices(granted),
        "RUNAI_WORKLOAD": row.id,
        "RUNAI_WORKER": worker.name,
        "RUNAI_PROJECT": spec.project,
        "RUNAI_KIND": spec.kind,
        "RUNAI_GPU_FRACTION": str(Decimal(milli) / 1000),
        "RUNAI_GPU_MEMORY_LIMIT_MIB": str(limit_mib),
        "RUNAI_GPU_CONTEXT_MIB": str(context_mib),
        "RUNAI_CHECKPOINT_DIR": row.record.checkpoint_dir,
        "RUNAI_RESUMED": "1" if row.resumed else "0",
        "RUNAI_API_URL": api_url,
        **_gang(row, worker),
        **({} if spec.array_index is None else {"RUNAI_ARRAY_INDEX": str(spec.array_index)}),
    }


def _memory_limit(spec: WorkloadSpec, milli: int, granted: Sequence[Device]) -> int:
    """Return the MiB that a worker may use of each of its devices."""
    if not granted:
        return 0
    if spec.gpu_memory_mib:
        return spec.gpu_memory_mib
    return min(memory_of_fraction(milli, device.memory_mib) for device in granted)


def _devices(granted: Sequence[Device]) -> dict[str, str]:
    uuids = ",".join(device.uuid for device in granted)
    return {
        # UUIDs: NVML and CUDA number devices differently, and MPS numbers them anew.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": uuids,  # empty hides all of them
        "NVIDIA_VISIBLE_DEVICES": uuids or "void",
    }


def _frameworks(
    spec: WorkloadSpec, milli: int, limit_mib: int, context_mib: int, granted: Sequence[Device]
) -> Mapping[str, str]:
    variables = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    shared = bool(spec.gpu_memory_mib) or 0 < milli < WHOLE_GPU
    if not granted or not shared:
        return variables
    usable = max(limit_mib - context_mib, limit_mib // 2)  # a share may be smaller than a context
    fraction = Decimal(usable) / max(device.memory_mib for device in granted)
    return variables | {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{fraction:.4f}",
        "CUPY_GPU_MEMORY_LIMIT": str(usable * MEBIBYTE),
    }


def _gang(row: Row, worker: WorkerRecord) -> dict[str, str]:
    """Name the place in a gang: each worker sees only its own devices, so its local rank is 0."""
    if row.spec.workers == 1:
        return {}
    together = [w.index for w in row.record.workers if w.state in ACTIVE]
    return {
        "RANK": str(together.index(worker.index)),
        "WORLD_SIZE": str(len(together)),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(row.master_port),
    }
