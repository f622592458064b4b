"""Each API call of GPU sharing fails once, in each possible way; the final state is the same.

    call   the six calls that reserve a device, learn its UUID, bind and evict a sharing pod, and
           delete the reservation; one of two calls for a pod of two devices; the calls that find
           an existing reservation and report how far it is
    fate   refused (403, 409, 500), carried out without an answer, delayed, cut off by a restart of
           the API server, or the scheduler's last call before it is killed

Only the fates with distinct results are listed for a call: a kill before one call equals a kill
after the previous one, and `test_evictions` covers refused evictions. `plugin.sync_pods()` asserts
each time that no device is oversubscribed. `test_deletions_between_calls` covers objects that are
deleted while a call is in flight.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from clusters.kubernetes.gpu_sharing import devices_of, fraction_pod, wait_message
from control_plane.device_plugin import DevicePlugin
from control_plane.faults import FaultyServer
from control_plane.lab import ClusterLab
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes

RESERVATIONS = "/namespaces/runai-reservation/pods"


@dataclass
class SharingScenario:
    """The steps before and after the call; `ready` has two devices and a project with both."""

    lab: ClusterLab
    plugin: DevicePlugin
    has_agent = False
    """Whether the node's agent reports the devices of reservations."""

    @property
    def visible_devices(self) -> dict[str, str]:
        return devices_of(self.lab.namespace)

    def begin(self) -> bool:
        """Create the preconditions; return True once they are met."""
        return True

    def arm(self, server: FaultyServer) -> None:
        """Inject a second fault that leads to the call."""

    def trigger_call(self) -> None:
        """Create the pods that trigger the call."""
        for name in ("one", "two"):
            self.lab.namespace.create(fraction_pod(name, "0.5"))

    def is_over(self) -> bool:
        return (
            {"one", "two"} <= self.visible_devices.keys()
            and self.visible_devices["one"] == self.visible_devices["two"]
            and len(self.plugin.reservations()) == len(set(self.visible_devices.values()))
        )


class SharedDevice(SharingScenario):
    """Two halves share a device."""


class UuidFromAgent(SharingScenario):
    """Two halves share a device; the node's agent reports its UUID."""

    has_agent = True

    def begin(self) -> bool:
        self.plugin.annotates = False
        return True


class ReservationExists(SharedDevice):
    """The reservation exists, but its creator got no answer: it creates it again, then reads it."""

    def arm(self, server: FaultyServer) -> None:
        server.lose_answer("POST", RESERVATIONS)


class AwaitedUuid(SharedDevice):
    """No agent reports the device until both pods have the message that they wait for it."""

    def begin(self) -> bool:
        self.plugin.annotates = False
        return True

    def is_over(self) -> bool:
        if all(map(wait_message, self.lab.namespace.pods())):
            self.plugin.annotates = True
        return super().is_over()


class TwoSharedDevices(SharingScenario):
    """One pod has halves of two devices, another pod half of one of them."""

    def trigger_call(self) -> None:
        work = self.lab.namespace
        work.create(fraction_pod("one", "0.5", devices=2))
        work.create(fraction_pod("two", "0.5"))

    def is_over(self) -> bool:
        if not {"one", "two"} <= self.visible_devices.keys():
            return False
        return (
            set(self.visible_devices["one"].split(",")) == {"GPU-a", "GPU-b"}
            and self.visible_devices["two"] in self.visible_devices["one"]
            and len(self.plugin.reservations()) == 2
        )


class ReturnedDevice(SharingScenario):
    """The sharing pod is gone: its device is free for every pod."""

    def begin(self) -> bool:
        if not self.lab.namespace.pods():
            self.lab.namespace.create(fraction_pod("one", "0.5"))
        return "one" in self.visible_devices

    def trigger_call(self) -> None:
        self.lab.namespace.delete("one")
        self.lab.namespace.create(pod("both", 2, project="vision"))

    def is_over(self) -> bool:
        return bool(self.lab.namespace.node_of("both")) and not self.plugin.reservations()


class ReclaimedDevice(SharingScenario):
    """Two pods of another project share a device, and its owner reclaims it."""

    is_lent = False

    def begin(self) -> bool:
        if not self.is_lent:  # its pods exist a moment later
            self.is_lent = True
            self.lab.project("patty")
            annotations = {"gpu-fraction": "0.5"}
            lent = job("lent", 0, workers=2, project="patty", annotations=annotations)
            self.lab.namespace.create(lent)
        return len(self.visible_devices) == 2

    def trigger_call(self) -> None:
        self.lab.namespace.create(pod("both", 2, project="vision"))

    def is_over(self) -> bool:
        failed = self.lab.namespace.job("lent")["status"].get("failed", 0)
        assert failed == 0, "a pause is no failure"
        return bool(self.lab.namespace.node_of("both")) and not self.plugin.reservations()


CALLS: dict[str, tuple[str, str, type[SharingScenario]]] = {
    "create reservation": ("POST", RESERVATIONS, SharedDevice),
    "bind reservation": ("POST", f"{RESERVATIONS}/gpu-res", SharedDevice),
    "annotate reservation with device": ("PATCH", f"{RESERVATIONS}/gpu-res", UuidFromAgent),
    "bind sharing pod": ("POST", "/pods/one/binding", SharedDevice),
    "evict sharing pod": ("POST", "/eviction", ReclaimedDevice),
    "delete reservation": ("DELETE", f"{RESERVATIONS}/gpu-res", ReturnedDevice),
}
FURTHER_CALLS: dict[str, tuple[str, str, type[SharingScenario]]] = {
    "create one of two reservations": ("POST", RESERVATIONS, TwoSharedDevices),
    "bind one of two reservations": ("POST", f"{RESERVATIONS}/gpu-res", TwoSharedDevices),
    "read existing reservation": ("GET", f"{RESERVATIONS}/gpu-res", ReservationExists),
    "write message of a waiting pod": ("PATCH", "/pods/one/status", AwaitedUuid),
}
FATES = {
    "create reservation": ["409", "500", "answer lost", "delayed", "scheduler killed"],
    "bind reservation": ["500", "answer lost", "delayed", "scheduler killed"],
    "annotate reservation with device": [
        "409",
        "500",
        "answer lost",
        "delayed",
        "scheduler killed",
    ],
    "bind sharing pod": ["409", "500", "answer lost", "delayed", "scheduler killed", "API restart"],
    "evict sharing pod": ["answer lost", "delayed", "scheduler killed"],
    "delete reservation": ["409", "500", "answer lost", "delayed", "scheduler killed"],
    "create one of two reservations": ["403", "500", "scheduler killed"],
    "bind one of two reservations": ["500", "scheduler killed"],
    "read existing reservation": ["500"],
    "write message of a waiting pod": ["500"],
}
ROWS = [(call, fate) for call, fates in FATES.items() for fate in fates]


class FaultyRun:
    """One run: a scheduler behind a faulty server, then its successor."""

    def __init__(self, scenario: SharingScenario, kubeconfig: Any, until: Any) -> None:
        self.scenario, self.kubeconfig, self.until = scenario, kubeconfig, until
        self.server = FaultyServer(kubeconfig)

    def wait(self, scheduler: Scheduler, condition: Any, what: str) -> None:
        """Wait for a condition; the agents report meanwhile if the scenario has agents."""

        def holds() -> bool:
            if self.scenario.has_agent:
                self.scenario.plugin.report(scheduler)
            return bool(condition())

        self.until(holds, what=what)

    def run(self, method: str, path_part: str, fate: str) -> None:
        with ExitStack() as first:
            first.enter_context(self.server)
            scheduler = first.enter_context(Scheduler(self.server.kubeconfig))
            self.wait(scheduler, self.scenario.begin, "the preconditions are met")
            self.server.requests.clear()
            self.scenario.arm(self.server)
            release_call = self.arm(method, path_part, fate)
            self.scenario.trigger_call()
            if fate in ("delayed", "API restart"):
                self.wait(
                    scheduler,
                    lambda: self.was_requested(method, path_part),
                    "the call is on its way",
                )
            if fate == "API restart":
                self.scenario.lab.plane.restart("kube-apiserver")
                release_call()
            if fate == "delayed":
                # Made in the same second as others, it is the last by its name.
                self.scenario.lab.namespace.create(fraction_pod("z-created-meanwhile", "0.5"))
                release_call()
            if fate != "scheduler killed":
                self.wait(scheduler, lambda: self.server.are_over and self.scenario.is_over(), fate)
                if fate == "delayed":
                    self.wait(
                        scheduler,
                        self.later_pod_is_answered,
                        "the pod created meanwhile has a device or a reason",
                    )
                return
            self.wait(scheduler, lambda: self.server.is_down, "the first scheduler is dead")
        with Scheduler(self.kubeconfig) as second:
            self.wait(second, self.scenario.is_over, "the next scheduler finishes")

    def later_pod_is_answered(self) -> bool:
        """Return True once the pod made during the delayed call has a device or a reason."""
        found = self.scenario.lab.namespace.pod("z-created-meanwhile")
        return "z-created-meanwhile" in self.scenario.visible_devices or bool(wait_message(found))

    def arm(self, method: str, path_part: str, fate: str) -> Any:
        if fate in ("delayed", "API restart"):
            return self.server.hold(method, path_part)
        if fate == "answer lost":
            return self.server.lose_answer(method, path_part)
        if fate == "scheduler killed":
            return self.server.die_at(method, path_part, after=True)
        return self.server.refuse(method, path_part, status=int(fate))

    def was_requested(self, method: str, path_part: str) -> bool:
        return any(m == method and path_part in path for m, path in list(self.server.requests))


@pytest.mark.parametrize(("call", "fate"), [pytest.param(*row, id=": ".join(row)) for row in ROWS])
def test_failed_gpu_sharing_api_call_leads_to_the_final_state_of_a_successful_call(
    two_gpus, kubeconfig, plugin, until, call, fate
):
    method, path_part, scenario_type = {**CALLS, **FURTHER_CALLS}[call]
    scenario = scenario_type(two_gpus, plugin)

    FaultyRun(scenario, kubeconfig, until).run(method, path_part, fate)

    if fate != "delayed" and scenario_type is not TwoSharedDevices:  # the successor decides anew
        assert len(plugin.names) == 1, "no reservation was created twice"
