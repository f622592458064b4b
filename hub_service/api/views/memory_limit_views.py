"""Views of a workload's memory limit and its processes. Pure; permissions are checked before."""

from collections.abc import Mapping, Sequence

from runai.hub_service.api.views.latest_agent_reports import AgentReports
from runai.hub_service.clusters.workloads.worker_environment import allocation
from runai.hub_service.limits.tiers import Tier
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import WorkerRecord, WorkloadRecord
from runai.hub_service.wire.device_schemas import LimitView, ProcessView


def limit_view(
    record: WorkloadRecord, devices: Mapping[str, Sequence[Device]], agent_reports: AgentReports
) -> LimitView | None:
    """Return the limit on shared devices; None: a whole device has none."""
    limits = [
        mib
        for worker in record.workers
        if worker.node in devices
        for mib in allocation(record, worker, devices[worker.node]).limits_mib
        if mib is not None
    ]
    if not limits:
        return None
    tier = agent_reports.tier(record.id)
    why = tier.why
    if tier is Tier.FRAMEWORKS:
        uuids = [uuid for worker in record.workers for uuid in _uuids(worker, devices)]
        troubles = sorted({agent_reports.sharing.unavailable_reason(uuid) for uuid in uuids} - {""})
        why += "".join(f" MPS is not available here: {trouble}." for trouble in troubles)
    reasons = {agent_reports.no_hard_limit_reason(worker.node) for worker in record.workers} - {""}
    if not tier.is_hard and reasons:
        why += f" A hard limit is not available here: {min(reasons)}."
    return LimitView(memory_mib=min(limits), tier=tier.value, badge=tier.badge, why=why)


def _uuids(worker: WorkerRecord, devices: Mapping[str, Sequence[Device]]) -> list[str]:
    node_devices = devices.get(worker.node, ())
    return [node_devices[s.device].uuid for s in worker.devices if s.device < len(node_devices)]


def process_views(
    record: WorkloadRecord, agent_reports: AgentReports, now: float
) -> list[ProcessView]:
    """Return a workload's processes on devices, the largest first."""
    return [
        ProcessView(
            pid=p.pid,
            worker=p.worker,
            device=p.device,
            name=p.notebook or p.name,
            utilized=p.utilization,
            memory_mib=p.memory_mib,
        )
        for p in agent_reports.processes(now, record.id)
    ]
