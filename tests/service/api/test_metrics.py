"""Metrics: access, label names, and the dashboard's queries answered by a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
import time
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from prometheus import prometheus
from runai.hub_service.api.metrics.counters import ServiceCounters
from runai.hub_service.clusters.simulated import simulated_cluster
from runai.hub_service.controller.controller import Cycle
from runai.hub_service.model.device import Device
from runai.hub_service.scheduler.model.snapshot import (
    Decision,
    Move,
    Plan,
    Reason,
    Stop,
    StopCode,
)
from runai.hub_service.wire.reports import AgentReport, DeviceSample, UsageSample
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually_async

DASHBOARD = Path(__file__).parents[3] / "helm" / "dashboards" / "gpus.json"
EXPRESSIONS = {
    f"{panel['title']}-{target['refId']}": target["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]
    for target in panel["targets"]
}
ORIGINAL_LABELS = {
    "runai_job_gpu_utilization": {"project", "job_name"},
    "runai_job_allocated_gpus": {"project", "job_name", "job_type"},
    "runai_job_requested_gpus": {"project", "job_name", "job_type"},
    "runai_job_requested_gpu_memory": {"project", "job_name", "job_type"},
    "runai_job_used_gpu_memory_bytes": {"project", "job_name"},
    "runai_gpu_last_active_time": {"node", "gpu"},
    "runai_gpu_is_allocated": {"node", "gpu"},
    "runai_gpu_is_running_fractional_job": {"node", "gpu"},
    "runai_gpu_utilization_non_fractional_jobs": {"job_name", "node", "gpu"},
    "runai_node_gpu_used_memory_bytes": {"node"},
    "runai_node_total_memory_bytes": {"node"},
    "runai_mig_mode_gpu_count": {"node"},
    "runai_project_guaranteed_gpus": {"project"},
}

LABEL_ORDER = ("project", "workload", "job_name", "kind", "job_type", "node", "device", "gpu")


async def metrics_of(served, name: str) -> str:
    async with served.http(name) as http:
        reply = await http.get("metrics")
        assert reply.status_code == 200, reply.text
        return str(reply.text)


def samples(text: str, name: str) -> dict[tuple[str, ...], float]:
    """Return the values by their labels, in the order of LABEL_ORDER."""
    return {
        tuple(sample.labels[label] for label in LABEL_ORDER if label in sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def usage_report(at: float, interval: float, uuid: str, busy: float) -> AgentReport:
    return AgentReport(
        node="lab",
        at=at,
        interval=interval,
        devices=[DeviceSample(device=uuid, utilization=busy, memory_mib=2048)],
        samples=[
            UsageSample(workload="vision/exp1", device=uuid, utilization=busy, memory_mib=1024)
        ],
    )


@pytest.fixture
async def busy_platform(simulated):
    """Run exp1 on half of a device, 40 % busy, while the job big waits."""
    ana, agent = await simulated.client("ana"), await simulated.client("agent")
    await ana.submit(SubmitRequest(name="exp1", project="vision", command=["true"], gpus="0.5"))
    await ana.submit(SubmitRequest(name="big", project="vision", command=["true"], gpus="4"))
    uuid = (await ana.nodes())[0].devices[0].uuid
    clock = simulated.platform.clock
    before = clock()

    async def report() -> None:
        nonlocal before
        now = clock()
        await agent.report(usage_report(now, now - before, uuid, 0.4))
        before = now

    await report()
    return simulated, report


async def test_gpu_second_counters_of_project_node_and_workload_agree(busy_platform):
    served, report = busy_platform

    async def gpu_seconds_agree() -> bool:
        await report()
        text = await metrics_of(served, "ana")
        allocated = samples(text, "runai_gpu_seconds_allocated_total")["vision",]
        used = samples(text, "runai_gpu_seconds_used_total")["vision",]
        node = samples(text, "runai_node_gpu_seconds_used_total")["lab",]
        mine = samples(text, "runai_workload_gpu_seconds_used_total")["vision", "exp1", "job"]

        assert used == pytest.approx(node)
        assert used == pytest.approx(mine)
        # The device is 40 % busy, and half of it is allocated.
        assert used <= 0.4 / 0.5 * allocated + 1e-6
        return used > 0.1

    await eventually_async(gpu_seconds_agree)


async def test_prometheus_metrics_equal_api_values(busy_platform):
    served, _ = busy_platform
    ana = await served.client("ana")
    workload = next(w for w in await ana.workloads() if w.id == "vision/exp1")
    text = await metrics_of(served, "ana")
    key = "vision", "exp1", "job"

    assert samples(text, "runai_workload_gpus_allocated")[key] == workload.allocated == 0.5
    assert samples(text, "runai_workload_gpus_utilized")[key] == workload.measured.utilized == 0.4
    assert samples(text, "runai_workload_memory_used_bytes")[key] == 1024 * 2**20
    assert workload.measured.memory_used_mib == 1024
    assert samples(text, "runai_gpus_utilized")["vision",] == 0.4
    assert sorted(samples(text, "runai_device_utilization_ratio").values()) == [0.4]


async def test_hidden_workloads_have_no_metric_series(busy_platform):
    served, _ = busy_platform
    has_series = {
        name: bool(samples(await metrics_of(served, name), "runai_workload_gpus_allocated"))
        for name in ("ana", "mia", "root", "hub", "nel", "out")
    }

    assert has_series == dict.fromkeys(("ana", "mia", "root", "hub"), True) | {
        "nel": False,
        "out": False,
    }


async def test_workloads_without_allocation_have_no_metric_series(busy_platform):
    served, _ = busy_platform
    text = await metrics_of(served, "root")

    assert "big" not in text


HOSTILE_NAME = 'a"b\\c\\nd\ne} 1\nrunai_forged{x="y"} 7\n#'


async def test_hostile_node_name_is_exported_as_one_metric_label(platform_on):
    """A node has its machine's name; a scrape reads the same name, and the name adds no line."""
    device = Device(0, HOSTILE_NAME, HOSTILE_NAME, 16_000, simulated=True)
    async with platform_on(simulated_cluster({HOSTILE_NAME: [device]}, clock=time.time)) as served:
        text = await metrics_of(served, "root")

    assert list(samples(text, "runai_gpu_is_allocated")) == [(HOSTILE_NAME, "0")]
    families = {family.name for family in text_string_to_metric_families(text)}
    assert "runai_forged" not in families


async def test_metrics_with_original_runai_names_have_their_labels_and_units(busy_platform):
    served, _ = busy_platform
    ana, agent = await served.client("ana"), await served.client("agent")
    await ana.submit(SubmitRequest(name="some", command=["true"], gpu_memory_mib=4000))
    await ana.submit(SubmitRequest(name="whole", command=["true"], gpus="1"))
    shares = {w.name: w.workers[0].devices[0] for w in await ana.workloads() if w.allocated}
    await agent.report(usage_report(served.platform.clock(), 1.0, shares["whole"].uuid, 0.7))
    text = await metrics_of(served, "root")
    labels = {
        name: {
            label
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
            for label in sample.labels
        }
        for name in ORIGINAL_LABELS
    }

    assert labels == ORIGINAL_LABELS
    # The agent has reported exp1 as 40 % busy, whole as 70 %, and 2048 MiB of each device.
    assert samples(text, "runai_job_gpu_utilization")["vision", "exp1"] == pytest.approx(40)
    assert samples(text, "runai_gpu_is_running_fractional_job")["lab", "0"] == 1
    assert samples(text, "runai_job_allocated_gpus")["vision", "exp1", "training"] == 0.5
    assert samples(text, "runai_job_requested_gpus")["vision", "whole", "training"] == 1
    memory = samples(text, "runai_job_requested_gpu_memory")
    assert memory["vision", "some", "training"] == 4000 * 2**20
    assert memory["vision", "exp1", "training"] == 0
    gpu = str(shares["whole"].device)
    assert samples(text, "runai_gpu_utilization_non_fractional_jobs") == {
        ("whole", "lab", gpu): pytest.approx(70)
    }
    assert samples(text, "runai_node_gpu_used_memory_bytes")["lab",] == 2 * 2048 * 2**20
    assert samples(text, "runai_mig_mode_gpu_count")["lab",] == 0


def test_job_stop_metric_is_labelled_by_kind_and_policy_rule():
    def why(code: StopCode, rule: str) -> Reason:
        return Reason(code=code, rule=rule, text="because")

    decisions: tuple[Decision, ...] = (
        *(Stop(workload="a", worker=w, reason=why("reclaimed", "Q6")) for w in ("a-0", "a-1")),
        Move(workload="b", worker="b-0", node="n", devices=(), reason=why("consolidated", "R10")),
    )
    registry = CollectorRegistry()
    ServiceCounters(registry).count(Cycle(plan=Plan(decisions=decisions)))

    counts = {
        (kind, rule): registry.get_sample_value("runai_stops_total", {"kind": kind, "rule": rule})
        for kind, rule in (("stop", "Q6"), ("move", "R10"), ("stop", "R10"))
    }
    assert counts == {("stop", "Q6"): 2, ("move", "R10"): 1, ("stop", "R10"): None}


async def test_queue_wait_metric_counts_a_job_when_its_wait_ends(busy_platform):
    served, _ = busy_platform
    text = await metrics_of(served, "ana")

    # The job exp1 has started; big still waits.
    assert samples(text, "runai_queue_wait_seconds_count")["vision", "job"] == 1


async def test_grafana_dashboard_queries_only_exported_metrics(busy_platform):
    served, _ = busy_platform
    text = await metrics_of(served, "root")
    exported = {s.name for family in text_string_to_metric_families(text) for s in family.samples}
    queried = {name for e in EXPRESSIONS.values() for name in re.findall(r"\brunai_\w+", e)}

    assert queried - exported == set()


@pytest.mark.prometheus
async def test_metric_names_follow_prometheus_conventions(busy_platform):
    served, _ = busy_platform
    text = await metrics_of(served, "root")
    own_metrics = "".join(
        line
        for line in text.splitlines(keepends=True)
        if not any(f" {name} " in line or line.startswith(name) for name in ORIGINAL_LABELS)
    )
    checked = await asyncio.create_subprocess_exec(
        "promtool", "check", "metrics", stdin=PIPE, stdout=PIPE, stderr=STDOUT
    )
    complaints, _ = await checked.communicate(own_metrics.encode())

    assert complaints.decode() == ""


@pytest.mark.prometheus
async def test_every_query_of_the_grafana_dashboard_returns_data(
    busy_platform, tmp_path, free_port
):
    served, report = busy_platform
    source = {
        "metrics_path": "/services/runai/metrics",
        "authorization": {"credentials": "root-token"},
        "static_configs": [{"targets": [served.url.split("/")[2]]}],
    }
    async with prometheus(source, tmp_path, free_port()) as query:

        async def answered() -> bool:
            await report()
            results = {title: await query(concrete(e)) for title, e in EXPRESSIONS.items()}
            return all(results[title] for title in results)

        await eventually_async(answered, within=120)
        busy_share = " / ".join(
            f"rate(runai_workload_gpu_seconds_{name}_total[10s])" for name in ("used", "allocated")
        )

        async def averaged() -> bool:
            await report()
            result = await query(busy_share)  # empty if no agent reported for ten seconds
            # 0.4 of the 0.5 that is allocated to the job: an average is a plain rate.
            return bool(result) and float(result[0]["value"][1]) == pytest.approx(0.8, abs=0.1)

        await eventually_async(averaged, within=120)


def concrete(expression: str) -> str:
    """Substitute the variables as Grafana does."""
    return (
        expression.replace("$__rate_interval", "10s")
        .replace("$__range", "10s")
        .replace("$project", ".*")
    )
