"""The original's documented metric names, for dashboards that already ask for them.

Their labels and units are the original's: percent, bytes, Unix time, `gpu` the device's number.
Only running workloads that the caller may see have series. Source: "Metrics API" of the
documentation of Run:ai 2.9.
"""

from collections.abc import Iterator

from prometheus_client import Metric

from runai.hub_service.api.views import Viewer
from runai.hub_service.metrics.present import MIB, gauge, running

__all__ = ["original"]

JOB_TYPE = {"job": "training", "session": "interactive"}


def original(viewer: Viewer) -> Iterator[Metric]:
    """Yield the families that the original's dashboards know."""
    yield from _jobs(viewer)
    yield from _gpus(viewer)
    quotas = {
        (name,): record.spec.quota / 1000
        for name, record in viewer.world.projects.items()
        if record.spec.quota is not None
    }
    yield gauge("runai_project_guaranteed_gpus", "Guaranteed GPUs.", ["project"], quotas)


def _jobs(viewer: Viewer) -> Iterator[Metric]:
    found = running(viewer)
    allocated, utilization, memory = {}, {}, {}
    for record, view in found:
        whose = record.spec.project, record.spec.name, JOB_TYPE[record.spec.kind]
        allocated[whose] = view.allocated
        devices = sum(len(worker.devices) for worker in view.workers)
        if view.utilized is not None and devices:
            utilization[whose[:2]] = 100 * view.utilized / devices
        if view.memory_used_mib is not None:
            memory[whose[:2]] = view.memory_used_mib * MIB
    named = ["project", "job_name"]
    yield gauge(
        "runai_job_allocated_gpus", "GPUs allocated to a job.", [*named, "job_type"], allocated
    )
    yield gauge(
        "runai_job_gpu_utilization",
        "Utilization of a job's GPUs now, 0 to 100, averaged over its GPUs.",
        named,
        utilization,
    )
    yield gauge("runai_job_used_gpu_memory_bytes", "GPU memory that a job uses.", named, memory)


def _gpus(viewer: Viewer) -> Iterator[Metric]:
    fractional, active, held = {}, {}, {}
    for node in viewer.nodes():
        for device in node.devices:
            key = node.name, str(device.device)
            held[key] = float(bool(device.allocations))
            fractional[key] = float(any(a.gpus < 1 for a in device.allocations))
            at = viewer.world.meter.last_active(device.uuid)
            if at is not None:
                active[key] = at
    labels = ["node", "gpu"]
    yield gauge("runai_gpu_is_allocated", "Whether anybody holds a GPU.", labels, held)
    yield gauge(
        "runai_gpu_is_running_fractional_job",
        "Whether a GPU is shared by fractions.",
        labels,
        fractional,
    )
    yield gauge(
        "runai_gpu_last_active_time", "When a GPU was last not idle, Unix time.", labels, active
    )
