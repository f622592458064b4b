"""`runai doctor` in a service's pod: the defects of its cluster, each with its remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chart.rights import Right, full_kubeconfig, kubeconfig_without
from control_plane.lab import LEASE, ClusterLab
from control_plane.objects import pod
from control_plane.plane import ControlPlane
from service_process import TOKEN, Service, kubernetes_service

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]  # one process per check

PODS = "/api/v1/namespaces/runai/pods"
Findings = dict[str, list[dict[str, str]]]
Doctor = Callable[..., Findings]


@pytest.fixture
def doctor(lab: ClusterLab, free_port, tmp_path: Path) -> Doctor:
    """Run it as in the pod of a service with these rights; return the findings by subject."""

    def examine(kubeconfig: Path, **settings: str) -> Findings:
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB", "RUNAI"))},
            "HOME": str(tmp_path),
            "KUBECONFIG": str(kubeconfig),
            "RUNAI_CLUSTER": "kubernetes",
            "RUNAI_DATA_DIR": str(tmp_path / "data"),
            "RUNAI_HUB_TOKEN": TOKEN,
            "RUNAI_JOBS_NAMESPACE": lab.namespace.name,
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{free_port()}",
            **settings,
        }
        done = subprocess.run(
            [sys.executable, "-P", "-m", "runai.hub_service.cli", "doctor", "-o", "json"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        found: list[dict[str, str]] = json.loads(done.stdout)
        assert done.returncode == any(each["verdict"] == "failure" for each in found)
        by_subject: dict[str, list[dict[str, Any]]] = {}
        for each in found:
            by_subject.setdefault(each["subject"], []).append(each)
        return by_subject

    return examine


@pytest.fixture
def service(lab: ClusterLab, kubeconfig: Path, free_port, tmp_path: Path) -> Iterator[Service]:
    made = kubernetes_service(tmp_path / "service", kubeconfig, lab.namespace.name, free_port())
    yield made
    made.end()


def verdicts(found: Findings, *subjects: str) -> list[str]:
    return [each["verdict"] for subject in subjects for each in found.get(subject, ())]


def test_doctor_finds_no_fault_in_a_service_installed_by_the_chart(
    doctor, service, lab, eventually
):
    eventually(lambda: "leader; listening" in service.log.read_text(), within=300)

    findings = doctor(
        full_kubeconfig(lab.plane, lab.namespace.name),
        JUPYTERHUB_SERVICE_URL=service.environment["JUPYTERHUB_SERVICE_URL"],
    )

    subjects = ("API server", "rights", "projects", "leader", "service", "token")
    assert {each: verdicts(findings, each) for each in subjects} == {
        key: ["ok"] for key in subjects
    }
    assert findings["token"][0]["text"].startswith("you are hub")


@pytest.mark.parametrize(
    ("missing_right", "expected"),
    [
        (
            Right("ClusterRole runai-scheduler", "pods/binding", "create"),
            "it may not create pods --subresource=binding, which it needs to start",
        ),
        (
            Right("ClusterRole runai-scheduler", "customresourcedefinitions", "list"),
            "it may not list customresourcedefinitions.apiextensions.k8s.io/pytorchjobs.kubeflow",
        ),
        (
            Right("ClusterRole runai-jobs", "jobs", "delete"),
            "it may not delete jobs.batch in {jobs}, which it needs to submit and delete jobs",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Right) else "",
)
def test_doctor_names_a_missing_right_with_its_use_and_role(doctor, lab, missing_right, expected):
    (finding,) = doctor(kubeconfig_without(lab.plane, lab.namespace.name, missing_right))["rights"]

    assert finding["verdict"] == "failure"
    assert finding["text"].startswith(expected.format(jobs=lab.namespace.name))
    assert finding["mend"].startswith(
        f"{missing_right.role} or its binding is not the chart's: helm"
    )


def test_doctor_advises_to_apply_a_missing_project_resource(doctor, tmp_path):
    with ControlPlane() as bare:
        findings = doctor(bare.kubeconfig)

    (projects,) = findings["projects"]
    assert projects["verdict"] == "failure"
    assert projects["mend"].startswith("kubectl apply --server-side -f helm/crds/projects.yaml")
    assert findings["leader"][0]["text"] == "none has ever led"


def test_doctor_reports_an_unreachable_api_server_as_a_failure(
    doctor, lab, kubeconfig, free_port, tmp_path
):
    unreachable = tmp_path / "away"
    unreachable.write_text(
        kubeconfig.read_text().replace(lab.plane.address, f"https://127.0.0.1:{free_port()}")
    )

    (finding,) = doctor(unreachable)["API server"]

    assert finding["verdict"] == "failure"
    assert "network policies" in finding["mend"]


def test_doctor_names_a_gpu_node_without_an_agent(doctor, lab, kubeconfig, eventually):
    for node in ("gpu-0", "gpu-1"):
        lab.node(node, gpus=1)
    agent = pod("agent-of-gpu-0", 0, nodeName="gpu-0", schedulerName="default-scheduler")
    agent["metadata"]["labels"] = {"app.kubernetes.io/component": "agent"}
    lab.plane.request("POST", PODS, agent)
    try:

        def agents_message() -> str:
            return str(doctor(kubeconfig)["agents"][0]["text"])

        eventually(lambda: agents_message().startswith("none runs on gpu-1:"))
    finally:
        lab.forget(f"{PODS}/agent-of-gpu-0")


def test_doctor_of_a_standby_scheduler_names_the_leader(doctor, lab, kubeconfig):
    lease = {"metadata": {"name": "runai-scheduler"}, "spec": {"holderIdentity": "runai-7-abc"}}
    lab.plane.request("POST", LEASE.rpartition("/")[0], lease)
    findings = doctor(kubeconfig)

    assert findings["leader"][0]["text"] == "runai-7-abc leads; this one waits"
    assert "service" not in findings
