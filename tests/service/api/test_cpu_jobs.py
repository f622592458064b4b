"""Jobs without a GPU on a full machine: the API says that they wait, and for what."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.clusters.simulated import simulated_cluster
from runai.hub_service.model.device import NodeCapacity
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.explanation_schemas import PlanQuestion
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually_async


@pytest.fixture
async def ana(platform_on) -> AsyncIterator[object]:
    """Return ana's client of a machine with two CPUs."""
    devices = SimulatedDevices(5, node="lab").devices()
    capacities = {"lab": NodeCapacity(2000)}
    cluster = simulated_cluster({"lab": devices}, clock=time.time, capacities=capacities)
    await cluster.put_project(ProjectSpec("wide", members=("ana",)))
    async with platform_on(cluster) as served:
        yield await served.client("ana")


def job_request(name: str, **fields: object) -> SubmitRequest:
    defaults: dict[str, object] = {"name": name, "project": "vision", "command": ["true"]}
    return SubmitRequest.model_validate(defaults | fields)


@pytest.mark.parametrize("array", [pytest.param(5, id="short"), pytest.param(34, id="long")])
async def test_cpu_job_array_starts_as_many_jobs_as_there_are_cpus(ana, array):
    dry_run_reply = await ana.submit(job_request("exp", array=array), dry_run=True)
    # Each job takes one of the two CPUs.
    assert [w.name for w in dry_run_reply.workloads if w.reason is None] == ["exp-0", "exp-1"]

    await ana.submit(job_request("exp", array=array))

    states = Counter({w.state: w.size for w in await ana.workloads() if w.left})
    assert states + Counter(w.state for w in await ana.workloads() if not w.left) == {
        "running": 2,
        "queued": array - 2,
    }


@pytest.mark.parametrize(
    ("fields", "cpu", "memory"),
    [
        pytest.param({}, 1, 1024, id="default without a GPU"),
        pytest.param({"gpus": 1}, 0, 0, id="default with a GPU"),
        pytest.param({"gpu_memory_mib": 100}, 0.1, 64, id="default with GPU memory"),
        pytest.param({"gpus": "0.5"}, 0.1, 64, id="default with a fraction"),
        pytest.param({"elastic": True}, 0, 0, id="default of an elastic job"),
        pytest.param({"gpus": 1, "cpu": "1.5", "memory_mib": 2048}, 1.5, 2048, id="with a GPU"),
        pytest.param({"cpu": "0.25"}, 0.25, 1024, id="CPU alone"),
        pytest.param({"workers": 2, "cpu": 1}, 2, 2048, id="each of two workers"),
        pytest.param({"cpu": 0, "memory_mib": 0}, 0.1, 64, id="none"),
        pytest.param({"cpu": "0.001", "memory_mib": 1}, 0.1, 64, id="almost none"),
        pytest.param({"workers": 2, "cpu": 0, "memory_mib": 0}, 0.2, 128, id="none for two"),
        pytest.param({"gpus": 1, "cpu": 0, "memory_mib": 0}, 0, 0, id="none with a GPU"),
    ],
)
async def test_cpu_job_gets_its_requested_or_else_the_default_cpu_and_memory(
    ana, fields, cpu, memory
):
    (workload,) = (await ana.submit(job_request("exp", **fields))).workloads

    assert (workload.cpu, workload.memory_mib, workload.state) == (cpu, memory, "running")


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"cpu": 0, "memory_mib": 0}, id="no CPU"),
        pytest.param({"gpus": "0.001"}, id="fraction"),
        pytest.param({"gpu_memory_mib": 1}, id="GPU memory"),
        pytest.param({"gpus": "0.001", "cpu": "0.001", "memory_mib": 1}, id="almost nothing"),
    ],
)
async def test_array_with_tiny_cpu_requests_starts_ten_jobs_for_each_cpu(ana, fields):
    await ana.submit(job_request("exp", array=50, **fields))

    def running(workloads) -> int:
        return sum(w.size or 1 for w in workloads if w.state == "running")

    # The machine has two CPUs.
    assert running(await ana.workloads()) == 20


@pytest.mark.parametrize("dry_run", [False, True], ids=["stored", "dry run"])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"cpu": "2.5"}, "2.5 CPUs, more than any node has: the largest has 2.",
                     id="CPU of a job"),
        pytest.param({"kind": "session", "cpu": 3}, "3 CPUs, more than", id="CPU of a session"),
        pytest.param({"gpus": 6, "project": "wide"},
                     "6 GPUs, more than any node has: the largest has 5.", id="GPUs"),
        pytest.param({"gpus": 6, "project": "wide", "gpu_type": "simulated"},
                     "6 GPUs, more than any node of type Simulated GPU has: the largest has 5.",
                     id="GPUs of a type"),
    ],
)  # fmt: skip
async def test_cpu_or_memory_request_above_any_nodes_capacity_is_refused_unstored(
    ana, fields, message, dry_run
):
    with pytest.raises(InvalidRequest, match=f"^Each worker requests {message}") as refused:
        await ana.submit(job_request("exp", **fields), dry_run=dry_run)

    assert refused.value.code == "over_node"
    assert await ana.workloads() == []


async def test_job_larger_than_any_node_is_accepted_in_a_what_if_question(ana):
    answer = await ana.what_if(PlanQuestion(add=(job_request("new", cpu=3),)))

    assert [(e.workload, e.after) for e in answer.effects] == [("vision/new", "waits")]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        pytest.param(
            PlanQuestion(end=("vision/exp-0",)),
            {"vision/exp-0": ("runs", "gone"), "vision/exp-2": ("waits", "starts")},
            id="end of a running job",
        ),
        pytest.param(
            PlanQuestion(end=("vision/exp-2",)),
            {"vision/exp-2": ("waits", "gone")},
            id="end of a waiting job",
        ),
        pytest.param(
            PlanQuestion(add=(job_request("new", array=2),)),
            {"vision/new-0": (None, "waits"), "vision/new-1": (None, "waits")},
            id="added array",
        ),
    ],
)
async def test_predicted_what_if_plan_respects_the_free_cpus_of_a_node(ana, question, expected):
    await ana.submit(job_request("exp", array=4))

    async def effects() -> dict[str, tuple[str | None, str | None]]:
        answer = await ana.what_if(question)
        return {e.workload: (e.before, e.after) for e in answer.effects}

    async def is_as_expected() -> bool:  # after a cycle that sees the first jobs run
        return bool(await effects() == expected)

    await eventually_async(is_as_expected)
    assert await effects() == expected


async def test_node_shows_the_cpus_that_running_workloads_request(ana):
    await ana.submit(job_request("exp", array=3, cpu="0.75", memory_mib=512))

    async def allocation_figures() -> tuple[float | None, float, int | None, int]:
        (node,) = await ana.nodes()
        return node.cpus, node.cpus_allocated, node.memory_mib, node.memory_allocated_mib

    async def has_allocation() -> bool:  # from the cycle after the start
        return await allocation_figures() == (2, 1.5, None, 1024)

    await eventually_async(has_allocation)


async def test_wait_reason_names_missing_cpus_and_their_holder(ana):
    await ana.submit(job_request("long", cpu=2))

    (workload,) = (await ana.submit(job_request("new", cpu="0.5"))).workloads

    assert workload.reason is not None
    assert workload.reason.text == (
        "needs 0.5 CPUs on one node; lab has 0 of 2 CPUs free, held by vision/long"
    )


@pytest.mark.parametrize(
    ("capacity", "line"),
    [
        pytest.param(
            NodeCapacity(2000, 4096),
            "1.5 of 2 simulated CPUs requested, 2 of 4 GiB of memory",
            id="both",
        ),
        pytest.param(NodeCapacity(2000), "1.5 of 2 simulated CPUs requested", id="CPU alone"),
        pytest.param(NodeCapacity(), None, id="neither"),
    ],
)
async def test_gpu_page_shows_requested_cpu_and_memory_of_a_node(platform_on, capacity, line):
    devices = SimulatedDevices(1, node="lab").devices()
    cluster = simulated_cluster({"lab": devices}, clock=time.time, capacities={"lab": capacity})
    async with platform_on(cluster) as served:
        ana = await served.client("ana")
        await ana.submit(job_request("exp", cpu="1.5", memory_mib=2048))

        async def has_allocation() -> bool:  # from the cycle after the start
            (node,) = await ana.nodes()
            return bool(node.cpus_allocated == 1.5)

        await eventually_async(has_allocation)
        async with served.http("ana") as http:
            text = (await http.get("")).text

    cpu_lines = re.findall(r"<p>([^<]* CPUs requested[^<]*)</p>", text)
    assert cpu_lines == ([] if line is None else [line])
