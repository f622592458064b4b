"""Reconciler of reservation pods: one per shared device, deleted when no pod shares it.

It handles every state between two API calls: a reservation pod is lost, rejected by a kubelet,
given another device than before, or none. All state can be rebuilt from the pods.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from runai.hub_service.clusters.kubernetes.actions.node_backoff import NodeBackoff
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.events.event_queue import EventQueue
from runai.hub_service.clusters.kubernetes.events.pod_conditions import binding, eviction, pod_path
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import (
    IMAGE,
    PODS,
    Slot,
    device_annotations,
    device_reservations,
    manifest,
    unreserved_devices,
)
from runai.hub_service.clusters.kubernetes.objects.core_objects import RESERVATIONS, Pod, read_pod
from runai.hub_service.clusters.kubernetes.snapshot.assumed_state import AssumedState, Bound
from runai.hub_service.clusters.kubernetes.snapshot.device_ids import DeviceIds
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import NominatedPlacement
from runai.hub_service.model.cluster import NodeReport
from runai.hub_service.model.device import Device

DEVICE_KNOWN_WITHIN_S = 60.0
"""Time for which a reservation pod may be bound before its device is reported."""
TROUBLE_LASTS_S = 30.0
"""Time after a refused creation for which waiting pods show the refusal as their reason."""
_FINAL_STATUSES = (400, 403, 404, 422)
"""HTTP statuses that a retry does not change."""


@dataclass(slots=True)
class _ReconcileInput:
    """Input of one reconciliation: pods, their devices, and pods that wait for devices."""

    pods: Sequence[Pod]
    device_numbers: Mapping[str, tuple[int, ...]]
    nodes: Collection[str]
    nominations: dict[str, NominatedPlacement]
    waiting: Mapping[str, Pod]
    reservations: Sequence[Pod] = field(init=False)

    def __post_init__(self) -> None:
        self.reservations = [pod for pod in self.pods if pod.is_reservation]


class ReservationReconciler:
    """The reservation pods of one cluster."""

    def __init__(
        self,
        api: Api,
        assumed: AssumedState,
        device_ids: DeviceIds,
        backoff: NodeBackoff,
        events: EventQueue,
        *,
        apply: Callable[[Object], None],
        has_namespace: Callable[[], bool],
        clock: Callable[[], float],
        image: str = IMAGE,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Begin without reports; `apply` receives each reservation pod that a call changes.

        `events` about pods are sent in the background, so a failure there delays nothing.
        `has_namespace` returns True if the namespace of reservation pods exists.
        """
        self._api = api
        self._assumed = assumed
        self._device_ids = device_ids
        self._apply = apply
        self._has_namespace = has_namespace
        self._clock = clock
        self._manifest = partial(manifest, image=image, labels=labels)
        self._pending: dict[str, Slot] = {}
        """Devices of reservations that may not be bound yet, by name."""
        self._unreported_nodes: set[str] = set()
        """Nodes with reservations of devices that are not reported yet."""
        self._first_seen: dict[str, float] = {}
        """Time at which reservation pods were first seen, by UID."""
        self._reports: dict[str, NodeReport] = {}
        self._faults: dict[str, Mapping[str, str]] = {}
        """Faults of devices by UUID, by node."""
        self._backoff = backoff
        self._events = events
        self._warned: set[tuple[str, str, str]] = set()
        """Warnings sent: pod UID, reason and device UUID."""
        self._abandoned: set[str] = set()
        """UIDs of reservations that failed and are being deleted."""
        self.must_retry = False
        """True if a call of the last `reconcile` failed and must be retried."""
        self._last_refusal: tuple[float, str] = 0.0, ""
        """Time and reason of the last refused creation; creation is retried."""

    @property
    def unavailable_reason(self) -> str:
        """Return why no reservation pod can be created until an admin fixes it, or ""."""
        at, why = self._last_refusal
        return why if self._clock() < at + TROUBLE_LASTS_S else ""

    def store_report(self, node: str, report: NodeReport) -> bool:
        """Store an agent's report about its node; return True if a cycle must read it.

        A report older than the stored one is ignored, unless our clock was set back since.
        """
        before = self._reports.get(node)
        if before is not None and report.at < before.at <= self._clock():
            return False
        self._reports[node] = report
        if before is None or (before.pods, before.devices) != (report.pods, report.devices):
            return True
        return self._awaits_report(node)

    def devices_of(self, pod: Pod) -> tuple[str, ...]:
        """Return the UUIDs of a pod's devices, as far as known."""
        if pod.is_reservation:
            return (pod.device,) if pod.device else ()
        if pod.grant is not None:
            return pod.grant.devices
        report = self._reports.get(pod.node)
        return () if report is None else report.pods.get(pod.key, ())

    def devices_on(self, node: str) -> Sequence[Device]:
        """Return the devices of a node as its agent reports them, with their faults."""
        report, faults = self._reports.get(node), self._faults.get(node, {})
        devices = () if report is None else report.devices
        return [replace(device, fault=faults.get(device.uuid, "")) for device in devices]

    def nodes_in_backoff(self, pods: Iterable[Pod]) -> set[str]:
        """Return the nodes that must get no new pods on their devices.

        If a reservation is lost, the kubelet takes its shared device for free and could give it to
        the next pod.
        """
        return self._backoff.in_backoff() | {pod.node for pod, *_ in unreserved_devices(pods)}

    def store_faults(self, node: str, faults: Mapping[str, str]) -> bool:
        """Store the faults of a node's devices, by UUID; return True if they are new."""
        before = self._faults.get(node, {})
        self._faults[node] = {uuid: why for uuid, why in {**before, **faults}.items() if why}
        return before != self._faults[node]

    def broken_devices(
        self, pods: Iterable[Pod], device_numbers: Mapping[str, tuple[int, ...]]
    ) -> dict[str, set[int]]:
        """Return the shared devices with a fault, by node; they get no further pods."""
        broken: dict[str, set[int]] = {}
        for (node, number), reservation in device_reservations(pods, device_numbers).items():
            if reservation.device in self._faults.get(node, {}):
                broken.setdefault(node, set()).add(number)
        return broken

    async def reserve(self, name: str, slot: Slot) -> None:
        """Create a reservation pod and bind it, unless that is done already.

        Raises:
            ApiError: it cannot be created now.
        """
        node = slot[0]
        self._pending[name] = slot
        try:
            found = await self._api.create(PODS, self._manifest(name, node))
        except ApiError as error:
            if error.status != 409:
                self._save_refusal(name, error)
                raise
            found = await self._api.get(f"{PODS}/{name}")
        self._last_refusal = 0.0, ""
        self._apply(found)
        pod = read_pod(found)
        self._first_seen.setdefault(pod.uid, self._clock())
        if pod.deleted is not None or pod.is_finished:
            return
        if not pod.node:
            await self._api.create(pod_path(pod, "binding"), binding(pod, node))
            self._assumed.bound[pod.uid] = Bound(node, self._clock())
        self._device_ids.assign(name, node, (slot[1],))

    async def reconcile(
        self,
        pods: Sequence[Pod],
        device_numbers: Mapping[str, tuple[int, ...]],
        nodes: Collection[str],
        nominations: dict[str, NominatedPlacement],
        waiting: Mapping[str, Pod],
    ) -> None:
        """Reconcile the reservation pods with the shared devices; may drop `nominations`.

        `waiting` are the pods with nominated devices, by place. Failed calls are retried later.
        """
        self.must_retry = False
        inputs = _ReconcileInput(pods, device_numbers, nodes, nominations, waiting)
        self._prune(inputs)
        needed = self._needed_reservations(inputs)
        for pod in inputs.reservations:
            if pod.deleted is None:
                await self._attempt(self._reconcile_pod(pod, inputs, is_needed=pod.name in needed))
        for pod, name, device in unreserved_devices(pods):
            await self._attempt(self._restore(pod, name, device, inputs))
        for pod in pods:
            if pod.grant is not None and pod.uses_node:
                self._warn_of_faults(pod, pod.grant.devices)

    # -- inside ------------------------------------------------------------------------------------

    async def _attempt(self, work: Awaitable[None]) -> None:
        """Await the work; set `must_retry` if it fails and no informer will report why."""
        try:
            await work
        except ApiError as error:
            # 404, 409: the pod is gone, or was changed meanwhile.
            self.must_retry |= error.status not in (404, 409)

    async def _reconcile_pod(self, pod: Pod, inputs: _ReconcileInput, *, is_needed: bool) -> None:
        """Delete a reservation pod that failed or is not needed; else store which device it has."""
        if pod.is_finished:
            await self._abandon(pod, pod.why or "it ended", inputs)
        elif not is_needed:
            await self._delete(pod)
        elif (devices := self._current_devices(pod)) and not _is_one_device(devices):
            text = f"it was given {', '.join(devices)}, and whole single devices alone are shared"
            await self._abandon(pod, text, inputs)
        elif pod.device:
            self._backoff.record_success(pod.node, pod.bound or 0)
        elif not pod.node:  # `reserve` binds it
            return
        elif devices:
            sizes = (d.memory_mib for d in self.devices_on(pod.node) if d.uuid == devices[0])
            patch = device_annotations(pod, devices[0], next(sizes, 0))
            self._apply(await self._api.patch(pod_path(pod), patch))
        elif self._clock() - (pod.bound or 0) > DEVICE_KNOWN_WITHIN_S:
            seconds = f"{DEVICE_KNOWN_WITHIN_S:.0f} s"
            await self._abandon(pod, f"nobody said which device it has within {seconds}", inputs)

    async def _abandon(self, pod: Pod, why: str, inputs: _ReconcileInput) -> None:
        """Delete a failed reservation and nominations to its device; back off from its node."""
        if pod.uid not in self._abandoned:  # the first deletion may fail
            self._abandoned.add(pod.uid)
            self._backoff.record_rejection(pod.node)
        numbers = inputs.device_numbers.get(pod.uid)
        number = self._pending_device(pod.name) if numbers is None else numbers[0]
        text = f"{pod.node} gave no device to share ({pod.name}): {why}"
        for place, nominated in list(inputs.nominations.items()):
            if nominated.is_shared and nominated.node == pod.node and number in nominated.devices:
                del inputs.nominations[place]
                if (waiter := inputs.waiting.get(place)) is not None and waiter.is_made:
                    self._events.enqueue(waiter, "NoDevice", text, is_warning=True)
        await self._delete(pod)

    async def _restore(self, pod: Pod, name: str, device: str, inputs: _ReconcileInput) -> None:
        """Recreate the lost reservation `name` of a sharing pod, or tell the pod why that fails.

        The pod is evicted if another pod was given its device.
        """
        reservation = next((r for r in inputs.reservations if r.name == name), None)
        owner = self._other_owner(pod, device, inputs)
        if owner is not None:
            text = f"its GPU {device} was given to {owner.key}, since reservation {name} was lost"
            self._warn(pod, "DeviceLost", device, text, is_ending=True)
            await self._api.create(pod_path(pod, "eviction"), eviction(pod), retry=False)
            self._assumed.evicted[pod.uid] = self._clock()
        elif reservation is None or not reservation.node:
            if pod.node in inputs.nodes and pod.node not in self._backoff.in_backoff():
                assert pod.grant is not None
                number = inputs.device_numbers[pod.uid][pod.grant.reservations.index(name)]
                await self.reserve(name, (pod.node, number))
        elif reservation.device and reservation.deleted is None:
            text = (
                f"its GPU {device} is not reserved any more: {name} was given {reservation.device}"
            )
            self._warn(pod, "DeviceUnreserved", device, text)

    def _warn_of_faults(self, pod: Pod, devices: Iterable[str]) -> None:
        faults = self._faults.get(pod.node, {})
        for device in devices:
            if device in faults:
                text = f"its GPU {device} is broken: {faults[device]}"
                self._warn(pod, "DeviceBroken", device, text)

    def _warn(
        self, pod: Pod, reason: str, device: str, text: str, *, is_ending: bool = False
    ) -> None:
        """Send a pod an Event about its device, once."""
        if (pod.uid, reason, device) not in self._warned:
            self._warned.add((pod.uid, reason, device))
            self._events.enqueue(pod, reason, text, is_ending=is_ending, is_warning=True)

    def _save_refusal(self, name: str, error: ApiError) -> None:
        """Store why the API server refuses new reservation pods, if a retry cannot help."""
        if not self._has_namespace():
            # The Role was deleted with the namespace, so the answer is only "forbidden".
            why = f"namespace {RESERVATIONS} is not there, helm upgrade makes it again"
            self._last_refusal = self._clock(), why
        elif error.status in _FINAL_STATUSES:
            # Without the pod's name the text is the same for all pods, so it is sent only once.
            self._last_refusal = self._clock(), error.message.replace(f' "{name}"', "")

    async def _delete(self, pod: Pod) -> None:
        await self._api.delete(pod_path(pod), {"preconditions": {"uid": pod.uid}})
        self._assumed.evicted[pod.uid] = self._clock()

    def _needed_reservations(self, inputs: _ReconcileInput) -> set[str]:
        """Return the names of reservations that pods share or are about to share."""
        promised = {
            (nomination.node, number)
            for nomination in inputs.nominations.values()
            if nomination.is_shared
            for number in nomination.devices
        }
        by_slot = device_reservations(inputs.pods, inputs.device_numbers)
        shared = {
            name
            for pod in inputs.pods
            if pod.grant is not None and pod.uses_node
            for name in pod.grant.reservations
        }
        promised_names = {by_slot[slot].name for slot in promised if slot in by_slot}
        pending = {name for name, slot in self._pending.items() if slot in promised}
        return shared | promised_names | pending

    def _current_devices(self, pod: Pod) -> tuple[str, ...]:
        """Return the devices of a reservation pod, from its annotation or from its node's agent.

        Agents report pods by name: a report from before this pod existed is about its predecessor.
        """
        if pod.device:
            return (pod.device,)
        report = self._reports.get(pod.node)
        if report is None or report.at <= self._first_seen[pod.uid]:
            return ()
        return report.pods.get(pod.key, ())

    def _other_owner(self, pod: Pod, device: str, inputs: _ReconcileInput) -> Pod | None:
        """Return the pod that was given a shared device as its own, or None."""
        return next(
            (
                other
                for other in inputs.pods
                if other.node == pod.node
                and other.gpus
                and not other.is_reservation
                and other.uses_node
                and device in self.devices_of(other)
            ),
            None,
        )

    def _awaits_report(self, node: str) -> bool:
        """Return True if a reservation on the node has no reported device yet."""
        return node in self._unreported_nodes or any(s[0] == node for s in self._pending.values())

    def _pending_device(self, name: str) -> int:
        """Return the device number of a reservation that may not be bound yet; -1: none."""
        return self._pending.get(name, ("", -1))[1]

    def _prune(self, inputs: _ReconcileInput) -> None:
        """Drop state about pods, nodes and nominations that are gone; note new reservations."""
        now = self._clock()
        uids = {pod.uid for pod in inputs.pods}
        reservations = inputs.reservations
        self._first_seen = {pod.uid: self._first_seen.get(pod.uid, now) for pod in reservations}
        self._unreported_nodes = {p.node for p in reservations if p.uses_node and not p.device}
        reported = {pod.name for pod in reservations if pod.device}
        promised = {(p.node, n) for p in inputs.nominations.values() for n in p.devices}
        self._pending = {
            name: slot
            for name, slot in self._pending.items()
            if name not in reported and slot in promised
        }
        self._warned = {warned for warned in self._warned if warned[0] in uids}
        self._abandoned &= uids
        self._faults = {node: f for node, f in self._faults.items() if node in inputs.nodes}
        self._reports = {node: r for node, r in self._reports.items() if node in inputs.nodes}


def _is_one_device(devices: Sequence[str]) -> bool:
    """Return True for exactly one whole device; MIG devices are not shared."""
    return len(devices) == 1 and not devices[0].startswith("MIG-")
