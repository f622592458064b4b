"""Failing changes of a whole Job: it is paused, resumed or resized exactly once.

    change   suspended for an owner, or for fewer devices; resumed after either
    fate     refused, carried out without an answer, or the scheduler's last call

No work is lost. A witness watches every change of every pod meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from clusters.kubernetes.sharing_world import events, visible
from clusters.kubernetes.test_pdb_backoff import running
from control_plane.faults import FaultyServer
from control_plane.lab import ClusterLab
from control_plane.objects import Namespace, job, pod
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]

SUSPENDS = '"op": "add", "path": "/spec/suspend", "value": true'
LETS_GO = '"op": "add", "path": "/spec/suspend", "value": false'
SAYS_WHY = '"op": "test", "path": "/metadata/annotations/runai~1held"'
FATES = ["refused", "lost", "killed"]

Until = Callable[..., Any]


class Paused:
    """A Job has both GPUs until their owner comes, and again after the owner's pod is gone."""

    pauses = 1

    def __init__(self, lab: ClusterLab, until: Until) -> None:
        self.lab, self.work, self.until = lab, lab.namespace, until
        self.has_gone = False
        """Whether the owner was there."""

    def begin(self) -> None:
        self.lab.project("patty")
        self.work.create(job("lent", 2, project="patty"))
        self.until(lambda: running(self.work, "lent"), what="it runs")

    def comes(self) -> None:
        """Create the owner's pod."""
        self.work.create(pod("owner", 2, project="vision"))

    def leads_to(self, change: str) -> None:
        """Trigger the change."""
        self.comes()
        if change == LETS_GO:
            self.goes()

    def goes(self) -> None:
        """Wait until the owner's pod has its GPUs, then delete it."""
        self.until(lambda: self.work.node_of("owner"), what="the owner has his GPUs")
        self.work.delete("owner")
        self.has_gone = True

    def end(self) -> None:
        """Wait until each workload has its share."""
        if not self.has_gone:
            self.goes()
        self.until(lambda: running(self.work, "lent"), what="it runs again")

    def check(self) -> None:
        """Assert one single change, and no pod end counted as a failure."""
        found = self.work.job("lent")
        notes = found["metadata"]["annotations"]
        assert found["status"].get("failed", 0) == 0
        assert "runai/held" not in notes
        assert len(json.loads(notes.get("runai/pauses", "[]"))) == self.pauses
        assert len(json.loads(notes["runai/starts"])) == 1


class Resized(Paused):
    """An elastic job of one process has both GPUs until an owner comes for one of them."""

    pauses = 0

    def begin(self) -> None:
        self.lab.project("patty")
        asks = {"gpu-fraction": "1", "gpu-fraction-num-devices": "2", "runai/max-gpus": "2"}
        self.work.create(job("lent", 0, project="patty", annotations=asks))
        self.until(lambda: self.sizes() == [2], what="it runs on both")

    def comes(self) -> None:
        self.work.create(pod("owner", 1, project="vision"))

    def leads_to(self, change: str) -> None:
        self.comes()

    def end(self) -> None:
        self.until(lambda: self.work.node_of("owner"), what="the owner has his GPU")
        self.until(lambda: self.sizes() == [1], what="it goes on with the other one")

    def sizes(self) -> list[int]:
        """Return the number of devices of each of its running pods."""
        seen = visible(self.work)
        names = running(self.work, "lent")
        return [len(seen[name].split(",")) for name in names if name in seen]


CHANGES = {
    "paused": (SUSPENDS, Paused),
    "let go": (LETS_GO, Paused),
    "resized": (SUSPENDS, Resized),
    "let go with fewer": (LETS_GO, Resized),
}


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_job_that_fails_is_made_once(ready, rights, until, change, fate):
    part, kind = CHANGES[change]
    story = kind(ready, until)
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig):
        story.begin()
        if fate == "killed":
            server.die_at("PATCH", part, after=True)
        elif fate == "lost":
            server.lose_answer("PATCH", part)
        else:
            server.refuse("PATCH", part, status=500)
        story.leads_to(part)
        if fate != "killed":
            story.end()
            story.check()
            assert server.are_over
            return
        until(lambda: server.is_down, what="the first one dies")
        is_suspended = part == SUSPENDS
        until(  # the last change is still in flight when everything else is cut off
            lambda: ready.namespace.job("lent")["spec"].get("suspend", False) is is_suspended,
            what="its last change was made",
        )
    with Scheduler(rights):
        story.end()
    story.check()


def test_why_a_paused_job_waits_is_told_once_however_often_writing_it_failed(ready, rights, until):
    story = Paused(ready, until)
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig):
        story.begin()
        server.refuse("PATCH", SAYS_WHY, status=500, times=3)
        story.comes()
        until(lambda: server.are_over, what="it could not be written three times")
        why = until(lambda: told(ready.namespace), what="it is written and told")
        assert events(ready.namespace, "Waiting").count(why) == 1


def test_user_suspension_during_an_unsuspend_call_is_kept(ready, rights, until):
    story = Paused(ready, until)
    with FaultyServer(rights) as server, Scheduler(server.kubeconfig) as scheduler:
        story.begin()
        go_on = server.hold("PATCH", LETS_GO)
        story.leads_to(LETS_GO)
        until(lambda: server.are_over, what="it is being let go")
        name = f"patty/{ready.namespace.name}.lent"
        scheduler.call(scheduler.cluster.suspend(name, by="ana"))
        go_on()
        ready.namespace.create(job("next", 2, project="patty"))
        until(lambda: running(ready.namespace, "next"), what="what came later runs")

    found = ready.namespace.job("lent")
    assert found["spec"]["suspend"] is True
    assert found["metadata"]["annotations"]["runai/suspended-by"] == "ana"
    assert not ready.namespace.pods("lent")


def told(work: Namespace) -> str:
    """Return the Job's waiting reason, once an Event reports it, too."""
    why: str = work.job("lent")["metadata"]["annotations"].get("runai/held", "")
    return why if why in events(work, "Waiting") else ""
