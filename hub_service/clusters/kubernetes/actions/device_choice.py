"""Find the devices that parts are to be on: shared already, or to be reserved first.

A pod is bound only when the devices of all that start with it are known: node and devices stand in
one request, and a gang is bound together. Whoever gets a whole device waits until the reservation
that was on it has gone. Makes no call itself: they are `acting`'s. Used by `plans`.
"""

from collections.abc import Mapping
from functools import partial
from itertools import count

from runai.hub_service.clusters.kubernetes.actions.bind_and_evict import Acting, Call
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import (
    Guard,
    Slot,
    reservation_name,
)
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import Grant
from runai.hub_service.scheduler.model.snapshot import Start


class DeviceFinding:
    """The devices of one plan's starts."""

    def __init__(self, guards: Mapping[Slot, Guard], acting: Acting) -> None:
        """Begin with what keeps shared devices now."""
        self._guards = dict(guards)
        self._names = {guard.name for guard in guards.values()}
        self._acting = acting
        self.grants: dict[str, Grant] = {}
        """What workers may be bound to, by name."""
        self.calls: dict[str, list[Call]] = {}
        """What must be called first, by the worker for whom."""
        self.unready: set[str] = set()
        """Workloads that must wait for a device."""

    def find(self, decision: Start, pod: Pod) -> None:
        """Find the devices of one worker that starts."""
        slots = [(decision.node, share.device) for share in decision.devices]
        if pod.part is None:
            if any(slot in self._guards for slot in slots):
                self.unready.add(decision.workload)
            return
        for position, slot in enumerate(slots):
            if slot not in self._guards:
                name = self._new_name(decision.node, f"{pod.uid}/{position}")
                self._guards[slot] = Guard(name, None)
                call = partial(self._acting.reserve, decision, name, slot)
                self.calls.setdefault(decision.worker, []).append(call)
        found = [self._guards[slot] for slot in slots]
        if not all(guard.device for guard in found):
            self.unready.add(decision.workload)
            return
        self.grants[decision.worker] = Grant(
            tuple(guard.name for guard in found),
            tuple(guard.device for guard in found),
            tuple(share.gpus for share in decision.devices),
        )

    def _new_name(self, node: str, group: str) -> str:
        """Name a reservation so that it is the same one when this is decided again.

        One of that name may keep another device by now: whoever it was made for never came, and
        others share it.
        """
        for number in count():
            name = reservation_name(node, f"{group}/{number}")
            if name not in self._names:
                self._names.add(name)
                return name
        raise AssertionError("names are endless")
