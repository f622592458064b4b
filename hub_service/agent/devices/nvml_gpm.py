"""Utilization of MIG instances, from the driver's performance counters (GPM).

NVML reports no utilization of an instance. From Hopper on it reads an instance's counters and
derives the share of time with any work between two readings: the same figure as for a whole GPU.
Older GPUs, and drivers that refuse, have no such counters: utilization is unknown.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml

from runai.hub_service.agent.devices.nvml_inventory import AllocatableDevice, Gpu, call_or_none

_BUSY = 1  # NVML_GPM_METRIC_GRAPHICS_UTIL: the share of time with any context at work


@dataclass(slots=True)
class _GpmReadings:
    """Two readings of an instance's counters, in memory that NVML allocated."""

    before: Any
    now: Any


class GpmUtilization:
    """Counters of each instance, as read at the previous poll."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        """Read all counters once, as the baseline of the first poll."""
        self._counters: dict[str, _GpmReadings] = {}
        for gpu in gpus:
            for nvml_device in gpu.devices:
                if nvml_device.has_own_counters and _has_counters(gpu):
                    with suppress(pynvml.NVMLError):
                        self._read_baseline(gpu, nvml_device)

    def close(self) -> None:
        """Free the counters' memory; repeated calls do nothing."""
        for counters in self._counters.values():
            for sample in (counters.before, counters.now):
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlGpmSampleFree(sample)
        self._counters = {}

    def utilization_since_last(self, gpu: Gpu, nvml_device: AllocatableDevice) -> float | None:
        """Return the share of time that a MIG instance was busy since the last call.

        0..1; None: unknown, as on GPUs without these counters.
        """
        counters = self._counters.get(nvml_device.device.uuid)
        if counters is None:
            return None
        try:
            _read_counters(gpu, nvml_device, counters.now)
            busy = _busy_share(counters)
        except pynvml.NVMLError:
            return None
        counters.before, counters.now = counters.now, counters.before
        return busy

    def _read_baseline(self, gpu: Gpu, nvml_device: AllocatableDevice) -> None:
        before = pynvml.nvmlGpmSampleAlloc()
        try:
            counters = _GpmReadings(before, pynvml.nvmlGpmSampleAlloc())
        except pynvml.NVMLError:
            pynvml.nvmlGpmSampleFree(before)
            raise
        self._counters[nvml_device.device.uuid] = counters
        _read_counters(gpu, nvml_device, counters.before)


def _has_counters(gpu: Gpu) -> bool:
    support = call_or_none(pynvml.nvmlGpmQueryDeviceSupport, gpu.handle)
    return support is not None and bool(support.isSupportedDevice)


def _read_counters(gpu: Gpu, nvml_device: AllocatableDevice, sample: Any) -> None:  # noqa: ANN401  an opaque pointer
    assert nvml_device.instance is not None
    pynvml.nvmlGpmMigSampleGet(gpu.handle, nvml_device.instance[0], sample)


def _busy_share(counters: _GpmReadings) -> float | None:
    """Return the share of time with any work between two readings; None: no valid figure."""
    metrics_get = pynvml.c_nvmlGpmMetricsGet_t()
    metrics_get.version, metrics_get.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    metrics_get.sample1, metrics_get.sample2 = counters.before, counters.now
    metrics_get.metrics[0].metricId = _BUSY
    metric = pynvml.nvmlGpmMetricsGet(metrics_get).metrics[0]
    # NaN fails both comparisons.
    is_valid = metric.nvmlReturn == pynvml.NVML_SUCCESS and 0 <= metric.value <= 100
    return metric.value / 100 if is_valid else None
