"""A submitted job on a real API server: its image, its peers, its node and its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from control_plane.objects import pod
from kubernetes_lab import kubernetes_lab
from labs import NODE
from runai.hub_service.clusters.kubernetes.objects.job_manifest import GANG_SERVICE
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.errors import InvalidRequest
from waiting import eventually_async

pytestmark = pytest.mark.kubernetes


@pytest.fixture
async def lab(plane):
    async with kubernetes_lab(plane) as job_pod:
        yield job_pod


async def start_notebook(lab, *modes: str) -> None:
    """Start the notebook of the lab's user, with a home volume of its own."""
    namespace = lab.around.namespace
    namespace.claim("home", *modes)
    user = {"hub.jupyter.org/username": lab.job().user}
    server = pod("jupyter", 0, annotations=user)
    home = {"name": "home", "persistentVolumeClaim": {"claimName": "home"}}
    server["spec"] |= {"nodeName": NODE, "volumes": [home]}
    server["spec"]["containers"][0]["volumeMounts"] = [{"name": "home", "mountPath": "/home"}]
    namespace.create(server)

    async def up() -> bool:
        found = lab.cluster.cache.informers.pods.objects.get(f"{namespace.name}/jupyter")
        return found is not None and found.is_up

    await eventually_async(up, what="the notebook runs")


def pod_spec_of(lab) -> dict[str, Any]:
    spec: dict[str, Any] = lab.around.namespace.job("vision-exp")["spec"]["template"]["spec"]
    return spec


async def test_job_runs_in_the_requested_image_with_the_notebooks_home(lab):
    await start_notebook(lab, "ReadWriteMany")

    await lab.cluster.submit([replace(lab.job(), image="example/other:2")])

    (container,) = pod_spec_of(lab)["containers"]
    assert container["image"] == "example/other:2"
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/home"]
    assert "affinity" not in pod_spec_of(lab)  # another pod may mount it too


async def test_home_volume_of_one_node_confines_the_job_to_that_node(lab):
    await start_notebook(lab)
    lab.around.node("gpu-elsewhere", gpus=8)

    await lab.started(lab.job())

    (job_pod,) = lab.around.namespace.pods("vision-exp")
    assert job_pod["spec"]["nodeName"] == NODE
    (worker,) = [
        w
        for x in (await lab.cluster.observe()).workloads
        for w in x.workers
        if x.name == "vision/exp"
    ]
    assert worker.nodes == (NODE,)


async def test_gpu_request_above_the_home_volumes_node_is_refused_with_the_reason(lab):
    await start_notebook(lab)

    with pytest.raises(InvalidRequest) as refused:
        await lab.cluster.submit([replace(lab.job(), gpus=MilliGpu(5000))])

    assert str(refused.value) == (
        f"vision/exp asks for 5 GPUs, and {NODE} has 4 GPUs: the volume home of your notebook can"
        " be mounted on that node alone. Ask for fewer, or ask an admin for a volume that is"
        " ReadWriteMany."
    )
    assert lab.around.namespace.pods("vision-exp") == []


async def test_job_beside_a_home_volume_of_one_pod_is_refused(lab):
    await start_notebook(lab, "ReadWriteOncePod")

    with pytest.raises(InvalidRequest, match="can be mounted by one pod at a time"):
        await lab.cluster.submit([lab.job()])


async def test_gang_workers_find_the_first_worker_by_the_charts_service(lab, plane):
    await lab.started(lab.job(workers=2))

    service = plane.request("GET", f"/api/v1/namespaces/runai/services/{GANG_SERVICE}")["spec"]
    first, second = lab.around.namespace.pods("vision-exp")
    for job_pod in (first, second):
        assert service["selector"].items() <= job_pod["metadata"]["labels"].items()
        (container,) = job_pod["spec"]["containers"]
        variables = {each["name"]: each.get("value") for each in container["env"]}
        host = f"{first['spec']['hostname']}.{first['spec']['subdomain']}"
        assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == (host, "29500")
    # Workers resolve one another before any of them is ready.
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert first["spec"]["subdomain"] == GANG_SERVICE


async def test_finished_job_is_removed_after_its_ttl(lab):
    lab.cluster.submissions._ttl_s = 0
    spec = lab.job()
    await lab.started(spec)

    await lab.end(spec, 0)

    async def is_removed() -> bool:
        return spec.id not in {record.id for record in await lab.cluster.workloads()}

    await eventually_async(is_removed, what="the job is forgotten")
