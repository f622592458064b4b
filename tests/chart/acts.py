"""Actions of the service, each with the rights of the chart that it needs.

Each is the project's own code on a real API server, and ends when its effect is visible there. For
test_rights.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from chart.rights import Right
from control_plane.agents import agent_token
from control_plane.calls import ApiRefused
from control_plane.kubeflow import kind_of_pytorch_jobs, pytorch_job, pytorch_jobs
from control_plane.kubelet import Kubelet
from control_plane.lab import ClusterLab
from control_plane.objects import pod
from runai.hub_service.api.auth.node_tokens import NodeTokenAuthenticator
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.clusters.kubernetes.actions.bind_and_evict import DecisionExecutor
from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.client.leader_election import LeaderElection
from runai.hub_service.clusters.kubernetes.client.leader_label import LEADS, LeaderLabel
from runai.hub_service.clusters.kubernetes.driver import KubernetesCluster
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import (
    PODS,
    reservation_name,
)
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod, read_pod
from runai.hub_service.clusters.kubernetes.objects.volume_topology import (
    VOLUMES,
    Claim,
    Volume,
    read_claim,
    read_volume,
)
from runai.hub_service.clusters.kubernetes.snapshot.snapshot_builder import NominatedPlacement
from runai.hub_service.clusters.kubernetes.workloads.pod_exec import PodExec
from runai.hub_service.model.cluster import NodeReport, ProgramEnd
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler.model.snapshot import Plan, Reason, Start, Stop
from waiting import eventually_async

HOME = {"name": "home", "persistentVolumeClaim": {"claimName": "home"}}
OWN_PODS = "/api/v1/namespaces/runai/pods"


@dataclass
class Stage:
    """A namespace with a node and a project; `cluster` watches it all the time."""

    api: Api
    cluster: KubernetesCluster
    lab: ClusterLab
    kubelet: Kubelet
    node: str
    project: str

    def spec(self, user: str = "") -> WorkloadSpec:
        return WorkloadSpec(
            project=self.project, name="exp", user=user, kind="job", command=("train",)
        )

    async def until(self, true: Callable[[], object], what: str) -> None:
        async def there() -> object:
            return true()

        await eventually_async(there, what=what)

    def seen(self, name: str) -> bool:
        return f"{self.lab.namespace.name}/{name}" in self.cluster.cache.informers.pods.objects

    async def runs(self, name: str) -> str:
        """Wait until a pod runs; return its session's id."""

        def up() -> bool:
            found = self.cluster.cache.informers.pods.objects.get(
                f"{self.lab.namespace.name}/{name}"
            )
            return found is not None and found.is_up

        await self.until(up, f"{name} runs")
        return f"{self.project}/{self.lab.namespace.name}.{name}"

    def pod(self, name: str, **fields: Any) -> Pod:
        return read_pod(self.lab.namespace.create(pod(name, 0, project=self.project, **fields)))

    def acting(self) -> DecisionExecutor:
        return DecisionExecutor(
            self.api, self.cluster.scheduling.sharing, self.cluster.scheduling.events
        )

    def events(self) -> list[str]:
        path = f"/api/v1/namespaces/{self.lab.namespace.name}/events"
        return [event["reason"] for event in self.lab.plane.request("GET", path)["items"]]


Act = Callable[[Stage], Awaitable[None]]


async def watches(stage: Stage) -> None:
    """List all objects; the watches follow after that."""
    await stage.cluster.observe()


async def submits_beside_a_notebook(stage: Stage) -> None:
    """Read the notebook's pod, and the access modes of its home."""
    stage.lab.namespace.claim("home")
    notebook = pod("notebook", 0, annotations={"hub.jupyter.org/username": "ana"})
    notebook["spec"] |= {"nodeName": stage.node, "volumes": [HOME]}
    notebook["spec"]["containers"][0]["volumeMounts"] = [{"name": "home", "mountPath": "/h"}]
    stage.lab.namespace.create(notebook)
    await stage.runs("notebook")
    await stage.cluster.submit([stage.spec("ana")])


async def sees_a_job_through(stage: Stage) -> None:
    """Submit a job, suspend it, add a note, read its history, delete it."""
    spec = stage.spec()
    await stage.cluster.submit([spec])
    await stage.cluster.suspend(spec.id, by="ana")
    await stage.cluster.note(spec.id, "look at it")
    assert "Warning" in stage.events()
    assert await stage.cluster.history(spec.id)
    await stage.cluster.delete(spec.id, by="ana")


async def deletes_a_session(stage: Stage) -> None:
    stage.pod("notebook")
    await stage.until(lambda: stage.seen("notebook"), "it sees the pod")
    session = f"{stage.project}/{stage.lab.namespace.name}.notebook"
    await stage.cluster.delete(session, by="ana")


async def reads_a_log(stage: Stage) -> None:
    stage.pod("notebook", nodeName=stage.node)
    stage.kubelet.write("notebook", "it was here")
    session = await stage.runs("notebook")
    chunks = stage.cluster.logs(session, worker=None, tail=None, follow=False)
    assert b"it was here" in b"".join([chunk.lines async for chunk in chunks])


async def runs_a_program(stage: Stage) -> None:
    """Reach the node with the request; no program runs there."""
    stage.pod("one", nodeName=stage.node)
    await stage.cluster.observe()
    session = await stage.runs("one")
    programs = PodExec(stage.api, stage.cluster.lookup.pods_of)
    (ended,) = [piece async for piece in await programs.execute(session, 0, ["true"], b"")]
    assert isinstance(ended, ProgramEnd)
    assert ended.why


async def binds(stage: Stage) -> None:
    made, acting = stage.pod("one"), stage.acting()
    await acting.start(Start(workload="w", worker="w-0", node=stage.node), made, None, {})
    assert stage.lab.namespace.node_of("one") == stage.node


async def evicts(stage: Stage) -> None:
    made, acting = stage.pod("one", nodeName=stage.node), stage.acting()
    reason = Reason(code="reclaimed", rule="R4", text="others are owed it")
    await acting.stop(Stop(workload="w", worker="w-0", reason=reason), made)
    assert acting.evicted == {made.uid}


async def says_why(stage: Stage) -> None:
    await stage.acting().refuse(stage.pod("one"), "it cannot be had")
    conditions = stage.lab.namespace.pod("one")["status"]["conditions"]
    assert "it cannot be had" in [condition.get("message") for condition in conditions]


async def keeps_a_device(stage: Stage) -> None:
    """Reserve a device, learn its UUID, and release it."""
    name = reservation_name(stage.node, "first")
    sharing, path = stage.cluster.scheduling.sharing, f"{PODS}/{name}"

    def kept() -> Pod:
        return read_pod(stage.lab.plane.request("GET", path))

    async def settle(promises: Mapping[str, NominatedPlacement]) -> None:
        pods = [kept()]
        await sharing.reconcile(pods, {pods[0].uid: (0,)}, [stage.node], dict(promises), {})

    try:
        await sharing.reserve(name, (stage.node, 0))
        sharing.store_report(stage.node, NodeReport(inf, {f"runai-reservation/{name}": ("GPU-0",)}))
        await settle({"somebody": NominatedPlacement(stage.node, (0,), is_shared=True)})
        assert kept().device == "GPU-0"
        await settle({})
        await stage.until(lambda: _is_gone(stage, path), "it is let go")
    finally:
        stage.lab.forget(f"{path}?gracePeriodSeconds=0")


def _is_gone(stage: Stage, path: str) -> bool:
    try:
        return bool(stage.lab.plane.request("GET", path)["metadata"].get("deletionTimestamp"))
    except ApiRefused as refused:
        return refused.status == 404


async def sees_a_project_through(stage: Stage) -> None:
    """Create a project, change it, delete it."""
    name = f"{stage.project}-made"
    await stage.cluster.put_project(ProjectSpec(name))
    await stage.cluster.put_project(ProjectSpec(name, weight=2))
    await stage.cluster.delete_project(name)


async def tells_shares(stage: Stage) -> None:
    await stage.cluster.observe()
    await stage.cluster.apply(Plan(decisions=()))
    path = f"/apis/jupyter-runai.dev/v1alpha1/projects/{stage.project}"
    assert "status" in stage.lab.plane.request("GET", path)


async def leads_and_resigns(stage: Stage) -> None:
    """Create the Lease, lead once, and release it."""
    lease = "/apis/coordination.k8s.io/v1/namespaces/runai/leases"
    stage.lab.forget(f"{lease}/runai-scheduler")
    led: list[bool] = []

    async def work() -> None:
        led.append(True)
        raise _EnoughError

    leadership = LeaderElection(stage.api, namespace="runai", identity="me", lasts_s=3)
    try:
        await leadership.lead(work)
    except _EnoughError:
        await leadership.resign()
    held = stage.lab.plane.request("GET", f"{lease}/runai-scheduler")["spec"]
    assert (led, held["holderIdentity"]) == ([True], "")


class _EnoughError(Exception):
    """Ends the leadership after one turn."""


async def shows_itself(stage: Stage) -> None:
    body = {"metadata": {"name": "service-0"}, "spec": pod("service-0", 0)["spec"]}
    body["spec"] |= {"schedulerName": "nobody's"}
    stage.lab.plane.request("POST", OWN_PODS, body)
    try:
        await LeaderLabel(stage.api, "runai", "service-0").update(leads=True)
        found = stage.lab.plane.request("GET", f"{OWN_PODS}/service-0")
    finally:
        stage.lab.forget(f"{OWN_PODS}/service-0?gracePeriodSeconds=0")
    assert found["metadata"]["labels"][LEADS] == "true"


async def knows_an_agent(stage: Stage) -> None:
    node = agent_token(stage.lab.plane, stage.node)
    with node as token:
        known = await NodeTokenAuthenticator(stage.api, "runai:runai-agent", Nobody()).pod(token)
    assert known == Actor(stage.node, "agent")


class Nobody:
    """An authenticator that fails the test when used."""

    async def actor(self, request: Any) -> Any:
        raise AssertionError(request)

    async def person(self, name: str) -> Any:
        raise AssertionError(name)


async def has_a_volume_made(stage: Stage) -> None:
    claim, start = await _claimed(stage)
    await stage.acting().provide(start, claim, None)
    assert read_claim(stage.lab.plane.request("GET", claim.path)).node == stage.node


async def takes_a_volume(stage: Stage) -> None:
    (claim, start), name = await _claimed(stage), f"{stage.node}-disk"
    stage.lab.volume(name, stage.node, of_class="local")

    def disk() -> Volume:
        return read_volume(stage.lab.plane.request("GET", f"{VOLUMES}/{name}"))

    while disk().claim != claim.uid:  # Kubernetes' controller may write it in between
        await stage.acting().provide(start, claim, disk())


async def _claimed(stage: Stage) -> tuple[Claim, Start]:
    stage.lab.namespace.claim("home", of_class="local")
    path = f"/api/v1/namespaces/{stage.lab.namespace.name}/persistentvolumeclaims/home"
    claim = read_claim(stage.lab.plane.request("GET", path))
    return claim, Start(workload="w", worker="w-0", node=stage.node)


async def sees_a_pytorch_job_through(stage: Stage) -> None:
    """Detect the kind once it is installed; list a PyTorchJob, suspend and delete it."""
    await stage.cluster.observe()
    with kind_of_pytorch_jobs(stage.lab.plane):
        await stage.until(
            lambda: stage.cluster.cache.informers.jobs._pytorch.lists, "it has listed PyTorchJobs"
        )
        path = pytorch_jobs(stage.lab.namespace.name)
        job = pytorch_job("train", workers=1, labels={"runai/project": stage.project})
        uid = stage.lab.plane.request("POST", path, job)["metadata"]["uid"]
        await stage.until(
            lambda: uid in stage.cluster.cache.informers.jobs.by_uid(), "it sees the PyTorchJob"
        )
        workload = f"{stage.project}/{stage.lab.namespace.name}.train"
        await stage.cluster.suspend(workload, by="ana")
        found = stage.lab.plane.request("GET", f"{path}/train")
        assert found["spec"]["runPolicy"]["suspend"] is True
        await stage.cluster.delete(workload, by="ana")
        assert stage.lab.plane.request("GET", path)["items"] == []


SCHEDULER, JOBS, OWN, SHARING = (
    "ClusterRole runai-scheduler",
    "ClusterRole runai-jobs",
    "Role runai-scheduler",
    "Role runai-reservations",
)
SEEN = (
    *("pods", "nodes", "namespaces", "jobs", "projects"),
    *("persistentvolumeclaims", "persistentvolumes", "storageclasses"),
)


def each(role: str, *given: str) -> Iterable[Right]:
    """Yield rights of a role, such as `"list pods"`."""
    for words in given:
        verb, what = words.split()
        yield Right(role, what, verb)


ACTS: Mapping[Act, Iterable[Right]] = {
    watches: [*each(SCHEDULER, *(f"{verb} {w}" for w in SEEN for verb in ("list", "watch")))],
    submits_beside_a_notebook: [
        *each(SCHEDULER, "get pods"),
        *each(JOBS, "create jobs", "get persistentvolumeclaims"),
    ],
    sees_a_job_through: [
        *each(SCHEDULER, "patch jobs", "create events"),
        *each(JOBS, "create jobs", "list events", "delete jobs"),
    ],
    deletes_a_session: [*each(JOBS, "delete pods")],
    reads_a_log: [*each(JOBS, "get pods/log")],
    binds: [*each(SCHEDULER, "create pods/binding")],
    evicts: [*each(SCHEDULER, "create pods/eviction")],
    says_why: [*each(SCHEDULER, "patch pods/status")],
    has_a_volume_made: [*each(SCHEDULER, "patch persistentvolumeclaims")],
    takes_a_volume: [*each(SCHEDULER, "patch persistentvolumes")],
    keeps_a_device: [*each(SHARING, "create pods", "patch pods", "delete pods")],
    knows_an_agent: [*each(SCHEDULER, "create tokenreviews")],
    sees_a_project_through: [
        *each(SCHEDULER, "create projects", "patch projects", "delete projects")
    ],
    tells_shares: [*each(SCHEDULER, "patch projects/status")],
    leads_and_resigns: [*each(OWN, "get leases", "create leases", "update leases")],
    shows_itself: [*each(OWN, "patch pods")],
    sees_a_pytorch_job_through: [
        *each(SCHEDULER, "list customresourcedefinitions", "watch customresourcedefinitions"),
        *each(SCHEDULER, "list pytorchjobs", "watch pytorchjobs", "patch pytorchjobs"),
        *each(JOBS, "delete pytorchjobs"),
    ],
}
OF_KUBEFLOW = {sees_a_pytorch_job_through}
EXEC = [*each(JOBS, "get pods/exec", "create pods/exec")]
"""Rights of `runs_a_program`, if the chart allows it (jobs.exec)."""
