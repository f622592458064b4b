"""Two projects with the same Job names for their workloads: each sees and affects its own only."""

from __future__ import annotations

import pytest

from kubernetes_lab import kubernetes_lab
from runai.hub_service.clusters.kubernetes.objects.job_manifest import (
    GANG_SERVICE,
    PodTemplateSource,
)
from runai.hub_service.clusters.kubernetes.objects.job_names import job_name, other_name
from runai.hub_service.model.records import WorkloadSpec
from runai.hub_service.wire.errors import Conflict

pytestmark = pytest.mark.kubernetes

LAB_WORKLOAD, LAB_SECRET_WORKLOAD = "lab/secret-job-1", "lab-secret/job-1"
NAMES = {LAB_WORKLOAD: ("lab", "secret-job-1"), LAB_SECRET_WORKLOAD: ("lab-secret", "job-1")}


@pytest.fixture
async def lab(plane):
    async with kubernetes_lab(plane) as made:
        yield made


def spec_of(lab, workload, **fields):
    project, name = NAMES[workload]
    return lab.job(name, project=project, **fields)


def jobs(lab):
    namespace = lab.around.namespace
    found = namespace.plane.request("GET", f"/apis/batch/v1/namespaces/{namespace.name}/jobs")
    return {job["metadata"]["name"]: job["metadata"]["labels"] for job in found["items"]}


async def test_workloads_of_two_projects_with_the_same_job_name_end_separately(lab):
    first, second = spec_of(lab, LAB_WORKLOAD), spec_of(lab, LAB_SECRET_WORKLOAD)
    assert job_name(first) == job_name(second)

    await lab.cluster.submit([first])
    (record,) = await lab.cluster.submit([second])

    assert record.id == LAB_SECRET_WORKLOAD
    assert {name: labels["runai/project"] for name, labels in jobs(lab).items()} == {
        "lab-secret-job-1": first.project,
        other_name(second): second.project,
    }
    assert {record.id for record in await lab.cluster.workloads()} == {
        LAB_WORKLOAD,
        LAB_SECRET_WORKLOAD,
    }

    await lab.cluster.delete(LAB_WORKLOAD, by="ana")
    await lab.until_deleted(LAB_WORKLOAD)
    assert list(jobs(lab)) == [other_name(second)]

    await lab.cluster.submit([first])
    await lab.cluster.delete(LAB_SECRET_WORKLOAD, by="ana")
    await lab.until_deleted(LAB_SECRET_WORKLOAD)
    assert list(jobs(lab)) == ["lab-secret-job-1"]


async def test_resubmitted_workload_is_refused_under_either_job_name(lab):
    await lab.cluster.submit([spec_of(lab, LAB_SECRET_WORKLOAD)])
    await lab.cluster.submit([spec_of(lab, LAB_WORKLOAD)])

    for workload, (project, name) in NAMES.items():
        with pytest.raises(Conflict) as refused:  # by the API server: our cache may not have it yet
            await lab.cluster.submissions._create_job(
                spec_of(lab, workload), PodTemplateSource("example/train")
            )
        assert str(refused.value).startswith(f"{project} already has a workload named {name}.")
    assert len(jobs(lab)) == 2


async def test_foreign_job_does_not_block_the_name_of_a_workload(lab):
    lab.around.namespace.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "lab-secret-job-1"},
            "spec": {
                "suspend": True,
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [{"name": "main", "image": "example"}],
                    }
                },
            },
        }
    )

    (record,) = await lab.cluster.submit([spec_of(lab, LAB_WORKLOAD)])

    assert record.id == LAB_WORKLOAD


async def test_gang_with_a_substitute_job_name_finds_its_first_worker(lab):
    await lab.cluster.submit([spec_of(lab, LAB_SECRET_WORKLOAD)])

    gang = spec_of(lab, LAB_WORKLOAD, workers=2)
    await lab.cluster.submit([gang])

    job = lab.around.namespace.job(other_name(gang))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    # The Job controller names the first pod's host by its Job.
    assert variables["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{GANG_SERVICE}"
    assert variables["RUNAI_WORKLOAD"] == LAB_WORKLOAD


def test_substitute_job_names_are_distinct_and_unlike_usual_job_names():
    longest = ("p" * 24, "n" * 38)
    specs = [WorkloadSpec(*names, "ana", "job", ("train",)) for names in (longest, *NAMES.values())]
    names = {other_name(spec) for spec in specs}

    assert len(names) == len(specs)
    assert all(name.isalnum() for name in names)  # every usual name has a hyphen
    assert all(len(f"{name}-99999") <= 63 for name in names)  # a pod's host
