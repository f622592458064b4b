"""Device views for callers and agents: holders, utilization, other processes.

Pure. Processes of no workload, or of one that does not hold the device, are always shown: they
explain why a device is full.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.views.read_model import DeviceState
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import Allocation, WorkloadId, WorkloadRecord
from runai.hub_service.wire.device_schemas import AllocationView, DeviceView, OthersView
from runai.hub_service.wire.reports import AgentAllocation, AgentReply, ProcessSample
from runai.hub_service.wire.schemas import DeviceShareView


def device_view(
    device_state: DeviceState, *, actor: Actor, sees: Callable[[WorkloadRecord], bool]
) -> DeviceView:
    """Return a device's view; holders are named only to callers that may see them."""
    device, holders, processes = device_state.device, device_state.holders, device_state.processes
    utilized, memory_mib = device_state.measured or (None, None)
    return DeviceView(
        device=device.index,
        uuid=device.uuid,
        name=device.name,
        memory_mib=device.memory_mib,
        simulated=device.simulated,
        healthy=device.healthy,
        fault=device.fault,
        mps=device_state.mps,
        allocated=sum(gpus for _, gpus in holders.shares) / 1000,
        utilized=utilized,
        memory_used_mib=memory_mib,
        allocations=[
            AllocationView(
                workload=record.id if sees(record) else "",
                user=record.spec.user if sees(record) else "",
                gpus=gpus / 1000,
                utilized=None if utilized is None else _busy(processes, record.id),
            )
            for record, gpus in holders.shares
        ],
        others=_other_processes(
            [p for p in processes if p.workload not in holders.workloads], actor
        ),
    )


def _busy(processes: Sequence[ProcessSample], workload: WorkloadId) -> float | None:
    """Sum the utilization of a workload's processes on the device; 0 without processes."""
    utilizations = [p.utilization for p in processes if p.workload == workload]
    known = [each for each in utilizations if each is not None]
    return sum(known) if known or not utilizations else None


def _other_processes(processes: Sequence[ProcessSample], actor: Actor) -> list[OthersView]:
    """Group processes by account; admins see all accounts, users their own."""
    by_account: dict[str, list[ProcessSample]] = {}
    for process in processes:
        is_visible = actor.admin or process.account == actor.name
        by_account.setdefault(process.account if is_visible else "", []).append(process)
    views = []
    for account, of_account in sorted(by_account.items()):
        busy = [p.utilization for p in of_account if p.utilization is not None]
        memory = [p.memory_mib for p in of_account if p.memory_mib is not None]
        views.append(
            OthersView(
                account=account,
                processes=len(of_account),
                utilized=sum(busy) if busy else None,
                memory_mib=sum(memory) if memory else None,
            )
        )
    return views


def agent_reply(
    devices: Sequence[Device],
    allocations: Sequence[Allocation],
    releasing: AbstractSet[WorkloadId],
) -> AgentReply:
    """Return the allocations that a node's agent measures and limits.

    The agent ends all programs of a workload in `releasing`.
    """
    uuids = {device.index: device.uuid for device in devices}
    return AgentReply(
        allocations=[
            _allocation(allocation, uuids, release=allocation.workload in releasing)
            for allocation in allocations
        ]
    )


def _allocation(
    allocation: Allocation, uuids: Mapping[int, str], *, release: bool
) -> AgentAllocation:
    """Return what the agent measures and limits of one worker; `release`: and ends."""
    return AgentAllocation(
        workload=allocation.workload,
        worker=allocation.worker,
        project=allocation.project,
        user=allocation.user,
        # A pod that another scheduler binds beyond the free capacity has shares beyond the node's
        # devices until its kubelet rejects it: the agent could not measure them.
        shares=[
            DeviceShareView(device=s.device, uuid=uuids[s.device], gpus=s.gpus / 1000)
            for s in allocation.shares
            if s.device in uuids
        ],
        pid=allocation.process.pid if allocation.process else None,
        created=allocation.process.created if allocation.process else None,
        limits_mib={
            uuids[share.device]: limit
            for share, limit in zip(allocation.shares, allocation.limits_mib, strict=False)
            if limit is not None and share.device in uuids
        },
        is_server=allocation.is_server,
        release=release,
        cgroup=allocation.cgroup,
        checkpoint_dir=allocation.checkpoint_dir,
    )
