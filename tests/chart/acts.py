"""The smallest thing the service does for which it needs a right, by right.

Each is the project's own code on a real API server, and ends when what it is for is there to see.
Called by test_rights with all of the chart's rights, and again without one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from chart.rights import Right
from control_plane.agents import agent_token
from control_plane.kubelet import Kubelet
from control_plane.lab import ClusterLab
from control_plane.objects import job, pod
from control_plane.plane import ApiRefused
from runai.hub_service.api.permissions import Actor
from runai.hub_service.clusters.base import Seen
from runai.hub_service.clusters.kubernetes.acting import Acting
from runai.hub_service.clusters.kubernetes.api import Api
from runai.hub_service.clusters.kubernetes.cluster import KubernetesCluster
from runai.hub_service.clusters.kubernetes.leading import Leadership
from runai.hub_service.clusters.kubernetes.node_tokens import NodeTokens
from runai.hub_service.clusters.kubernetes.objects import Pod, read_pod
from runai.hub_service.clusters.kubernetes.picture import Promise
from runai.hub_service.clusters.kubernetes.reservations import PODS, reservation_name
from runai.hub_service.clusters.records import ProjectSpec, WorkloadSpec
from runai.hub_service.own_pod import LEADS, OwnPod
from runai.hub_service.scheduler.model import Plan, Reason, Start, Stop
from waiting import eventually_async

__all__ = ["ACTS", "JOBS", "SCHEDULER", "Act", "Stage"]

HOME = {"name": "home", "persistentVolumeClaim": {"claimName": "home"}}
OWN_PODS = "/api/v1/namespaces/runai/pods"


@dataclass
class Stage:
    """A namespace with a node and a project; `cluster` looks at it all the time."""

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
        return f"{self.lab.namespace.name}/{name}" in self.cluster._pods.objects

    async def submitted(self) -> str:
        spec = self.spec()
        await self.cluster.submit([spec])
        return spec.id

    def pod(self, name: str, **fields: Any) -> Pod:
        return read_pod(self.lab.namespace.create(pod(name, 0, project=self.project, **fields)))

    def acting(self) -> Acting:
        return Acting(self.api, self.cluster._sharing, self.cluster._events)

    def events(self) -> list[str]:
        path = f"/api/v1/namespaces/{self.lab.namespace.name}/events"
        return [event["reason"] for event in self.lab.plane.request("GET", path)["items"]]


Act = Callable[[Stage], Awaitable[None]]


async def sees_a_pod(stage: Stage) -> None:
    await stage.cluster.observe()
    stage.pod("new")
    await stage.until(lambda: stage.seen("new"), "it sees the pod")


async def sees_a_node(stage: Stage) -> None:
    await stage.cluster.observe()
    name = f"{stage.node}-new"
    stage.lab.node(name)
    await stage.until(lambda: name in stage.cluster._machines.objects, "it sees the node")


async def sees_a_namespace(stage: Stage) -> None:
    await stage.cluster.observe()
    name = stage.lab.another_namespace("new").name
    await stage.until(lambda: name in stage.cluster._namespaces.objects, "it sees the namespace")


async def sees_a_job(stage: Stage) -> None:
    await stage.cluster.observe()
    stage.lab.namespace.create(job("new"))
    name = stage.lab.namespace.name, "new"
    await stage.until(lambda: stage.cluster._jobs.find(*name) is not None, "it sees the Job")


async def sees_a_project(stage: Stage) -> None:
    await stage.cluster.observe()
    name = f"{stage.project}-new"
    stage.lab.project(name)
    await stage.until(lambda: name in stage.cluster._projects.objects, "it sees the project")


async def submits_beside_a_notebook(
    stage: Stage, *, volumes: Sequence[Any] = (), mounts: Sequence[Any] = ()
) -> None:
    notebook = pod("notebook", 0, annotations={"hub.jupyter.org/username": "ana"})
    notebook["spec"] |= {"nodeName": stage.node, "volumes": list(volumes)}
    notebook["spec"]["containers"][0]["volumeMounts"] = list(mounts)
    stage.lab.namespace.create(notebook)
    name = f"{stage.lab.namespace.name}/notebook"

    def up() -> bool:
        return stage.seen("notebook") and stage.cluster._pods.objects[name].is_up

    await stage.until(up, "the notebook runs")
    await stage.cluster.submit([stage.spec("ana")])


async def submits_beside_a_notebook_with_a_home(stage: Stage) -> None:
    stage.lab.namespace.claim("home")
    await submits_beside_a_notebook(
        stage, volumes=[HOME], mounts=[{"name": "home", "mountPath": "/h"}]
    )


async def submits(stage: Stage) -> None:
    await stage.submitted()


async def suspends(stage: Stage) -> None:
    await stage.cluster.suspend(await stage.submitted(), by="ana")


async def deletes_a_job(stage: Stage) -> None:
    await stage.cluster.delete(await stage.submitted(), by="ana")


async def deletes_a_session(stage: Stage) -> None:
    stage.pod("notebook")
    await stage.until(lambda: stage.seen("notebook"), "it sees the pod")
    session = f"{stage.project}/{stage.lab.namespace.name}.notebook"
    await stage.cluster.delete(session, by="ana")


async def reads_a_log(stage: Stage) -> None:
    stage.pod("notebook", nodeName=stage.node)
    stage.kubelet.write("notebook", "it was here")
    session = f"{stage.project}/{stage.lab.namespace.name}.notebook"
    name = f"{stage.lab.namespace.name}/notebook"

    def up() -> bool:
        return stage.seen("notebook") and stage.cluster._pods.objects[name].is_up

    await stage.until(up, "the notebook runs")
    chunks = stage.cluster.logs(session, worker=None, tail=None, follow=False)
    assert b"it was here" in b"".join([chunk.lines async for chunk in chunks])


async def remembers(stage: Stage) -> None:
    assert await stage.cluster.history(await stage.submitted())


async def notes(stage: Stage) -> None:
    await stage.cluster.note(await stage.submitted(), "look at it")
    assert "Warning" in stage.events()


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
    """Reserve a device, learn which one it is, and let it go."""
    name = reservation_name(stage.node, "first")
    sharing, path = stage.cluster._sharing, f"{PODS}/{name}"

    def kept() -> Pod:
        return read_pod(stage.lab.plane.request("GET", path))

    async def settle(promises: Mapping[str, Promise]) -> None:
        pods = [kept()]
        await sharing.settle(pods, {pods[0].uid: (0,)}, [stage.node], dict(promises), {})

    try:
        await sharing.reserve(name, (stage.node, 0))
        sharing.learn(stage.node, Seen(inf, {f"runai-reservation/{name}": ("GPU-0",)}))
        await settle({"somebody": Promise(stage.node, (0,), is_part=True)})
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


async def makes_a_project(stage: Stage) -> None:
    await stage.cluster.put_project(ProjectSpec(f"{stage.project}-made"))


async def changes_a_project(stage: Stage) -> None:
    await stage.cluster.put_project(ProjectSpec(stage.project, weight=2))


async def deletes_a_project(stage: Stage) -> None:
    await stage.cluster.projects()
    await stage.cluster.delete_project(stage.project)


async def tells_shares(stage: Stage) -> None:
    await stage.cluster.observe()
    await stage.cluster.apply(Plan(decisions=()))
    path = f"/apis/jupyter-runai.dev/v1alpha1/projects/{stage.project}"
    assert "status" in stage.lab.plane.request("GET", path)


async def leads_and_resigns(stage: Stage, *, before: str = "") -> None:
    """Lead once; `before` is who held the Lease, or "" where there is none."""
    lease = "/apis/coordination.k8s.io/v1/namespaces/runai/leases"
    stage.lab.forget(f"{lease}/runai-scheduler")
    if before:
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
        body = {"metadata": {"name": "runai-scheduler"}, "spec": spec}
        stage.lab.plane.request("POST", lease, body)
    led: list[bool] = []

    async def work() -> None:
        led.append(True)
        raise _EnoughError

    leadership = Leadership(stage.api, namespace="runai", identity="me", lasts_s=3)
    try:
        await leadership.lead(work)
    except _EnoughError:
        await leadership.resign()
    held = stage.lab.plane.request("GET", f"{lease}/runai-scheduler")["spec"]
    assert (led, held["holderIdentity"]) == ([True], "")


class _EnoughError(Exception):
    """It has led."""


async def shows_itself(stage: Stage) -> None:
    body = {"metadata": {"name": "service-0"}, "spec": pod("service-0", 0)["spec"]}
    body["spec"] |= {"schedulerName": "nobody's"}
    stage.lab.plane.request("POST", OWN_PODS, body)
    try:
        await OwnPod(stage.api, "runai", "service-0").shows(leads=True)
        found = stage.lab.plane.request("GET", f"{OWN_PODS}/service-0")
    finally:
        stage.lab.forget(f"{OWN_PODS}/service-0?gracePeriodSeconds=0")
    assert found["metadata"]["labels"][LEADS] == "true"


async def knows_an_agent(stage: Stage) -> None:
    node = agent_token(stage.lab.plane, stage.node)
    with node as token:
        known = await NodeTokens(stage.api, "runai:runai-agent", Nobody()).pod(token)
    assert known == Actor(stage.node, "agent")


class Nobody:
    """Knows nobody."""

    async def actor(self, request: Any) -> Any:
        raise AssertionError(request)

    async def person(self, name: str) -> Any:
        raise AssertionError(name)


SCHEDULER, JOBS, OWN, SHARING = (
    "ClusterRole runai-scheduler",
    "ClusterRole runai-jobs",
    "Role runai-scheduler",
    "Role runai-reservations",
)
SEEN: Mapping[str, Act] = {
    "pods": sees_a_pod,
    "nodes": sees_a_node,
    "namespaces": sees_a_namespace,
    "jobs": sees_a_job,
    "projects": sees_a_project,
}
ACTS: Mapping[Right, Act] = {
    **{
        Right(SCHEDULER, what, verb): act
        for what, act in SEEN.items()
        for verb in ("list", "watch")
    },
    Right(SCHEDULER, "pods", "get"): submits_beside_a_notebook,
    Right(SCHEDULER, "jobs", "patch"): suspends,
    Right(SCHEDULER, "pods/binding", "create"): binds,
    Right(SCHEDULER, "pods/eviction", "create"): evicts,
    Right(SCHEDULER, "pods/status", "patch"): says_why,
    Right(SCHEDULER, "events", "create"): notes,
    Right(SCHEDULER, "tokenreviews", "create"): knows_an_agent,
    Right(SCHEDULER, "projects", "create"): makes_a_project,
    Right(SCHEDULER, "projects", "patch"): changes_a_project,
    Right(SCHEDULER, "projects", "delete"): deletes_a_project,
    Right(SCHEDULER, "projects/status", "patch"): tells_shares,
    Right(JOBS, "jobs", "create"): submits,
    Right(JOBS, "jobs", "delete"): deletes_a_job,
    Right(JOBS, "pods", "delete"): deletes_a_session,
    Right(JOBS, "pods/log", "get"): reads_a_log,
    Right(JOBS, "persistentvolumeclaims", "get"): submits_beside_a_notebook_with_a_home,
    Right(JOBS, "events", "list"): remembers,
    Right(OWN, "leases", "create"): leads_and_resigns,
    Right(OWN, "leases", "get"): leads_and_resigns,
    Right(OWN, "leases", "update"): partial(leads_and_resigns, before="nobody"),
    Right(OWN, "pods", "patch"): shows_itself,
    **{Right(SHARING, "pods", verb): keeps_a_device for verb in ("create", "patch", "delete")},
}
