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

from clusters.kubernetes.gpu_sharing import devices_of, events
from clusters.kubernetes.test_pdb_backoff import running_pods
from control_plane.faults import FaultyServer
from control_plane.lab import ClusterLab
from control_plane.objects import Namespace, job, pod
from control_plane.scheduling import Scheduler

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]

SUSPENDS = '"op": "add", "path": "/spec/suspend", "value": true'
UNSUSPENDS = '"op": "add", "path": "/spec/suspend", "value": false'
WRITES_REASON = '"op": "test", "path": "/metadata/annotations/runai~1held"'
FATES = ["refused", "answer lost", "scheduler killed"]

Until = Callable[..., Any]


class PausedJob:
    """A Job has both GPUs until their owner comes, and again after the owner's pod is gone."""

    pauses = 1

    def __init__(self, lab: ClusterLab, until: Until) -> None:
        self.lab, self.work, self.until = lab, lab.namespace, until
        self.owner_is_deleted = False
        """Whether the owner was there."""

    def begin(self) -> None:
        self.lab.project("patty")
        self.work.create(job("lent", 2, project="patty"))
        self.until(lambda: running_pods(self.work, "lent"), what="the job runs")

    def create_owner(self) -> None:
        """Create the owner's pod."""
        self.work.create(pod("owner", 2, project="vision"))

    def trigger(self, change: str) -> None:
        """Trigger the change."""
        self.create_owner()
        if change == UNSUSPENDS:
            self.delete_owner()

    def delete_owner(self) -> None:
        """Wait until the owner's pod has its GPUs, then delete it."""
        self.until(lambda: self.work.node_of("owner"), what="the owner has his GPUs")
        self.work.delete("owner")
        self.owner_is_deleted = True

    def end(self) -> None:
        """Wait until each workload has its share."""
        if not self.owner_is_deleted:
            self.delete_owner()
        self.until(lambda: running_pods(self.work, "lent"), what="the job runs again")

    def check(self) -> None:
        """Assert one single change, and no pod end counted as a failure."""
        found = self.work.job("lent")
        notes = found["metadata"]["annotations"]
        assert found["status"].get("failed", 0) == 0
        assert "runai/held" not in notes
        assert len(json.loads(notes.get("runai/pauses", "[]"))) == self.pauses
        assert len(json.loads(notes["runai/starts"])) == 1


class ResizedJob(PausedJob):
    """An elastic job of one process has both GPUs until an owner comes for one of them."""

    pauses = 0

    def begin(self) -> None:
        self.lab.project("patty")
        annotations = {"gpu-fraction": "1", "gpu-fraction-num-devices": "2", "runai/max-gpus": "2"}
        self.work.create(job("lent", 0, project="patty", annotations=annotations))
        self.until(lambda: self.sizes() == [2], what="the job runs on both")

    def create_owner(self) -> None:
        self.work.create(pod("owner", 1, project="vision"))

    def trigger(self, change: str) -> None:
        self.create_owner()

    def end(self) -> None:
        self.until(lambda: self.work.node_of("owner"), what="the owner has his GPU")
        self.until(lambda: self.sizes() == [1], what="the job goes on with the other one")

    def sizes(self) -> list[int]:
        """Return the number of devices of each of its running pods."""
        seen = devices_of(self.work)
        names = running_pods(self.work, "lent")
        return [len(seen[name].split(",")) for name in names if name in seen]


CHANGES = {
    "paused": (SUSPENDS, PausedJob),
    "resumed": (UNSUSPENDS, PausedJob),
    "resized": (SUSPENDS, ResizedJob),
    "resumed with fewer GPUs": (UNSUSPENDS, ResizedJob),
}


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("change", CHANGES)
def test_failed_patch_to_pause_resume_or_resize_a_job_is_applied_exactly_once(
    two_gpus, kubeconfig, until, change, fate
):
    patch_part, scenario_type = CHANGES[change]
    scenario = scenario_type(two_gpus, until)
    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig):
        scenario.begin()
        if fate == "scheduler killed":
            server.die_at("PATCH", patch_part, after=True)
        elif fate == "answer lost":
            server.lose_answer("PATCH", patch_part)
        else:
            server.refuse("PATCH", patch_part, status=500)
        scenario.trigger(patch_part)
        if fate != "scheduler killed":
            scenario.end()
            scenario.check()
            assert server.are_over
            return
        until(lambda: server.is_down, what="the first scheduler is dead")
        is_suspended = patch_part == SUSPENDS
        until(  # the last change is still in flight when all other calls are cut off
            lambda: two_gpus.namespace.job("lent")["spec"].get("suspend", False) is is_suspended,
            what="its last change was made",
        )
    with Scheduler(kubeconfig):
        scenario.end()
    scenario.check()


def test_wait_reason_of_a_paused_job_is_reported_once_despite_write_faults(
    two_gpus, kubeconfig, until
):
    scenario = PausedJob(two_gpus, until)
    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig):
        scenario.begin()
        server.refuse("PATCH", WRITES_REASON, status=500, times=3)
        scenario.create_owner()
        until(lambda: server.are_over, what="three writes have failed")
        reason = until(lambda: waiting_reason(two_gpus.namespace), what="it is reported")
        assert events(two_gpus.namespace, "Waiting").count(reason) == 1


def test_job_suspended_by_its_user_during_its_resume_call_stays_suspended(
    two_gpus, kubeconfig, until
):
    scenario = PausedJob(two_gpus, until)
    with FaultyServer(kubeconfig) as server, Scheduler(server.kubeconfig) as scheduler:
        scenario.begin()
        release_call = server.hold("PATCH", UNSUSPENDS)
        scenario.trigger(UNSUSPENDS)
        until(lambda: server.are_over, what="the resume call is on its way")
        name = f"patty/{two_gpus.namespace.name}.lent"
        scheduler.call(scheduler.cluster.suspend(name, by="ana"))
        release_call()
        two_gpus.namespace.create(job("next", 2, project="patty"))
        until(lambda: running_pods(two_gpus.namespace, "next"), what="the later job runs")

    lent_job = two_gpus.namespace.job("lent")
    assert lent_job["spec"]["suspend"] is True
    assert lent_job["metadata"]["annotations"]["runai/suspended-by"] == "ana"
    assert not two_gpus.namespace.pods("lent")


def waiting_reason(work: Namespace) -> str:
    """Return the Job's waiting reason, once an Event reports it, too."""
    reason: str = work.job("lent")["metadata"]["annotations"].get("runai/held", "")
    return reason if reason in events(work, "Waiting") else ""
