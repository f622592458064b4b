"""Gauges of projects, nodes, devices and running workloads, as Prometheus families.

Pure: a `Viewer` limits workloads to the caller's. GPU-second counters start at zero with the
service, as Prometheus expects.
"""

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from typing import TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from runai.hub_service.api.views.viewer import Viewer
from runai.hub_service.ledger import Totals
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import WorkloadRecord, WorkloadState
from runai.hub_service.wire.device_schemas import DeviceView
from runai.hub_service.wire.schemas import WorkloadView

MIB = 2**20

GPU_SECONDS = (
    ("allocated", "GPU-seconds that were allocated."),
    ("used", "GPU-seconds during which GPUs were busy."),
    ("idle", "Allocated GPU-seconds of GPUs less than 1 % busy."),
)

Labels = TypeVar("Labels", bound=tuple[str, ...])


def current_state(viewer: Viewer, version: str) -> Iterator[Metric]:
    """Yield all families of the current state."""
    build = GaugeMetricFamily("runai_build_info", "The service's version.", labels=["version"])
    build.add_metric([version], 1)
    yield build
    yield from _projects(viewer)
    yield from _nodes(viewer)
    for kind in ("project", "node"):
        totals = viewer.read_model.meter.totals_since_open(kind)
        prefix = "runai_" if kind == "project" else "runai_node_"
        yield from _gpu_seconds(prefix, [kind], {(name,): t for name, t in totals.items()})
    reclaimed = CounterMetricFamily(
        "runai_idle_gpu_seconds_reclaimed",
        "GPU-seconds that would have been idle, had they not been given to others.",
        labels=["project"],
    )
    reclaimed_totals = viewer.read_model.meter.totals_since_open("reclaimed")
    for name in viewer.read_model.projects:
        idle_s = reclaimed_totals[name].idle_s if name in reclaimed_totals else 0.0
        reclaimed.add_metric([name], idle_s)
    yield reclaimed
    yield from _workloads(viewer)


def running(viewer: Viewer) -> list[tuple[WorkloadRecord, WorkloadView]]:
    """Return the workloads with GPUs that the caller may see. Only these have series."""
    return [
        (record, viewer.workload(record))
        for record in viewer.read_model.queues.holding.records
        if record.allocated and viewer.may_see(record)
    ]


def gauge(name: str, text: str, labels: list[str], values: Mapping[Labels, float]) -> Metric:
    """Build a gauge family with these values."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for names, value in values.items():
        family.add_metric(list(names), value)
    return family


def _projects(viewer: Viewer) -> Iterator[Metric]:
    """Yield the projects' workloads by state, and their GPUs: held, busy, due and guaranteed."""
    read_model = viewer.read_model
    states: dict[tuple[str, ...], float] = {}
    amounts: dict[str, dict[tuple[str, ...], float]] = {
        name: {} for name in ("allocated", "utilized", "quota", "limit", "fair_share")
    }
    tally = Tally[tuple[str, WorkloadState]]()
    for record in read_model.workloads:
        tally[record.spec.project, record.state] += record.size
    for name, project in read_model.projects.items():
        # Only holding workloads: the tens of thousands that wait have no allocation.
        holding = read_model.queues.holding.by_project.get(name, ())
        states |= {(name, state.value): tally[name, state] for state in WorkloadState}
        measured = [m for r in holding if r.allocated and (m := read_model.meter.current(r.id))]
        share = read_model.shares.get(name)
        amounts["allocated"][name,] = sum(r.allocated for r in holding) / 1000
        amounts["utilized"][name,] = sum(gpus for gpus, _ in measured)
        for limit, milli in (("quota", project.spec.quota), ("limit", project.spec.limit)):
            amounts[limit][name,] = float("inf") if milli is None else milli / 1000
        amounts["fair_share"][name,] = share.fair_share / 1000 if share else 0.0
    yield gauge("runai_workloads", "Workloads.", ["project", "state"], states)
    by_type = {
        (name, gpu_type): float("inf") if milli is None else milli / 1000
        for name, project in read_model.projects.items()
        for gpu_type, milli in (project.spec.quota_by_type or {}).items()
    }
    text = "GPUs that are guaranteed by a quota table."
    yield gauge("runai_gpus_quota_by_type", text, ["project", "type"], by_type)
    for name, text in (
        ("allocated", "GPUs that are granted."),
        ("utilized", "GPUs that are kept busy."),
        ("quota", "GPUs that are guaranteed."),
        ("limit", "GPUs that are never exceeded."),
        ("fair_share", "GPUs due now: the quota and its part of the surplus."),
    ):
        yield gauge(f"runai_gpus_{name}", text, ["project"], amounts[name])


def _nodes(viewer: Viewer) -> Iterator[Metric]:
    """Yield the devices of each node, and the time of its agent's last report."""
    read_model = viewer.read_model
    counts = {(name,): float(len(devices)) for name, devices in read_model.devices.items()}
    yield gauge("runai_gpus", "GPUs in the cluster.", ["node"], counts)
    device_views = {(node.name, d.uuid): d for node in viewer.nodes() for d in node.devices}
    for name, text, value in (
        ("healthy", "Whether a device can be used.", _is_healthy),
        ("allocated_ratio", "Share of a device that is granted.", _allocated),
        ("utilization_ratio", "Busy share of a device.", _utilized),
        ("memory_bytes", "Memory of a device that workloads may use.", _memory),
        ("memory_used_bytes", "Memory of a device in use.", _memory_used),
    ):
        values = {key: value(device) for key, device in device_views.items()}
        known = {key: v for key, v in values.items() if v is not None}
        yield gauge(f"runai_device_{name}", text, ["node", "device"], known)
    reported = {(node,): at for node, at in read_model.meter.reported().items()}
    yield gauge(
        "runai_agent_last_report_timestamp_seconds",
        "When a node's agent measured last.",
        ["node"],
        reported,
    )


def _workloads(viewer: Viewer) -> Iterator[Metric]:
    """Yield GPUs, memory and GPU-seconds of each running workload."""
    read_model, labels = viewer.read_model, ["project", "workload", "kind"]
    visible = {(r.spec.project, r.spec.name, r.spec.kind): (r, v) for r, v in running(viewer)}
    totals_by_workload = read_model.meter.totals_since_open("workload")
    yield gauge(
        "runai_workload_gpus_allocated",
        "GPUs that a running workload holds.",
        labels,
        {key: view.allocated for key, (_, view) in visible.items()},
    )
    yield gauge(
        "runai_workload_gpus_utilized",
        "GPUs that a running workload keeps busy.",
        labels,
        {
            key: view.measured.utilized
            for key, (_, view) in visible.items()
            if view.measured.utilized is not None
        },
    )
    yield gauge(
        "runai_workload_memory_used_bytes",
        "Device memory that a running workload uses.",
        labels,
        {
            key: view.measured.memory_used_mib * MIB
            for key, (_, view) in visible.items()
            if view.measured.memory_used_mib is not None
        },
    )
    yield gauge(
        "runai_workload_memory_limit_bytes",
        "Device memory that a running workload may use.",
        labels,
        {key: _memory_share(viewer, record) * MIB for key, (record, _) in visible.items()},
    )
    totals = {
        k: totals_by_workload[r.id] for k, (r, _) in visible.items() if r.id in totals_by_workload
    }
    yield from _gpu_seconds("runai_workload_", labels, totals)


def _gpu_seconds(
    prefix: str, labels: list[str], totals_by_labels: Mapping[Labels, Totals]
) -> Iterator[Metric]:
    for name, text in GPU_SECONDS:
        family = CounterMetricFamily(f"{prefix}gpu_seconds_{name}", text, labels=labels)
        for names, totals in totals_by_labels.items():
            family.add_metric(list(names), getattr(totals, f"{name}_s"))
        yield family


def _memory_share(viewer: Viewer, record: WorkloadRecord) -> int:
    """Return the device memory of a workload in MiB: its shares of its devices' memory."""
    shares: list[tuple[Device | None, int]] = [
        (viewer.read_model.device(worker.node, share.device), share.gpus)
        for worker in record.workers
        for share in worker.devices
    ]
    return sum(device.memory_mib * milli // 1000 for device, milli in shares if device)


def _is_healthy(device: DeviceView) -> float | None:
    return float(device.healthy)


def _allocated(device: DeviceView) -> float | None:
    return device.allocated


def _utilized(device: DeviceView) -> float | None:
    return device.utilized


def _memory(device: DeviceView) -> float | None:
    return device.memory_mib * MIB


def _memory_used(device: DeviceView) -> float | None:
    return None if device.memory_used_mib is None else device.memory_used_mib * MIB
