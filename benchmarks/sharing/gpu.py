"""The device under test, as NVML tells of it, and the platform's own reader of the same.

Changes no setting of the device. Memory is in MiB.
"""

import contextlib
import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any

import pynvml

from runai.hub_service.agent.devices.nvml import NvmlDevices
from runai.hub_service.agent.devices.nvml_inventory import NvmlMissing
from runai.hub_service.agent.readings import DeviceSource
from runai.hub_service.limits import with_hook
from runai.hub_service.limits.mps_daemon import PROGRAM as MPS_PROGRAM
from runai.hub_service.wire.reports import AgentAllocation
from runai.hub_service.wire.schemas import DeviceShareView

MIB = 1 << 20
CONTEXT_MIB = 600
"""Counted for one CUDA context where a limit is checked; P1 measures it."""


class Gpu:
    """One device of this machine."""

    def __init__(self, index: int) -> None:
        """Open it.

        Raises:
            NvmlMissing: there is no such device; says what NVML answered.
        """
        self.source: DeviceSource = NvmlDevices()
        found = self.source.devices()
        if index >= len(found):
            self.source.close()
            raise NvmlMissing(f"NVML finds {len(found)}, so there is no device {index}")
        self.device = found[index]
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def environment(self, *, limit_mib: int | None = None) -> dict[str, str]:
        """Return what a workload on this device has; with a limit also what keeps it (T1)."""
        env = {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": self.device.uuid,
        }
        if limit_mib is None:
            return env
        return env | {
            "PYTHONPATH": with_hook(os.environ.get("PYTHONPATH", "")),
            "RUNAI_GPU_MEMORY_LIMIT_MIB": str(limit_mib),
            "RUNAI_GPU_MEMORY_LIMITS_MIB": str(limit_mib),
            "RUNAI_GPU_DEVICES_MIB": str(self.device.memory_mib),
            "RUNAI_GPU_CONTEXT_MIB": str(CONTEXT_MIB),
        }

    def allocation(
        self, name: str, pid: int, gpus: float = 0.5, limit_mib: int | None = None
    ) -> AgentAllocation:
        """Return the agent's allocation of a workload with this process."""
        share = DeviceShareView(device=self.device.index, uuid=self.device.uuid, gpus=gpus)
        return AgentAllocation(
            workload=f"bench/{name}",
            worker=f"bench/{name}-0",
            project="bench",
            user="bench",
            shares=[share],
            pid=pid,
            created=None,
            limits_mib={} if limit_mib is None else {self.device.uuid: limit_mib},
        )

    def memory_of(self, pid: int) -> int:
        """Return the device memory of one process; 0 where the driver knows nothing of it."""
        used = 0
        for listing in (
            pynvml.nvmlDeviceGetComputeRunningProcesses,
            pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
        ):
            with contextlib.suppress(pynvml.NVMLError):
                for process in listing(self.handle):
                    if process.pid == pid and process.usedGpuMemory is not None:
                        used = max(used, process.usedGpuMemory // MIB)
        return used

    def busy_by_process(self, since_us: int) -> dict[int, float]:
        """Return each process's mean SM % in the driver's samples since then."""
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(self.handle, since_us)
        except pynvml.NVMLError:
            return {}
        by_pid: dict[int, list[int]] = {}
        for sample in samples:
            if sample.pid and sample.smUtil <= 100 and sample.timeStamp > since_us:
                by_pid.setdefault(sample.pid, []).append(sample.smUtil)
        return {pid: sum(busy) / len(busy) for pid, busy in by_pid.items()}

    def sm_active(self, seconds: float) -> float | None:
        """Return the part of the SMs' cycles with work, by GPM; None where there is no GPM."""
        with contextlib.suppress(pynvml.NVMLError, AttributeError):
            if not pynvml.nvmlGpmQueryDeviceSupport(self.handle).isSupportedDevice:
                return None
            first, second = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
            try:
                pynvml.nvmlGpmSampleGet(self.handle, first)
                time.sleep(seconds)
                pynvml.nvmlGpmSampleGet(self.handle, second)
                query = pynvml.c_nvmlGpmMetricsGet_t()
                query.version = pynvml.NVML_GPM_METRICS_GET_VERSION
                query.numMetrics = 1
                query.sample1, query.sample2 = first, second
                query.metrics[0].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
                return float(pynvml.nvmlGpmMetricsGet(query).metrics[0].value) / 100
            finally:
                pynvml.nvmlGpmSampleFree(first)
                pynvml.nvmlGpmSampleFree(second)
        return None

    def facts(self) -> dict[str, Any]:
        """Return what P0 writes down: versions and modes, none of them changed."""
        return {
            "device": self.device.name,
            "memory_mib": self.device.memory_mib,
            "driver": _value_or_error(pynvml.nvmlSystemGetDriverVersion),
            "cuda": _value_or_error(pynvml.nvmlSystemGetCudaDriverVersion_v2),
            "compute_mode": _value_or_error(pynvml.nvmlDeviceGetComputeMode, self.handle),
            "mig_mode": _value_or_error(pynvml.nvmlDeviceGetMigMode, self.handle),
            "accounting_mode": _value_or_error(pynvml.nvmlDeviceGetAccountingMode, self.handle),
            "persistence_mode": _value_or_error(pynvml.nvmlDeviceGetPersistenceMode, self.handle),
            "virtualization": _value_or_error(pynvml.nvmlDeviceGetVirtualizationMode, self.handle),
            "gpm": self.sm_active(0.2) is not None,
            "mps": shutil.which(MPS_PROGRAM) or "not installed",
            "cgroup": "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1 or none",
            "memory_limits": _value_or_error(_limits_of, self.handle),
            "kernel": platform.release(),
            "container": Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        }


def _value_or_error(call: Any, *arguments: Any) -> object:  # noqa: ANN401  the library's functions
    try:
        value = call(*arguments)
    except (pynvml.NVMLError, AttributeError) as error:
        return str(error)
    return value.decode() if isinstance(value, bytes) else value


def _limits_of(handle: Any) -> str:  # noqa: ANN401  an opaque pointer of the library
    """Ask for the limits of a group that does not exist: only what the call answers matters."""
    query = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=b"/sys/fs/cgroup/runai-no-such-group")
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle, query)
    return "answers"
