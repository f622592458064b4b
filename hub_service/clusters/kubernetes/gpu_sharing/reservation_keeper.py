"""Keep the reservation pods: made when somebody is to share a device, gone when nobody does.

Everything that may happen to them between two calls of the API is met here: they are lost, refused
by a kubelet, given another device than before, or stay without one. Nothing here need be
remembered: what pods say of themselves is enough. Owned by `scheduling`, which calls `settle`
before each snapshot; `plans` asks for new ones.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from runai.hub_service.clusters.kubernetes.actions.node_backoff import Refusals
from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError, Object
from runai.hub_service.clusters.kubernetes.events.event_queue import EventQueue
from runai.hub_service.clusters.kubernetes.events.pod_conditions import binding, eviction, pod_path
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import (
    IMAGE,
    PODS,
    Slot,
    device_note,
    guards,
    manifest,
    unguarded,
)
from runai.hub_service.clusters.kubernetes.objects.core_objects import RESERVATIONS, Pod, read_pod
from runai.hub_service.clusters.kubernetes.snapshot.assumed_state import Bound, OurDoing
from runai.hub_service.clusters.kubernetes.snapshot.device_ids import Slots
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import Promise
from runai.hub_service.model.cluster import Seen
from runai.hub_service.model.device import Device

DEVICE_KNOWN_WITHIN_S = 60.0
"""How long a reservation pod may be bound without anybody saying which device it has."""
TROUBLE_LASTS_S = 30.0
"""So long after it was last refused to make a pod, that is why others wait, too."""
_REFUSED = (400, 403, 404, 422)
"""What the API server says again to whoever asks the same again."""


@dataclass(slots=True)
class _World:
    """What is settled: pods as they are, their devices, and who waits for some."""

    pods: Sequence[Pod]
    slots: Mapping[str, tuple[int, ...]]
    nodes: Collection[str]
    promises: dict[str, Promise]
    waiting: Mapping[str, Pod]
    reservations: Sequence[Pod] = field(init=False)

    def __post_init__(self) -> None:
        self.reservations = [pod for pod in self.pods if pod.is_reservation]


class Sharing:
    """The reservation pods of one cluster."""

    def __init__(
        self,
        api: Api,
        doing: OurDoing,
        slots: Slots,
        refusals: Refusals,
        events: EventQueue,
        *,
        take: Callable[[Object], None],
        is_there: Callable[[], bool],
        clock: Callable[[], float],
        image: str = IMAGE,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Begin with what the API server has; `take` is told what it answers.

        Pods are told by `events`: whether they can be does not hold up what is done for them.
        `is_there` says whether there is a namespace for reservation pods.
        """
        self._api = api
        self._doing = doing
        self._slots = slots
        self._take = take
        self._is_there = is_there
        self._clock = clock
        self._manifest = partial(manifest, image=image, labels=labels)
        self._made: dict[str, Slot] = {}
        """For which device reservations were made that may not be bound yet."""
        self._unknown: set[str] = set()
        """Nodes with reservations that have devices which nobody has named yet."""
        self._first_seen: dict[str, float] = {}
        """Since when we know reservation pods, by UID."""
        self._agents: dict[str, Seen] = {}
        self._faults: dict[str, Mapping[str, str]] = {}
        self._refusals = refusals
        self._events = events
        self._warned: set[tuple[str, str, str]] = set()
        """Who was told what of which device: UIDs, words and UUIDs."""
        self._given_up: set[str] = set()
        """UIDs of reservations that came to nothing, as is known."""
        self.failed = False
        """Whether something is to be tried again."""
        self._refused: tuple[float, str] = 0.0, ""
        """When the API server let us make no reservation pod, and why: it is asked again."""

    @property
    def trouble(self) -> str:
        """Why no reservation pod can be made until somebody mends it, or ""."""
        at, why = self._refused
        return why if self._clock() < at + TROUBLE_LASTS_S else ""

    def learn(self, node: str, seen: Seen) -> bool:
        """Take note of what a node's agent has seen; tell whether that is new.

        What is older than what we know says nothing, unless our clock was set back since.
        """
        before = self._agents.get(node)
        if before is not None and seen.at < before.at <= self._clock():
            return False
        self._agents[node] = seen
        if before is None or (before.pods, before.devices) != (seen.pods, seen.devices):
            return True
        return self._awaits(node)

    def devices_of(self, pod: Pod) -> tuple[str, ...]:
        """Return the UUIDs of a pod's devices, as far as somebody knows them."""
        if pod.is_reservation:
            return (pod.device,) if pod.device else ()
        if pod.grant is not None:
            return pod.grant.devices
        seen = self._agents.get(pod.node)
        return () if seen is None else seen.pods.get(pod.key, ())

    def devices_on(self, node: str) -> Sequence[Device]:
        """Return the devices of a node as its agent has counted them, with their faults."""
        seen, faults = self._agents.get(node), self._faults.get(node, {})
        counted = () if seen is None else seen.devices
        return [replace(device, fault=faults.get(device.uuid, "")) for device in counted]

    def closed(self, pods: Iterable[Pod]) -> set[str]:
        """Return the nodes whose devices nobody new may have.

        Where a reservation is lost, its device looks free to the kubelet and is not: whoever starts
        there may be given it.
        """
        return self._refusals.closed() | {pod.node for pod, _name, _device in unguarded(pods)}

    def learn_faults(self, node: str, faults: Mapping[str, str]) -> bool:
        """Take note of why devices of a node are broken, by UUID; tell whether that is new."""
        before = self._faults.get(node, {})
        self._faults[node] = {uuid: why for uuid, why in {**before, **faults}.items() if why}
        return before != self._faults[node]

    def broken(
        self, pods: Iterable[Pod], slots: Mapping[str, tuple[int, ...]]
    ) -> dict[str, set[int]]:
        """Return the devices that nobody else may share: broken ones, by node."""
        found: dict[str, set[int]] = {}
        for (node, number), guard in guards(pods, slots).items():
            if guard.device in self._faults.get(node, {}):
                found.setdefault(node, set()).add(number)
        return found

    async def reserve(self, name: str, slot: Slot) -> None:
        """Make a reservation pod and bind it, if that is not done already.

        Raises:
            ApiError: it cannot be made now.
        """
        node = slot[0]
        self._made[name] = slot
        try:
            found = await self._api.create(PODS, self._manifest(name, node))
        except ApiError as error:
            if error.status != 409:
                self._note(name, error)
                raise
            found = await self._api.get(f"{PODS}/{name}")
        self._refused = 0.0, ""
        self._take(found)
        pod = read_pod(found)
        self._first_seen.setdefault(pod.uid, self._clock())
        if pod.deleted is not None or pod.is_finished:
            return
        if not pod.node:
            await self._api.create(pod_path(pod, "binding"), binding(pod, node))
            self._doing.bound[pod.uid] = Bound(node, self._clock())
        self._slots.hold(name, node, (slot[1],))

    async def settle(
        self,
        pods: Sequence[Pod],
        slots: Mapping[str, tuple[int, ...]],
        nodes: Collection[str],
        promises: dict[str, Promise],
        waiting: Mapping[str, Pod],
    ) -> None:
        """Bring the reservation pods to what those who share need; `promises` may be given up.

        `waiting` are the pods that have promises, by place. What cannot be done now is done later.
        """
        self.failed = False
        world = _World(pods, slots, nodes, promises, waiting)
        self._forget(world)
        wanted = self._wanted(world)
        for pod in world.reservations:
            if pod.deleted is None:
                await self._try(self._look_after(pod, world, is_wanted=pod.name in wanted))
        for pod, name, device in unguarded(pods):
            await self._try(self._mend(pod, name, device, world))
        for pod in pods:
            if pod.grant is not None and pod.holds:
                self._tell_of_faults(pod, pod.grant.devices)

    # -- inside ------------------------------------------------------------------------------------

    async def _try(self, work: Awaitable[None]) -> None:
        try:
            await work
        except ApiError as error:
            # Gone, or changed meanwhile: the watch says so. All else is asked again.
            self.failed |= error.status not in (404, 409)

    async def _look_after(self, pod: Pod, world: _World, *, is_wanted: bool) -> None:
        if pod.is_finished:
            await self._give_up(pod, pod.why or "it ended", world)
        elif not is_wanted:
            await self._delete(pod)
        elif (devices := self._given(pod)) and not _is_one_device(devices):
            text = f"it was given {', '.join(devices)}, and whole single devices alone are shared"
            await self._give_up(pod, text, world)
        elif pod.device:
            self._refusals.trust(pod.node, pod.bound or 0)
        elif not pod.node:
            return
        elif devices:
            found = (d.memory_mib for d in self.devices_on(pod.node) if d.uuid == devices[0])
            note = device_note(pod, devices[0], next(found, 0))
            self._take(await self._api.patch(pod_path(pod), note))
        elif self._clock() - (pod.bound or 0) > DEVICE_KNOWN_WITHIN_S:
            seconds = f"{DEVICE_KNOWN_WITHIN_S:.0f} s"
            await self._give_up(pod, f"nobody said which device it has within {seconds}", world)

    async def _give_up(self, pod: Pod, why: str, world: _World) -> None:
        """Delete a reservation that came to nothing, and leave its node alone for a while."""
        if pod.uid not in self._given_up:  # it may not be deleted at the first try
            self._given_up.add(pod.uid)
            self._refusals.note(pod.node)
        number = world.slots[pod.uid][0] if pod.uid in world.slots else self._made_for(pod.name)
        text = f"{pod.node} gave no device to share ({pod.name}): {why}"
        for place, promise in list(world.promises.items()):
            if promise.is_part and promise.node == pod.node and number in promise.devices:
                del world.promises[place]
                if (waiter := world.waiting.get(place)) is not None and waiter.is_made:
                    self._events.tell(waiter, "NoDevice", text, bad=True)
        await self._delete(pod)

    async def _mend(self, pod: Pod, name: str, device: str, world: _World) -> None:
        """Reserve again a device whose reservation was lost, or say that it is not to be had."""
        kept = next((r for r in world.reservations if r.name == name), None)
        taker = self._taker(pod, device, world)
        if taker is not None:
            text = f"its GPU {device} was given to {taker.key}, since reservation {name} was lost"
            self._warn(pod, "DeviceLost", device, text, leaves=True)
            await self._api.create(pod_path(pod, "eviction"), eviction(pod), retry=False)
            self._doing.evicted[pod.uid] = self._clock()
        elif kept is None or not kept.node:
            if pod.node in world.nodes and pod.node not in self._refusals.closed():
                assert pod.grant is not None
                number = world.slots[pod.uid][pod.grant.reservations.index(name)]
                await self.reserve(name, (pod.node, number))
        elif kept.device and kept.deleted is None:
            text = f"its GPU {device} is not reserved any more: {name} was given {kept.device}"
            self._warn(pod, "DeviceUnreserved", device, text)

    def _tell_of_faults(self, pod: Pod, devices: Iterable[str]) -> None:
        faults = self._faults.get(pod.node, {})
        for device in devices:
            if device in faults:
                text = f"its GPU {device} is broken: {faults[device]}"
                self._warn(pod, "DeviceBroken", device, text)

    def _warn(self, pod: Pod, word: str, device: str, text: str, *, leaves: bool = False) -> None:
        """Tell a pod something of its device, once."""
        if (pod.uid, word, device) not in self._warned:
            self._warned.add((pod.uid, word, device))
            self._events.tell(pod, word, text, leaves=leaves, bad=True)

    def _note(self, name: str, error: ApiError) -> None:
        """Keep why the API server lets us make no pod, where that does not pass by itself."""
        if not self._is_there():
            # It is refused for want of a right, which went with the namespace.
            why = f"namespace {RESERVATIONS} is not there, helm upgrade makes it again"
            self._refused = self._clock(), why
        elif error.status in _REFUSED:
            # The same for whichever pod: who is told does not have to be told again.
            self._refused = self._clock(), error.message.replace(f' "{name}"', "")

    async def _delete(self, pod: Pod) -> None:
        await self._api.delete(pod_path(pod), {"preconditions": {"uid": pod.uid}})
        self._doing.evicted[pod.uid] = self._clock()

    def _wanted(self, world: _World) -> set[str]:
        """Return the names of reservations that somebody shares, or is about to."""
        promised = {
            (promise.node, number)
            for promise in world.promises.values()
            if promise.is_part
            for number in promise.devices
        }
        kept = guards(world.pods, world.slots)
        shared = {
            name
            for pod in world.pods
            if pod.grant is not None and pod.holds
            for name in pod.grant.reservations
        }
        awaited = {guard.name for slot, guard in kept.items() if slot in promised}
        made = {name for name, slot in self._made.items() if slot in promised}
        return shared | awaited | made

    def _given(self, pod: Pod) -> tuple[str, ...]:
        """Return what a reservation pod has got, as it says itself, or as an agent does.

        Agents know pods by name: what was read before this pod was there, is of an earlier one.
        """
        if pod.device:
            return (pod.device,)
        seen = self._agents.get(pod.node)
        if seen is None or seen.at <= self._first_seen[pod.uid]:
            return ()
        return seen.pods.get(pod.key, ())

    def _taker(self, pod: Pod, device: str, world: _World) -> Pod | None:
        """Return who was given a device for its own that somebody shares."""
        return next(
            (
                other
                for other in world.pods
                if other.node == pod.node
                and other.gpus
                and not other.is_reservation
                and other.holds
                and device in self.devices_of(other)
            ),
            None,
        )

    def _awaits(self, node: str) -> bool:
        return node in self._unknown or any(slot[0] == node for slot in self._made.values())

    def _made_for(self, name: str) -> int:
        return self._made.get(name, ("", -1))[1]

    def _forget(self, world: _World) -> None:
        now = self._clock()
        uids = {pod.uid for pod in world.pods}
        self._first_seen = {
            pod.uid: self._first_seen.get(pod.uid, now) for pod in world.reservations
        }
        self._unknown = {pod.node for pod in world.reservations if pod.holds and not pod.device}
        known = {pod.name for pod in world.reservations if pod.device}
        promised = {(p.node, n) for p in world.promises.values() for n in p.devices}
        self._made = {
            name: slot
            for name, slot in self._made.items()
            if name not in known and slot in promised
        }
        self._warned = {warned for warned in self._warned if warned[0] in uids}
        self._given_up &= uids
        self._faults = {node: f for node, f in self._faults.items() if node in world.nodes}
        self._agents = {node: seen for node, seen in self._agents.items() if node in world.nodes}


def _is_one_device(devices: Sequence[str]) -> bool:
    """Tell whether these are one whole device: parts that the driver made are shared by nobody."""
    return len(devices) == 1 and not devices[0].startswith("MIG-")
