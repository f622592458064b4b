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
from control_plane.kubeflow import kind_of_pytorch_jobs, pytorch_job, pytorch_jobs
from control_plane.kubelet import Kubelet
from control_plane.lab import LEASE, ClusterLab
from control_plane.objects import pod
from runai.hub_service.api.auth.node_tokens import NodeTokenAuthenticator
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.clusters.kubernetes.actions.decision_executor import DecisionExecutor
from runai.hub_service.clusters.kubernetes.client.api import Api
from runai.hub_service.clusters.kubernetes.client.leader_election import LeaderElection
from runai.hub_service.clusters.kubernetes.client.leader_label import LEADS, LeaderLabel
from runai.hub_service.clusters.kubernetes.gpu_sharing.reservation_pods import (
    PODS,
    reservation_name,
)
from runai.hub_service.clusters.kubernetes.kubernetes_cluster import KubernetesCluster
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod, read_pod
from runai.hub_service.clusters.kubernetes.objects.volume_binding import (
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

    async def until(self, condition: Callable[[], object], what: str) -> None:
        async def evaluated() -> object:
            return condition()

        await eventually_async(evaluated, what=what)

    def is_cached(self, name: str) -> bool:
        return f"{self.lab.namespace.name}/{name}" in self.cluster.cache.informers.pods.objects

    async def wait_until_running(self, name: str) -> str:
        """Wait until a pod runs; return its session's id."""

        def is_up() -> bool:
            cached = self.cluster.cache.informers.pods.objects.get(
                f"{self.lab.namespace.name}/{name}"
            )
            return cached is not None and cached.is_up

        await self.until(is_up, f"{name} runs")
        return f"{self.project}/{self.lab.namespace.name}.{name}"

    def pod(self, name: str, **fields: Any) -> Pod:
        return read_pod(self.lab.namespace.create(pod(name, 0, project=self.project, **fields)))

    def executor(self) -> DecisionExecutor:
        return DecisionExecutor(
            self.api, self.cluster.scheduling.sharing, self.cluster.scheduling.events
        )

    def events(self) -> list[str]:
        return [event["reason"] for event in self.lab.namespace.events()]


Action = Callable[[Stage], Awaitable[None]]


async def list_and_watch_objects(stage: Stage) -> None:
    """List all objects; the watches follow after that."""
    await stage.cluster.observe()


async def submit_job_from_notebook(stage: Stage) -> None:
    """Read the notebook's pod, and the access modes of its home."""
    stage.lab.namespace.claim("home")
    notebook = pod("notebook", 0, annotations={"hub.jupyter.org/username": "ana"})
    notebook["spec"] |= {"nodeName": stage.node, "volumes": [HOME]}
    notebook["spec"]["containers"][0]["volumeMounts"] = [{"name": "home", "mountPath": "/h"}]
    stage.lab.namespace.create(notebook)
    await stage.wait_until_running("notebook")
    await stage.cluster.submit([stage.spec("ana")])


async def manage_job(stage: Stage) -> None:
    """Submit a job, suspend it, add a note, read its history, delete it."""
    spec = stage.spec()
    await stage.cluster.submit([spec])
    await stage.cluster.suspend(spec.id, by="ana")
    await stage.cluster.note(spec.id, "check the job")
    assert "Warning" in stage.events()
    assert await stage.cluster.history(spec.id)
    await stage.cluster.delete(spec.id, by="ana")


async def delete_session(stage: Stage) -> None:
    stage.pod("notebook")
    await stage.until(lambda: stage.is_cached("notebook"), "the service sees the pod")
    session = f"{stage.project}/{stage.lab.namespace.name}.notebook"
    await stage.cluster.delete(session, by="ana")


async def read_log(stage: Stage) -> None:
    stage.pod("notebook", nodeName=stage.node)
    stage.kubelet.write("notebook", "epoch 1")
    session = await stage.wait_until_running("notebook")
    chunks = stage.cluster.logs(session, worker=None, tail=None, follow=False)
    assert b"epoch 1" in b"".join([chunk.lines async for chunk in chunks])


async def run_program(stage: Stage) -> None:
    """Reach the node with the request; no program runs there."""
    stage.pod("one", nodeName=stage.node)
    await stage.cluster.observe()
    session = await stage.wait_until_running("one")
    programs = PodExec(stage.api, stage.cluster.lookup.pods_of)
    (end,) = [piece async for piece in await programs.execute(session, 0, ["true"], b"")]
    assert isinstance(end, ProgramEnd)
    assert end.why


async def bind_pod(stage: Stage) -> None:
    pending_pod, executor = stage.pod("one"), stage.executor()
    await executor.start(Start(workload="w", worker="w-0", node=stage.node), pending_pod, None, {})
    assert stage.lab.namespace.node_of("one") == stage.node


async def evict_pod(stage: Stage) -> None:
    victim, executor = stage.pod("one", nodeName=stage.node), stage.executor()
    reason = Reason(code="reclaimed", rule="R4", text="another project is owed the GPU")
    await executor.stop(Stop(workload="w", worker="w-0", reason=reason), victim)
    assert executor.evicted == {victim.uid}


async def write_wait_reason(stage: Stage) -> None:
    await stage.executor().refuse(stage.pod("one"), "no GPU is free")
    conditions = stage.lab.namespace.pod("one")["status"]["conditions"]
    assert "no GPU is free" in [condition.get("message") for condition in conditions]


async def reserve_device(stage: Stage) -> None:
    """Reserve a device, learn its UUID, and release it."""
    name = reservation_name(stage.node, "first")
    sharing, path = stage.cluster.scheduling.sharing, f"{PODS}/{name}"

    def reservation_pod() -> Pod:
        return read_pod(stage.lab.plane.request("GET", path))

    async def settle(nominations: Mapping[str, NominatedPlacement]) -> None:
        pods = [reservation_pod()]
        await sharing.reconcile(pods, {pods[0].uid: (0,)}, [stage.node], dict(nominations), {})

    try:
        await sharing.reserve(name, (stage.node, 0))
        sharing.store_report(stage.node, NodeReport(inf, {f"runai-reservation/{name}": ("GPU-0",)}))
        await settle({"workload": NominatedPlacement(stage.node, (0,), is_shared=True)})
        assert reservation_pod().device == "GPU-0"
        await settle({})
        await stage.until(lambda: _is_deleted(stage, path), "the reservation is deleted")
    finally:
        stage.lab.forget(f"{path}?gracePeriodSeconds=0")


def _is_deleted(stage: Stage, path: str) -> bool:
    found = stage.lab.plane.request_existing("GET", path)
    return found is None or "deletionTimestamp" in found["metadata"]


async def manage_project(stage: Stage) -> None:
    """Create a project, change it, delete it."""
    name = f"{stage.project}-made"
    await stage.cluster.put_project(ProjectSpec(name))
    await stage.cluster.put_project(ProjectSpec(name, weight=2))
    await stage.cluster.delete_project(name)


async def write_project_shares(stage: Stage) -> None:
    await stage.cluster.observe()
    await stage.cluster.apply(Plan(decisions=()))
    path = f"/apis/jupyter-runai.dev/v1alpha1/projects/{stage.project}"
    assert "status" in stage.lab.plane.request("GET", path)


async def lead_and_resign(stage: Stage) -> None:
    """Create the Lease, lead once, and release it."""
    stage.lab.forget(LEASE)
    led_turns: list[bool] = []

    async def lead_once() -> None:
        led_turns.append(True)
        raise _LeadershipEndError

    leadership = LeaderElection(stage.api, namespace="runai", identity="me", lasts_s=3)
    try:
        await leadership.lead(lead_once)
    except _LeadershipEndError:
        await leadership.resign()
    lease_spec = stage.lab.plane.request("GET", LEASE)["spec"]
    assert (led_turns, lease_spec["holderIdentity"]) == ([True], "")


class _LeadershipEndError(Exception):
    """Ends the leadership after one turn."""


async def label_leader_pod(stage: Stage) -> None:
    body = {"metadata": {"name": "service-0"}, "spec": pod("service-0", 0)["spec"]}
    body["spec"] |= {"schedulerName": "nobody's"}
    stage.lab.plane.request("POST", OWN_PODS, body)
    try:
        await LeaderLabel(stage.api, "runai", "service-0").update(leads=True)
        own_pod = stage.lab.plane.request("GET", f"{OWN_PODS}/service-0")
    finally:
        stage.lab.forget(f"{OWN_PODS}/service-0?gracePeriodSeconds=0")
    assert own_pod["metadata"]["labels"][LEADS] == "true"


async def authenticate_agent(stage: Stage) -> None:
    node = agent_token(stage.lab.plane, stage.node)
    with node as token:
        actor = await NodeTokenAuthenticator(
            stage.api, "runai:runai-agent", UnusedAuthenticator()
        ).pod(token)
    assert actor == Actor(stage.node, "agent")


class UnusedAuthenticator:
    """An authenticator that fails the test when used."""

    async def actor(self, request: Any) -> Any:
        raise AssertionError(request)

    async def person(self, name: str) -> Any:
        raise AssertionError(name)


async def provision_volume(stage: Stage) -> None:
    claim, start = await _claim_and_start(stage)
    await stage.executor().provide(start, claim, None)
    assert read_claim(stage.lab.plane.request("GET", claim.path)).node == stage.node


async def bind_volume(stage: Stage) -> None:
    (claim, start), name = await _claim_and_start(stage), f"{stage.node}-disk"
    stage.lab.volume(name, stage.node, of_class="local")

    def disk() -> Volume:
        return read_volume(stage.lab.plane.request("GET", f"{VOLUMES}/{name}"))

    while disk().claim != claim.uid:  # Kubernetes' controller may write it in between
        await stage.executor().provide(start, claim, disk())


async def _claim_and_start(stage: Stage) -> tuple[Claim, Start]:
    stage.lab.namespace.claim("home", of_class="local")
    path = f"/api/v1/namespaces/{stage.lab.namespace.name}/persistentvolumeclaims/home"
    claim = read_claim(stage.lab.plane.request("GET", path))
    return claim, Start(workload="w", worker="w-0", node=stage.node)


async def manage_pytorch_job(stage: Stage) -> None:
    """Detect the kind once it is installed; list a PyTorchJob, suspend and delete it."""
    await stage.cluster.observe()
    with kind_of_pytorch_jobs(stage.lab.plane):
        await stage.until(
            lambda: stage.cluster.cache.informers.jobs._pytorch.lists,
            "the service has listed PyTorchJobs",
        )
        path = pytorch_jobs(stage.lab.namespace.name)
        job = pytorch_job("train", workers=1, labels={"runai/project": stage.project})
        uid = stage.lab.plane.request("POST", path, job)["metadata"]["uid"]
        await stage.until(
            lambda: uid in stage.cluster.cache.informers.jobs.by_uid(),
            "the service sees the PyTorchJob",
        )
        workload = f"{stage.project}/{stage.lab.namespace.name}.train"
        await stage.cluster.suspend(workload, by="ana")
        pytorch_job_object = stage.lab.plane.request("GET", f"{path}/train")
        assert pytorch_job_object["spec"]["runPolicy"]["suspend"] is True
        await stage.cluster.delete(workload, by="ana")
        assert stage.lab.plane.request("GET", path)["items"] == []


SCHEDULER, JOBS, OWN_NAMESPACE, RESERVATIONS = (
    "ClusterRole runai-scheduler",
    "ClusterRole runai-jobs",
    "Role runai-scheduler",
    "Role runai-reservations",
)
WATCHED_RESOURCES = (
    *("pods", "nodes", "namespaces", "jobs", "projects"),
    *("persistentvolumeclaims", "persistentvolumes", "storageclasses"),
)


def role_rights(role: str, *wordings: str) -> Iterable[Right]:
    """Yield rights of a role, such as `"list pods"`."""
    for words in wordings:
        verb, resource = words.split()
        yield Right(role, resource, verb)


ACTIONS: Mapping[Action, Iterable[Right]] = {
    list_and_watch_objects: [
        *role_rights(
            SCHEDULER, *(f"{verb} {w}" for w in WATCHED_RESOURCES for verb in ("list", "watch"))
        )
    ],
    submit_job_from_notebook: [
        *role_rights(SCHEDULER, "get pods"),
        *role_rights(JOBS, "create jobs", "get persistentvolumeclaims"),
    ],
    manage_job: [
        *role_rights(SCHEDULER, "patch jobs", "create events"),
        *role_rights(JOBS, "create jobs", "list events", "delete jobs"),
    ],
    delete_session: [*role_rights(JOBS, "delete pods")],
    read_log: [*role_rights(JOBS, "get pods/log")],
    bind_pod: [*role_rights(SCHEDULER, "create pods/binding")],
    evict_pod: [*role_rights(SCHEDULER, "create pods/eviction")],
    write_wait_reason: [*role_rights(SCHEDULER, "patch pods/status")],
    provision_volume: [*role_rights(SCHEDULER, "patch persistentvolumeclaims")],
    bind_volume: [*role_rights(SCHEDULER, "patch persistentvolumes")],
    reserve_device: [*role_rights(RESERVATIONS, "create pods", "patch pods", "delete pods")],
    authenticate_agent: [*role_rights(SCHEDULER, "create tokenreviews")],
    manage_project: [
        *role_rights(SCHEDULER, "create projects", "patch projects", "delete projects")
    ],
    write_project_shares: [*role_rights(SCHEDULER, "patch projects/status")],
    lead_and_resign: [*role_rights(OWN_NAMESPACE, "get leases", "create leases", "update leases")],
    label_leader_pod: [*role_rights(OWN_NAMESPACE, "patch pods")],
    manage_pytorch_job: [
        *role_rights(
            SCHEDULER, "list customresourcedefinitions", "watch customresourcedefinitions"
        ),
        *role_rights(SCHEDULER, "list pytorchjobs", "watch pytorchjobs", "patch pytorchjobs"),
        *role_rights(JOBS, "delete pytorchjobs"),
    ],
}
KUBEFLOW_ACTIONS = {manage_pytorch_job}
EXEC_RIGHTS = [*role_rights(JOBS, "get pods/exec", "create pods/exec")]
"""Rights of `run_program`, if the chart allows it (jobs.exec)."""
