"""Each API call of GPU sharing fails once, in each possible way; the final state is the same.

    call   the six calls that reserve a device, learn its UUID, bind and evict a sharing pod, and
           delete the reservation; one of two calls for a pod of two devices; the calls that find
           an existing reservation and report how far it is
    fate   refused (403, 409, 500), carried out without an answer, delayed, cut off by a restart of
           the API server, or the scheduler's last call before it is killed

Only the fates with distinct results are listed for a call: a kill before one call equals a kill
after the previous one, and `test_evictions` covers refused evictions. `plugin.look()` asserts each
time that no device is oversubscribed. `test_deletions_between_calls` covers objects that are
deleted while a call is in flight.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from clusters.kubernetes.sharing_world import half, sentence, visible
from control_plane.device_plugin import DevicePlugin
from control_plane.faults import FaultyServer
from control_plane.lab import ClusterLab
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes

RESERVATIONS = "/namespaces/runai-reservation/pods"


@dataclass
class Story:
    """The steps before and after the call; `ready` has two devices and a project with both."""

    lab: ClusterLab
    plugin: DevicePlugin
    has_agent = False
    """Whether the node's agent reports the devices of reservations."""

    @property
    def seen(self) -> dict[str, str]:
        return visible(self.lab.namespace)

    def begin(self) -> bool:
        """Create the preconditions; return True once they are met."""
        return True

    def arm(self, server: FaultyServer) -> None:
        """Inject a second fault that leads to the call."""

    def go_on(self) -> None:
        """Create the pods that trigger the call."""
        for name in ("one", "two"):
            self.lab.namespace.create(half(name))

    def is_over(self) -> bool:
        return (
            {"one", "two"} <= self.seen.keys()
            and self.seen["one"] == self.seen["two"]
            and len(self.plugin.reservations()) == len(set(self.seen.values()))
        )


class Shared(Story):
    """Two halves share a device."""


class ToldByAgent(Story):
    """Two halves share a device; the node's agent reports its UUID."""

    has_agent = True

    def begin(self) -> bool:
        self.plugin.annotates = False
        return True


class MadeAlready(Shared):
    """The reservation exists, but its creator got no answer: it creates it again, then reads it."""

    def arm(self, server: FaultyServer) -> None:
        server.lose_answer("POST", RESERVATIONS)


class ToldToWait(Shared):
    """No agent reports the device until both pods have the message that they wait for it."""

    def begin(self) -> bool:
        self.plugin.annotates = False
        return True

    def is_over(self) -> bool:
        if all(map(sentence, self.lab.namespace.pods())):
            self.plugin.annotates = True
        return super().is_over()


class OnTwo(Story):
    """One pod has halves of two devices, another pod half of one of them."""

    def go_on(self) -> None:
        work = self.lab.namespace
        work.create(half("one", devices=2))
        work.create(half("two"))

    def is_over(self) -> bool:
        if not {"one", "two"} <= self.seen.keys():
            return False
        return (
            set(self.seen["one"].split(",")) == {"GPU-a", "GPU-b"}
            and self.seen["two"] in self.seen["one"]
            and len(self.plugin.reservations()) == 2
        )


class GivenBack(Story):
    """The sharing pod is gone: its device is free for every pod."""

    def begin(self) -> bool:
        if not self.lab.namespace.pods():
            self.lab.namespace.create(half("one"))
        return "one" in self.seen

    def go_on(self) -> None:
        self.lab.namespace.delete("one")
        self.lab.namespace.create(pod("both", 2, project="vision"))

    def is_over(self) -> bool:
        return bool(self.lab.namespace.node_of("both")) and not self.plugin.reservations()


class TakenBack(Story):
    """Two pods of another project share a device, and its owner reclaims it."""

    is_lent = False

    def begin(self) -> bool:
        if not self.is_lent:  # its pods exist a moment later
            self.is_lent = True
            self.lab.project("patty")
            asks = {"gpu-fraction": "0.5"}
            lent = job("lent", 0, workers=2, project="patty", annotations=asks)
            self.lab.namespace.create(lent)
        return len(self.seen) == 2

    def go_on(self) -> None:
        self.lab.namespace.create(pod("both", 2, project="vision"))

    def is_over(self) -> bool:
        failed = self.lab.namespace.job("lent")["status"].get("failed", 0)
        assert failed == 0, "a pause is no failure"
        return bool(self.lab.namespace.node_of("both")) and not self.plugin.reservations()


CALLS: dict[str, tuple[str, str, type[Story]]] = {
    "making the reservation": ("POST", RESERVATIONS, Shared),
    "binding the reservation": ("POST", f"{RESERVATIONS}/gpu-res", Shared),
    "writing down its device": ("PATCH", f"{RESERVATIONS}/gpu-res", ToldByAgent),
    "binding who shares": ("POST", "/pods/one/binding", Shared),
    "evicting who shares": ("POST", "/eviction", TakenBack),
    "deleting the reservation": ("DELETE", f"{RESERVATIONS}/gpu-res", GivenBack),
}
OTHERS: dict[str, tuple[str, str, type[Story]]] = {
    "making one of two reservations": ("POST", RESERVATIONS, OnTwo),
    "binding one of two reservations": ("POST", f"{RESERVATIONS}/gpu-res", OnTwo),
    "seeing that it is made already": ("GET", f"{RESERVATIONS}/gpu-res", MadeAlready),
    "saying that its place is kept": ("PATCH", "/pods/one/status", ToldToWait),
}
FATES = {
    "making the reservation": ["409", "500", "lost", "late", "killed after"],
    "binding the reservation": ["500", "lost", "late", "killed after"],
    "writing down its device": ["409", "500", "lost", "late", "killed after"],
    "binding who shares": ["409", "500", "lost", "late", "killed after", "restarted"],
    "evicting who shares": ["lost", "late", "killed after"],
    "deleting the reservation": ["409", "500", "lost", "late", "killed after"],
    "making one of two reservations": ["403", "500", "killed after"],
    "binding one of two reservations": ["500", "killed after"],
    "seeing that it is made already": ["500"],
    "saying that its place is kept": ["500"],
}
ROWS = [(call, fate) for call, fates in FATES.items() for fate in fates]


class Play:
    """One story: a scheduler behind a faulty server, then its successor."""

    def __init__(self, story: Story, rights: Any, until: Any) -> None:
        self.story, self.rights, self.until = story, rights, until
        self.server = FaultyServer(rights)

    def wait(self, scheduler: Scheduler, condition: Any, what: str) -> None:
        """Wait for a condition; the agents report meanwhile if the story has agents."""

        def holds() -> bool:
            if self.story.has_agent:
                self.story.plugin.tell(scheduler)
            return bool(condition())

        self.until(holds, what=what)

    def run(self, method: str, part: str, fate: str) -> None:
        with ExitStack() as first:
            first.enter_context(self.server)
            scheduler = first.enter_context(Scheduler(self.server.kubeconfig))
            self.wait(scheduler, self.story.begin, "it begins")
            self.server.requests.clear()
            self.story.arm(self.server)
            go_on = self.arm(method, part, fate)
            self.story.go_on()
            if fate in ("late", "restarted"):
                self.wait(scheduler, lambda: self.asked(method, part), "the call is on its way")
            if fate == "restarted":
                self.story.lab.plane.restart("kube-apiserver")
                go_on()
            if fate == "late":
                # Its creation second may equal the other pods'; the order then follows the names.
                self.story.lab.namespace.create(half("who-came-later"))
                go_on()
            if fate != "killed after":
                self.wait(scheduler, lambda: self.server.are_over and self.story.is_over(), fate)
                if fate == "late":
                    self.wait(scheduler, self.meanwhile, "who came meanwhile knows his place")
                return
            self.wait(scheduler, lambda: self.server.is_down, "the first one dies")
        with Scheduler(self.rights) as second:
            self.wait(second, self.story.is_over, "the next one goes on")

    def meanwhile(self) -> bool:
        """Return True once the pod made during the delayed call has a device or a reason."""
        found = self.story.lab.namespace.pod("who-came-later")
        return "who-came-later" in self.story.seen or bool(sentence(found))

    def arm(self, method: str, part: str, fate: str) -> Any:
        if fate in ("late", "restarted"):
            return self.server.hold(method, part)
        if fate == "lost":
            return self.server.lose_answer(method, part)
        if fate == "killed after":
            return self.server.die_at(method, part, after=True)
        return self.server.refuse(method, part, status=int(fate))

    def asked(self, method: str, part: str) -> bool:
        return any(m == method and part in path for m, path in list(self.server.requests))


@pytest.mark.parametrize(("call", "fate"), [pytest.param(*r, id="-".join(r)) for r in ROWS])
def test_a_call_that_fails_changes_nothing_in_the_end(ready, rights, plugin, until, call, fate):
    method, part, kind = {**CALLS, **OTHERS}[call]
    story = kind(ready, plugin)

    Play(story, rights, until).run(method, part, fate)

    if fate != "late" and kind is not OnTwo:  # the successor decides anew
        assert len(plugin.names) == 1, "nothing was made twice"
