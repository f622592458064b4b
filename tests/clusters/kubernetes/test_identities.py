"""Identities of users' own objects: each has its own UID, and a change is of that object alone."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from clusters.kubernetes.parsed_objects import a_job, a_pod
from control_plane.calls import ApiRefused
from control_plane.faults import FaultyServer
from control_plane.objects import job, pod
from control_plane.scheduling import Scheduler
from runai.hub_service.clusters.kubernetes.informers.cluster_informers import ChangeSignals
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.objects.jobs import Job
from runai.hub_service.clusters.kubernetes.workloads.sessions import PodSessions
from runai.hub_service.clusters.kubernetes.workloads.workload_lookup import WorkloadLookup
from runai.hub_service.clusters.kubernetes.workloads.workload_records import ClusterState
from runai.hub_service.model.records import Process
from runai.hub_service.wire.errors import Conflict, InvalidRequest

NAME = "vision/lab.own"


class Objects:
    """A cache of these objects, without an API server: the part of it that lookups use."""

    def __init__(self, jobs: Sequence[Job], pods: Sequence[Pod]) -> None:
        self.informers = self.jobs = self
        self._jobs, self._pods = {job.uid: job for job in jobs}, list(pods)

    async def listed(self) -> None:
        """Return at once."""

    def by_uid(self) -> dict[str, Job]:
        return self._jobs

    def pods(self) -> list[Pod]:
        return self._pods

    def state(self) -> ClusterState:
        return ClusterState(self._pods, self._jobs, {}, "default")


def lookup(jobs: Sequence[Job] = (), pods: Sequence[Pod] = ()) -> WorkloadLookup:
    return WorkloadLookup(Objects(jobs, pods), ChangeSignals())  # type: ignore[arg-type]


PLAIN_JOB = a_job("own")
GANG_JOB = a_job("own", 2, template=a_pod("own", kind="train", is_gang=True))
LOOKUPS = {
    "job": (lookup([PLAIN_JOB]), PLAIN_JOB),
    "job with a pod": (lookup([PLAIN_JOB], [a_pod("own-0", of=PLAIN_JOB)]), PLAIN_JOB),
    "gang": (lookup([GANG_JOB], [a_pod(f"own-{i}", of=GANG_JOB) for i in (0, 1)]), GANG_JOB),
    "pod": (lookup(pods=[a_pod("own")]), a_pod("own")),
    "pod with the name of an older job": (lookup([PLAIN_JOB], [a_pod("own")]), a_pod("own")),
    "job with the name of an older pod": (
        lookup([PLAIN_JOB], [a_pod("own", created=10.0)]),
        PLAIN_JOB,
    ),
}


@pytest.mark.parametrize(("workload_lookup", "user_object"), LOOKUPS.values(), ids=LOOKUPS)
async def test_workload_made_with_kubectl_has_its_kubernetes_uid_in_every_lookup(
    workload_lookup, user_object
):
    (listed,) = await workload_lookup.workloads()

    assert listed.uid == (await workload_lookup.workload(NAME)).uid == user_object.uid
    assert (await workload_lookup.workload_with_uid(NAME, user_object.uid)).uid == user_object.uid
    assert await workload_lookup.subject(NAME) == user_object
    assert all(
        p == user_object or p.owner.uid == user_object.uid
        for p in await workload_lookup.pods_of(NAME, user_object.uid)
    )


UID_CHECKED_CALLS = {
    "suspend": lambda target: target.job(NAME, "suspended", "earlier"),
    "list pods": lambda target: target.pods_of(NAME, "earlier"),
    "read environment": lambda target: PodSessions(target).environment(NAME, uid="earlier"),
    "release devices": lambda target: PodSessions(target).release(NAME, why="", uid="earlier"),
    "attach process": lambda target: PodSessions(target).attach(
        NAME, Process(1, 1.0), uid="earlier"
    ),
}


@pytest.mark.parametrize(
    "workload_lookup", [lookup([PLAIN_JOB]), lookup(pods=[a_pod("own")])], ids=["job", "pod"]
)
@pytest.mark.parametrize("call", UID_CHECKED_CALLS.values(), ids=UID_CHECKED_CALLS)
async def test_workload_lookup_with_the_uid_of_an_earlier_object_of_the_name_is_refused(
    workload_lookup, call
):
    with pytest.raises(Conflict) as refused:
        await call(workload_lookup)

    assert refused.value.code == "another_workload"


CHANGES = {
    "suspend": lambda cluster, name, uid: cluster.suspend(name, by="ana", uid=uid),
    "delete": lambda cluster, name, uid: cluster.delete(name, by="ana", uid=uid),
}


@pytest.fixture
def create_object(lab, eventually):
    """Return a function that makes a Job or a pod, known to a scheduler; it returns its uid."""
    lab.node("gpu-0", gpus=1)
    lab.project("vision", quota=1)

    def make(scheduler: Scheduler, kind: Any) -> tuple[str, str]:
        def created_uid() -> str:
            try:
                return str(lab.namespace.create(kind("own", project="vision"))["metadata"]["uid"])
            except ApiRefused:  # the earlier one is still being deleted
                return ""

        uid = eventually(created_uid, what="the object is created")
        name = f"vision/{lab.namespace.name}.own"

        def is_known() -> bool:
            found = scheduler.call(scheduler.cluster.workloads())
            return [(record.id, record.uid) for record in found] == [(name, uid)]

        eventually(is_known, what="the scheduler knows it")
        return name, uid

    return make


@pytest.mark.kubernetes
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param(job, "suspend", id="suspend job"),
        pytest.param(job, "delete", id="delete job"),
        pytest.param(pod, "delete", id="delete pod"),
    ],
)
def test_workload_change_with_the_uid_of_an_earlier_object_is_refused(
    lab, kubeconfig, create_object, kind, change
):
    with Scheduler(kubeconfig) as scheduler:
        name, earlier_uid = create_object(scheduler, kind)
        lab.namespace.delete("own", is_job=kind is job)
        _, later_uid = create_object(scheduler, kind)

        with pytest.raises(Conflict) as refused:
            scheduler.call(CHANGES[change](scheduler.cluster, name, earlier_uid))
        current = lab.namespace.job("own") if kind is job else lab.namespace.pod("own")

    assert refused.value.code == "another_workload"
    assert current["metadata"]["uid"] == later_uid
    assert "deletionTimestamp" not in current["metadata"]


@pytest.mark.kubernetes
@pytest.mark.parametrize(
    ("change", "method", "path_part"),
    [
        pytest.param("suspend", "PATCH", "runai/suspended-by", id="suspend"),
    ],
)
def test_workload_change_in_flight_spares_a_later_job_of_the_same_name(
    lab, kubeconfig, create_object, eventually, change, method, path_part
):
    with (
        FaultyServer(kubeconfig) as server,
        Scheduler(server.kubeconfig) as scheduler,
        ThreadPoolExecutor() as threads,
    ):
        name, earlier_uid = create_object(scheduler, job)
        go_on = server.hold(method, path_part)
        work = CHANGES[change](scheduler.cluster, name, earlier_uid)
        change_call = threads.submit(scheduler.call, work)
        eventually(lambda: server.are_over, what="the change is on its way")
        lab.namespace.delete("own", is_job=True)
        _, later_uid = create_object(scheduler, job)
        go_on()
        failed = change_call.exception()
        current = lab.namespace.job("own")

    assert failed is None or isinstance(failed, Conflict | InvalidRequest)
    assert current["metadata"]["uid"] == later_uid
    assert "deletionTimestamp" not in current["metadata"]
    assert not current["spec"].get("suspend")
