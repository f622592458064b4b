"""Metrics under Run:ai's documented names, for existing dashboards.

Labels and units are Run:ai's: percent, bytes, Unix time, `gpu` the device's number. Only running
workloads that the caller may see have series. Source: "Metrics API" of the documentation of Run:ai
2.9.
"""

from collections.abc import Iterator

from prometheus_client import Metric

from runai.hub_service.api.metrics.gauges import MIB, gauge, running
from runai.hub_service.api.views.viewer import Viewer

JOB_TYPE = {"job": "training", "session": "interactive"}


def original(viewer: Viewer) -> Iterator[Metric]:
    """Yield the families that Run:ai's dashboards query."""
    yield from _jobs(viewer)
    yield from _gpus(viewer)
    yield from _nodes(viewer)
    quotas = {
        (name,): record.spec.quota / 1000
        for name, record in viewer.read_model.projects.items()
        if record.spec.quota is not None
    }
    yield gauge("runai_project_guaranteed_gpus", "Guaranteed GPUs.", ["project"], quotas)


def _jobs(viewer: Viewer) -> Iterator[Metric]:
    """Yield GPUs, utilization and memory of each running workload."""
    running_workloads = running(viewer)
    allocated, requested, requested_memory = {}, {}, {}
    utilization, memory = {}, {}
    for record, view in running_workloads:
        spec = record.spec
        job_labels = spec.project, spec.name, JOB_TYPE[spec.kind]
        allocated[job_labels] = view.allocated
        requested[job_labels] = view.gpus
        requested_memory[job_labels] = float(spec.gpu_memory_mib * spec.workers * MIB)
        devices = sum(len(worker.devices) for worker in view.workers)
        if view.measured.utilized is not None and devices:
            utilization[job_labels[:2]] = 100 * view.measured.utilized / devices
        if view.measured.memory_used_mib is not None:
            memory[job_labels[:2]] = view.measured.memory_used_mib * MIB
    named = ["project", "job_name"]
    yield gauge(
        "runai_job_allocated_gpus", "GPUs allocated to a job.", [*named, "job_type"], allocated
    )
    yield gauge(
        "runai_job_requested_gpus", "GPUs that a job asked for.", [*named, "job_type"], requested
    )
    yield gauge(
        "runai_job_requested_gpu_memory",
        "GPU memory that a job asked for, in bytes; 0 if it asked for GPUs.",
        [*named, "job_type"],
        requested_memory,
    )
    yield gauge(
        "runai_job_gpu_utilization",
        "Utilization of a job's GPUs now, 0 to 100, averaged over its GPUs.",
        named,
        utilization,
    )
    yield gauge("runai_job_used_gpu_memory_bytes", "GPU memory that a job uses.", named, memory)


def _nodes(viewer: Viewer) -> Iterator[Metric]:
    used, total, instances = {}, {}, {}
    for node in viewer.nodes():
        memory_used = [d.memory_used_mib for d in node.devices if d.memory_used_mib is not None]
        if memory_used:
            used[node.name,] = sum(memory_used) * MIB
        total[node.name,] = sum(device.memory_mib for device in node.devices) * MIB
        instances[node.name,] = float(sum(d.uuid.startswith("MIG-") for d in node.devices))
    for name, text, values in (
        ("runai_node_gpu_used_memory_bytes", "GPU memory of a node in use.", used),
        ("runai_node_total_memory_bytes", "GPU memory of a node.", total),
        ("runai_mig_mode_gpu_count", "GPUs of a node that are MIG instances.", instances),
    ):
        yield gauge(name, text, ["node"], values)


def _gpus(viewer: Viewer) -> Iterator[Metric]:
    """Yield the utilization of whole devices, and holders and last use of each device."""
    fractional, active, allocated, utilization = {}, {}, {}, {}
    job_names = {record.id: record.spec.name for record, _ in running(viewer)}
    for node in viewer.nodes():
        for device in node.devices:
            key = node.name, str(device.device)
            for allocation in device.allocations:
                if (
                    allocation.gpus == 1
                    and allocation.workload in job_names
                    and device.utilized is not None
                ):
                    utilization[job_names[allocation.workload], *key] = 100 * device.utilized
            allocated[key] = float(bool(device.allocations))
            fractional[key] = float(any(a.gpus < 1 for a in device.allocations))
            at = viewer.read_model.meter.last_active(device.uuid)
            if at is not None:
                active[key] = at
    labels = ["node", "gpu"]
    yield gauge(
        "runai_gpu_utilization_non_fractional_jobs",
        "Utilization of a GPU that one job holds whole, 0 to 100.",
        ["job_name", *labels],
        utilization,
    )
    yield gauge("runai_gpu_is_allocated", "Whether anybody holds a GPU.", labels, allocated)
    yield gauge(
        "runai_gpu_is_running_fractional_job",
        "Whether a GPU is shared by fractions.",
        labels,
        fractional,
    )
    yield gauge(
        "runai_gpu_last_active_time", "When a GPU was last not idle, Unix time.", labels, active
    )
