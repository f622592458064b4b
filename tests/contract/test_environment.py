"""A worker's environment variables, and the device allocations that an agent reads."""

from __future__ import annotations

import pytest

from labs import NODE
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare

pytestmark = [
    pytest.mark.not_on_kubernetes("its Job gives a pod its environment"),
    pytest.mark.not_on_pods("their manifest has their environment"),
]


async def test_worker_environment_contains_workload_ids_and_gpu_share(lab):
    spec = lab.job(gpus=0.5, env={"LR": "0.1", "RUNAI_WORKER": "other/worker"}, array_index=4)
    await lab.started(spec, share=0.5)

    variables = (await lab.cluster.environment(spec.id)).variables

    # A device has 16,000 MiB; the job's own RUNAI_WORKER is overridden.
    expected = {
        "CUDA_VISIBLE_DEVICES": "SIM-0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "SIM-0",
        "RUNAI_WORKLOAD": "vision/exp",
        "RUNAI_WORKER": "vision/exp-0",
        "RUNAI_PROJECT": "vision",
        "RUNAI_KIND": "job",
        "RUNAI_GPU_FRACTION": "0.5",
        "RUNAI_GPU_MEMORY_LIMIT_MIB": "8000",
        "RUNAI_GPU_CONTEXT_MIB": "0",
        "RUNAI_RESUMED": "0",
        "RUNAI_ARRAY_INDEX": "4",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5000",
        "CUPY_GPU_MEMORY_LIMIT": str(8000 * 1024 * 1024),
        "LR": "0.1",
    }
    assert expected == {name: variables[name] for name in expected}
    assert "RANK" not in variables


async def test_workload_without_a_gpu_sees_no_device(lab):
    spec = lab.job(gpus=0)
    await lab.started(spec)

    variables = (await lab.cluster.environment(spec.id)).variables

    assert variables["CUDA_VISIBLE_DEVICES"] == ""
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert variables["RUNAI_GPU_MEMORY_LIMIT_MIB"] == "0"


async def test_agent_receives_the_owner_and_devices_of_each_allocation(lab):
    spec = lab.job()
    await lab.started(spec, lab.job("other"))

    first, _ = await lab.cluster.allocations(NODE)

    process = (await lab.cluster.workload(spec.id)).workers[0].process
    assert (spec.id, "vision/exp-0", "vision", "ana", process) == (
        first.workload,
        first.worker,
        first.project,
        first.user,
        first.process,
    )
    assert (DeviceShare(0, MilliGpu(1000)),) == first.shares
    assert list(await lab.cluster.allocations("elsewhere")) == []


async def test_agent_receives_a_memory_limit_for_shares_but_not_for_whole_devices(lab):
    shared, whole = lab.job("shared", gpus=0.25), lab.job("whole")
    await lab.started(shared, share=0.25)
    await lab.started(whole, device=1)

    limits = {a.workload: a.limits_mib for a in await lab.cluster.allocations(NODE)}

    # A quarter of 16,000 MiB.
    assert limits == {shared.id: (4000,), whole.id: (None,)}


async def test_cluster_note_about_a_workload_is_a_warning_in_its_history(lab):
    spec = lab.job()
    await lab.started(spec)
    await lab.cluster.observe()

    await lab.cluster.note(spec.id, "uses too much")

    assert (await lab.cluster.history(spec.id))[-1].kind == "warning"
    assert (await lab.cluster.history(spec.id))[-1].text == "uses too much"
