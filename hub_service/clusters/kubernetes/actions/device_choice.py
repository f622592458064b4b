"""Choice of devices for GPU shares: already shared ones, or new reservations.

A pod is bound only when the devices of all pods that start with it are known: node and devices are
in one request, and a gang is bound together. A pod with a whole device waits until the reservation
on that device is deleted.
"""

from collections.abc import Mapping
from functools import partial
from itertools import count

from runai.hub_service.clusters.kubernetes.actions.decision_executor import (
    ApiCall,
    DecisionExecutor,
)
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import (
    DeviceReservation,
    Slot,
    reservation_name,
)
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import BoundDevices
from runai.hub_service.scheduler.model.snapshot import Start


class DeviceChoice:
    """Device choice for the starts of one plan."""

    def __init__(
        self, reservations: Mapping[Slot, DeviceReservation], executor: DecisionExecutor
    ) -> None:
        """Begin with the current reservations, by device."""
        self._reservations = dict(reservations)
        self._names = {guard.name for guard in reservations.values()}
        self._executor = executor
        self.grants: dict[str, BoundDevices] = {}
        """Device shares to bind workers to, by worker name."""
        self.calls: dict[str, list[ApiCall]] = {}
        """API calls needed before a worker is bound, by worker name."""
        self.unready: set[str] = set()
        """Workloads that must wait for a device."""

    def choose(self, decision: Start, pod: Pod) -> None:
        """Choose the devices of one worker that starts."""
        slots = [(decision.node, share.device) for share in decision.devices]
        if pod.device_request is None:
            if any(slot in self._reservations for slot in slots):
                self.unready.add(decision.workload)
            return
        for position, slot in enumerate(slots):
            if slot not in self._reservations:
                name = self._new_name(decision.node, f"{pod.uid}/{position}")
                self._reservations[slot] = DeviceReservation(name, None)
                call = partial(self._executor.reserve, decision, name, slot)
                self.calls.setdefault(decision.worker, []).append(call)
        found = [self._reservations[slot] for slot in slots]
        if not all(guard.device for guard in found):
            self.unready.add(decision.workload)
            return
        self.grants[decision.worker] = BoundDevices(
            tuple(guard.name for guard in found),
            tuple(guard.device for guard in found),
            tuple(share.gpus for share in decision.devices),
        )

    def _new_name(self, node: str, group: str) -> str:
        """Return a reservation name that stays the same if the decision is repeated.

        A reservation of that name may hold another device by now: its pod was never bound, and
        other pods share it. Then the next number is used.
        """
        for number in count():
            name = reservation_name(node, f"{group}/{number}")
            if name not in self._names:
                self._names.add(name)
                return name
        raise AssertionError("names are endless")
