"""Show a device: who holds it, how busy it is, and what else runs there.

Pure. Processes of nobody, or of a workload that does not hold the device, are never left out: they
explain why a device is full. Called by `views`.
"""

from collections.abc import Callable, Sequence

from runai.hub_service.api.device_schemas import AllocationView, DeviceView, OthersView
from runai.hub_service.api.permissions import Actor
from runai.hub_service.api.reports import ProcessSample
from runai.hub_service.api.world import Seat
from runai.hub_service.clusters.records import WorkloadId, WorkloadRecord


def device_view(seat: Seat, *, actor: Actor, sees: Callable[[WorkloadRecord], bool]) -> DeviceView:
    """Show a device; whoever holds it has a name only for those who may see them."""
    device, on, processes = seat.device, seat.on, seat.running
    utilized, memory_mib = seat.measured or (None, None)
    return DeviceView(
        device=device.index,
        uuid=device.uuid,
        name=device.name,
        memory_mib=device.memory_mib,
        simulated=device.simulated,
        healthy=device.healthy,
        fault=device.fault,
        mps=seat.mps,
        allocated=sum(gpus for _, gpus in on.shares) / 1000,
        utilized=utilized,
        memory_used_mib=memory_mib,
        allocations=[
            AllocationView(
                workload=record.id if sees(record) else "",
                user=record.spec.user if sees(record) else "",
                gpus=gpus / 1000,
                utilized=None if utilized is None else _busy(processes, record.id),
            )
            for record, gpus in on.shares
        ],
        others=_others([p for p in processes if p.workload not in on.workloads], actor),
    )


def _busy(processes: Sequence[ProcessSample], workload: WorkloadId) -> float | None:
    """Add up what a workload's processes on the device keep busy; none keep nothing busy."""
    found = [p.utilization for p in processes if p.workload == workload]
    known = [each for each in found if each is not None]
    return sum(known) if known or not found else None


def _others(processes: Sequence[ProcessSample], actor: Actor) -> list[OthersView]:
    """Add processes up by account; who that is, admins are told, and everybody of themselves."""
    by_account: dict[str, list[ProcessSample]] = {}
    for process in processes:
        known = actor.admin or process.account == actor.name
        by_account.setdefault(process.account if known else "", []).append(process)
    views = []
    for account, found in sorted(by_account.items()):
        busy = [p.utilization for p in found if p.utilization is not None]
        memory = [p.memory_mib for p in found if p.memory_mib is not None]
        views.append(
            OthersView(
                account=account,
                processes=len(found),
                utilized=sum(busy) if busy else None,
                memory_mib=sum(memory) if memory else None,
            )
        )
    return views
