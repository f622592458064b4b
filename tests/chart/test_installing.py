"""The chart's whole life on a real API server, by Helm: installed, upgraded, uninstalled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from control_plane.chart import CHART, HelmRefused, helm, install
from control_plane.lab import ClusterLab
from control_plane.objects import job
from control_plane.plane import ControlPlane
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes

SERVICE = "/apis/apps/v1/namespaces/runai/deployments/runai"
SECRET = "/api/v1/namespaces/runai/secrets/runai"


@pytest.fixture(scope="module")
def own_plane() -> Iterator[ControlPlane]:
    with ControlPlane() as started:
        install(started)
        yield started


def environment(plane: ControlPlane) -> dict[str, Any]:
    (container,) = plane.request("GET", SERVICE)["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable.get("value") for variable in container["env"]}


def exists(plane: ControlPlane, path: str) -> bool:
    return plane.request_existing("GET", path) is not None


def test_install_notes_name_the_url_and_the_hub_token(own_plane):
    notes = helm("get", "notes", "runai", "--namespace", "runai", kubeconfig=own_plane.kubeconfig)

    assert "url: http://runai.runai" in notes
    assert "key: hub-token" in notes


def test_service_pods_comply_with_the_restricted_pod_security_standard(own_plane, eventually):
    own_plane.kubectl("create", "namespace", "strict")
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    own_plane.kubectl("label", "namespace", "strict", restricted)
    template = own_plane.request("GET", SERVICE)["spec"]["template"]
    spec = {**template["spec"], "serviceAccountName": "default"}
    path = "/api/v1/namespaces/strict"
    eventually(lambda: exists(own_plane, f"{path}/serviceaccounts/default"))

    pod = {"metadata": {"name": "service"}, "spec": spec}
    own_plane.request("POST", f"{path}/pods?dryRun=All", pod)  # raises if it is refused


def test_chart_upgrade_preserves_tokens_and_running_jobs(own_plane, eventually):
    tokens = own_plane.request("GET", SECRET)["data"]
    lab = ClusterLab(own_plane)
    lab.node("gpu-0", gpus=1)
    lab.project("vision", quota=1)
    with Scheduler(own_plane.service_account("runai", "runai-scheduler")):
        lab.namespace.create(job("train", project="vision"))

        def running_pod_uids() -> list[str]:
            return [
                pod["metadata"]["uid"]
                for pod in lab.namespace.pods("train")
                if pod.get("status", {}).get("phase") == "Running"
            ]

        uids_before = eventually(running_pod_uids, what="the job runs")
        install(own_plane, "--set", "jobs.image=example/train,projects.vision.quota=3")

        assert environment(own_plane)["RUNAI_JOBS_IMAGE"] == "example/train"
        assert environment(own_plane)["RUNAI_PROJECTS"] == "/etc/runai/projects.yaml"
        assert own_plane.request("GET", SECRET)["data"] == tokens
        assert running_pod_uids() == uids_before

    # No scheduler runs any more, and running workloads complete all the same.
    lab.namespace.finish(lab.namespace.pods("train")[0]["metadata"]["name"])
    eventually(
        lambda: lab.namespace.job("train")["status"].get("succeeded"), what="the job has succeeded"
    )
    lab.remove()


def test_refused_chart_upgrade_leaves_the_deployment_unchanged(own_plane):
    generation_before = own_plane.request("GET", SERVICE)["metadata"]["generation"]

    with pytest.raises(HelmRefused, match="postgresql"):
        install(own_plane, "--set", "replicas=2")

    assert own_plane.request("GET", SERVICE)["metadata"]["generation"] == generation_before


def test_chart_uninstall_leaves_projects_and_the_history_volume(own_plane, eventually):
    lab = ClusterLab(own_plane)
    lab.project("nlp", quota=1)

    helm("uninstall", "runai", "--namespace", "runai", kubeconfig=own_plane.kubeconfig)

    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/runai-scheduler"
    eventually(lambda: not exists(own_plane, role) and not exists(own_plane, SERVICE))
    assert exists(own_plane, "/apis/jupyter-runai.dev/v1alpha1/projects/nlp")
    assert exists(own_plane, "/api/v1/namespaces/runai/persistentvolumeclaims/runai")

    install(own_plane)  # the remaining objects prevent no new installation

    assert exists(own_plane, SERVICE)


def test_second_chart_release_has_its_own_node_pool_and_changes_no_first_release(own_plane):
    release_values = "nodePool=example.com/pool=a,clusterWide=false,jupyterhub.namespace=runai"
    chart = ["upgrade", "--install", "runai-a", str(CHART), "--namespace", "runai-a"]
    helm(*chart, "--create-namespace", "--set", release_values, kubeconfig=own_plane.kubeconfig)
    path = "/apis/apps/v1/namespaces/runai-a/deployments/runai"
    (container,) = own_plane.request("GET", path)["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    lab = ClusterLab(own_plane)
    try:
        lab.project("vision-a", quota=1, labels={"example.com/pool": "a"})
        account = own_plane.service_account("runai-a", "runai-scheduler")
        with Scheduler(account, pool=variables["RUNAI_NODE_POOL"]) as scheduler:
            (project,) = scheduler.call(scheduler.cluster.projects())
    finally:
        lab.remove()
        helm("uninstall", "runai-a", "--namespace", "runai-a", kubeconfig=own_plane.kubeconfig)

    assert project.spec.name == "vision-a"
    assert exists(own_plane, "/apis/rbac.authorization.k8s.io/v1/clusterroles/runai-scheduler")
    assert exists(own_plane, SERVICE)
