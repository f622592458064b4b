"""An elastic job of several pods on real nodes: workers come and go, no sample is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from allowed_training import PATIENCE_S, AllowedTraining
from nodes_hub import NAMESPACE, NodesHub
from nodes_lab import NodesLab
from real_nodes.images import RUNAI
from real_nodes.node import ENVIRONMENT, OURS
from runai.hub_service.client import Client
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [
    pytest.mark.nodes,
    pytest.mark.cc,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

HOME = "/home"
CORE, JOBS = f"/api/v1/namespaces/{NAMESPACE}", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


class ElasticWorkersScenario:
    """Two nodes of two GPUs, and an elastic job of bob's, with a quota of one GPU."""

    def __init__(self, lab: NodesLab, service: Client, disk: Path) -> None:
        self.lab, self.service = lab, service
        self.job = AllowedTraining("bob/elastic", disk / "training", lambda: service)

    def submit(self) -> None:
        self.service.submit(
            SubmitRequest(
                name="elastic",
                owner="bob",
                command=self.job.command("python", f"{HOME}/training"),
                workers=3,
                elastic=True,
                grace_seconds=30,
                env={
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{OURS}/tests",
                },
            )
        )

    def start_pattys_job(self, name: str, gpus: int) -> None:
        """Submit a job of patty's, and wait until it runs."""
        command = ["sleep", "1000000"]
        request = SubmitRequest(
            name=name, owner="patty", command=command, gpus=gpus, grace_seconds=1
        )
        self.service.submit(request)
        eventually(
            lambda: self.service.workload(f"patty/{name}").state == "running",
            within=PATIENCE_S,
            what=f"{name} runs",
        )

    def worker_nodes(self) -> list[str]:
        """Return the node of each worker, by the kubelets' records."""
        return sorted(
            f"node-{number}"
            for number in range(2)
            for pod, devices in self.lab.kubelet_allocations(number).items()
            for _ in devices
            if "bob-elastic-" in pod
        )


@pytest.fixture
def disk(lab: NodesLab) -> Iterator[Path]:
    """Mount a disk of both nodes in bob's notebook; jobs get the notebook's mounts."""
    name = f"shared-{lab.number}"
    folder = lab.cluster.place / name
    folder.mkdir()
    lab.storage_class(name, volumeBindingMode="Immediate")
    volume = {"accessModes": ["ReadWriteMany"], "hostPath": {"path": str(folder)}}
    lab.volume(name, "node-0", "node-1", of_class=name, local=None, **volume)
    claim_spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": name}, "spec": {**claim_spec, "storageClassName": name}}
    lab.plane.request("POST", f"{CORE}/persistentvolumeclaims", claim)
    home = {"name": "home", "persistentVolumeClaim": {"claimName": name}}
    mount = {"name": "home", "mountPath": HOME}
    container = {"name": "notebook", "image": RUNAI, "command": ["tail", "-f", "/dev/null"]}
    notebook = {
        "metadata": {
            "name": "notebook",
            "labels": {"runai/project": "bob"},
            "annotations": {"hub.jupyter.org/username": "bob"},
        },
        "spec": {
            "schedulerName": "runai-scheduler",
            "terminationGracePeriodSeconds": 0,
            "volumes": [home],
            "containers": [{**container, "volumeMounts": [mount]}],
        },
    }
    lab.plane.request("POST", f"{CORE}/pods", notebook)
    yield folder
    for path in (f"{CORE}/pods/notebook", f"{CORE}/persistentvolumeclaims/{name}"):
        lab.forget(path)


@pytest.fixture
def scenario(
    lab: NodesLab, service: Client, hub: NodesHub, disk: Path
) -> Iterator[ElasticWorkersScenario]:
    lab.project("bob", quota=1, members=["bob"])
    lab.project("patty", quota=3, members=["patty"])
    eventually(
        lambda: any(w.user == "bob" and w.state == "running" for w in service.workloads()),
        within=PATIENCE_S,
        what="the notebook runs",
    )
    yield ElasticWorkersScenario(lab, service, disk)
    lab.plane.request("DELETE", JOBS, {"propagationPolicy": "Background"})
    path = f"{CORE}/pods?labelSelector=batch.kubernetes.io/job-name"
    eventually(
        lambda: not lab.plane.request("GET", path)["items"],
        within=PATIENCE_S,
        what="all jobs are deleted",
    )


def test_elastic_job_grows_over_both_nodes_shrinks_for_owner_and_completes(
    scenario: ElasticWorkersScenario,
):
    scenario.start_pattys_job("both", 2)
    scenario.start_pattys_job("one", 1)
    scenario.submit()
    scenario.job.trains_on(1)

    scenario.service.delete("patty/both")
    scenario.job.trains_on(3)
    nodes_of_three_workers = scenario.worker_nodes()

    scenario.start_pattys_job("owner", 1)
    scenario.job.trains_on(2)
    job = scenario.job.run_to_end()

    assert set(nodes_of_three_workers) == {"node-0", "node-1"}
    assert len(nodes_of_three_workers) == 3
    assert job.elastic is not None
    assert job.failures == 0
    assert job.pauses == 0
    assert job.exit_code == 0
    # Workers that start together may be ready, and end, at different moments.
    assert job.elastic.resizes >= 2
    assert scenario.job.has_lost_nothing()
    assert scenario.job.sizes() == {1, 2, 3}
