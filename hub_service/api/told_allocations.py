"""What agents are told of the allocations of their nodes; each drawn anew only when it is another.

Hundreds of them are told each second and few have changed: to draw and check them all took longer
than to send them. Kept by `platform`, asked by the route of the samples.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from runai.hub_service.agent.devices import Device
from runai.hub_service.api.reports import AgentAllocation, AgentReply
from runai.hub_service.api.schemas import DeviceShareView
from runai.hub_service.clusters.records import Allocation, WorkloadId


@dataclass(slots=True)
class _OfNode:
    """What the agent of a node was told last."""

    uuids: Mapping[int, str] = field(default_factory=dict)
    told: dict[str, tuple[Allocation, bool, AgentAllocation]] = field(default_factory=dict)
    """By worker: what it was drawn of, and the answer's part."""


class ToldAllocations:
    """The last answer to each node's agent."""

    def __init__(self) -> None:
        """Begin empty."""
        self._nodes: dict[str, _OfNode] = {}

    def reply(
        self,
        node: str,
        devices: Sequence[Device],
        allocations: Sequence[Allocation],
        releasing: AbstractSet[WorkloadId],
    ) -> AgentReply:
        """Return what a node's agent is to measure; of those that release, no program may stay."""
        uuids = {device.index: device.uuid for device in devices}
        before = self._nodes.get(node, _OfNode())
        known = before.told if before.uuids == uuids else {}
        now = self._nodes[node] = _OfNode(uuids)
        told: list[AgentAllocation] = []
        for held in allocations:
            release = held.workload in releasing
            one = known.get(held.worker)
            if one is None or one[1] is not release or not (one[0] is held or one[0] == held):
                one = held, release, _allocation(held, uuids, release=release)
            now.told[held.worker] = one
            told.append(one[2])
        return AgentReply(allocations=told)


def _allocation(held: Allocation, uuids: Mapping[int, str], *, release: bool) -> AgentAllocation:
    return AgentAllocation(
        workload=held.workload,
        worker=held.worker,
        project=held.project,
        user=held.user,
        # A pod that others put onto a node, past all that is free, is beyond its devices until its
        # kubelet turns it away: no agent can measure what is not there.
        shares=[
            DeviceShareView(device=s.device, uuid=uuids[s.device], gpus=s.gpus / 1000)
            for s in held.shares
            if s.device in uuids
        ],
        pid=held.process.pid if held.process else None,
        created=held.process.created if held.process else None,
        limits_mib={
            uuids[share.device]: limit
            for share, limit in zip(held.shares, held.limits_mib, strict=False)
            if limit is not None and share.device in uuids
        },
        is_server=held.is_server,
        release=release,
        cgroup=held.cgroup,
        checkpoint_dir=held.checkpoint_dir,
    )
