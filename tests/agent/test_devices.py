"""One contract for real and simulated devices: the inventory, and each process's use."""

from __future__ import annotations

import pytest

from runai.hub_service.agent.devices.sources import open_devices
from runai.hub_service.wire.errors import InvalidRequest, Unavailable


def by_workload(report, device):
    return {s.workload: s for s in report.samples if s.device == device}


def test_devices_have_equal_numbers_uuids_and_names_after_a_restart(harness):
    devices = harness.source.devices()
    reopened = harness.open()

    assert [d.index for d in devices] == [0, 1, 2]  # the harness has three devices
    assert len({d.uuid for d in devices}) == 3
    assert all(d.memory_mib > 0 and d.healthy and d.name for d in devices)
    assert {d.simulated for d in devices} == {harness.kind == "simulated"}
    assert reopened.devices() == devices
    reopened.close()
    reopened.close()  # closing twice does nothing


def test_report_without_allocations_has_devices_but_no_samples(harness):
    report = harness.report([])

    assert report.samples == []
    assert harness.uuids == [d.device for d in report.devices]
    assert report.interval > 0


def test_usage_of_a_busy_process_counts_for_its_workload(harness, allocate):
    process = harness.use(0, mib=50)

    samples = by_workload(
        harness.report([allocate("vision/a", harness.uuids[0], process=process)]), harness.uuids[0]
    )

    assert list(samples) == ["vision/a"]
    assert 0 < samples["vision/a"].utilization <= 1
    assert samples["vision/a"].memory_mib >= 50


def test_workload_gpu_usage_is_the_sum_of_its_processes(harness, allocate):
    first, second = harness.use(0, mib=20), harness.use(0, mib=30, busy=False)
    allocations = [allocate("vision/a", harness.uuids[0], process=p, worker=n)
                   for n, p in enumerate((first, second))]  # fmt: skip
    report = harness.report(allocations)

    rows = {p.pid: p for p in report.processes}
    assert rows.keys() == {first.pid, second.pid}
    assert [(p.worker, p.account, p.name) for p in (rows[first.pid], rows[second.pid])] == [
        ("vision/a-0", first.username(), first.name()),
        ("vision/a-1", second.username(), second.name()),
    ]
    (sample,) = report.samples
    assert sample.memory_mib == sum(p.memory_mib or 0 for p in rows.values())
    assert sample.utilization == pytest.approx(sum(p.utilization or 0 for p in rows.values()))


def test_workload_with_an_idle_process_has_zero_utilization(harness, allocate):
    process = harness.use(0, busy=False)

    (sample,) = harness.report([allocate("vision/a", harness.uuids[0], process=process)]).samples

    assert sample.utilization == pytest.approx(0, abs=0.05)


def test_workload_without_a_process_has_zero_usage(harness, allocate):
    (sample,) = harness.report([allocate("vision/a", harness.uuids[1])]).samples

    assert ("vision/a", harness.uuids[1], 0.0, 0) == (
        sample.workload, sample.device, sample.utilization, sample.memory_mib,
    )  # fmt: skip


def test_detached_process_is_attributed_by_its_environment(harness, allocate):
    root = harness.use(0, busy=False)
    harness.use(0, relation="detached", env={"RUNAI_WORKLOAD": "vision/a"})

    samples = by_workload(
        harness.report([allocate("vision/a", harness.uuids[0], process=root)]), harness.uuids[0]
    )

    assert samples["vision/a"].utilization > 0


def test_workloads_that_share_a_device_have_separate_utilization(harness, allocate):
    first, second = harness.use(0), harness.use(0)
    idle = harness.use(1, busy=False)
    report = harness.report(
        [
            allocate("vision/a", harness.uuids[0], process=first, gpus=0.5),
            allocate("nlp/b", harness.uuids[0], process=second, gpus=0.5),
            allocate("nlp/c", harness.uuids[1], process=idle),
        ]
    )

    shared = by_workload(report, harness.uuids[0])
    assert {"vision/a", "nlp/b"} == set(shared)
    assert all(s.utilization > 0 for s in shared.values())
    assert sum(s.utilization for s in shared.values()) <= 1.0 + 1e-9
    assert by_workload(report, harness.uuids[1])["nlp/c"].utilization == pytest.approx(0, abs=0.05)


def test_workload_has_zero_usage_after_its_process_exited(harness, allocate, eventually):
    process = harness.use(0)
    allocation = allocate("vision/a", harness.uuids[0], process=process)
    harness.report([allocation])

    process.kill()
    eventually(lambda: not process.is_running() or process.status() == "zombie")
    harness.poll([allocation])
    (sample,) = harness.report([allocation]).samples

    assert (sample.utilization, sample.memory_mib) == (0.0, 0)


# -- choice of devices ---------------------------------------------------------------------------


def test_simulated_devices_replace_real_devices_when_requested(nvml):
    nvml.write("gpu GPU-0 1000 0 0 0 Fake")

    assert [d.simulated for d in open_devices("auto", 2).devices()] == [True] * 2


def test_gpus_auto_selects_all_real_devices(nvml):
    nvml.write("gpu GPU-0 1000 0 0 0 Fake", "gpu GPU-1 1000 0 0 0 Fake")

    assert [d.uuid for d in open_devices().devices()] == ["GPU-0", "GPU-1"]


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("", id="no GPU"),
        pytest.param("fault -1 nvmlInitWithFlags 9", id="driver not loaded"),
        pytest.param("fault -1 nvmlDeviceGetCount_v2 999", id="driver does not respond"),
    ],
)
def test_gpus_auto_simulates_five_devices_if_no_real_device_answers(nvml, state):
    nvml.write(state)

    assert [d.simulated for d in open_devices("auto").devices()] == [True] * 5


def test_number_of_gpus_selects_the_first_devices(nvml):
    nvml.write("gpu GPU-0 1000 0 0 0 Fake", "gpu GPU-1 1000 0 0 0 Fake")

    assert [d.uuid for d in open_devices(1).devices()] == ["GPU-0"]


def test_fewer_devices_than_requested_is_an_error_with_a_hint(nvml):
    nvml.write("gpu GPU-0 1000 0 0 0 Fake")

    with pytest.raises(Unavailable) as error:
        open_devices(2)

    assert str(error.value) == (
        "2 GPUs were asked for with --gpus, but NVML finds 1."
        " Use --simulate 2 to try the platform without them."
    )


def test_zero_gpus_open_no_devices():
    assert open_devices(0).devices() == []


@pytest.mark.parametrize("options", [{"gpus": -1}, {"simulate": -1}])
def test_negative_number_of_gpus_is_refused(options):
    with pytest.raises(InvalidRequest, match="-1 is not a number of GPUs"):
        open_devices(**options)


def test_simulated_devices_differ_from_node_to_node():
    first_node, second_node = (
        open_devices(simulate=2, node="here"),
        open_devices(simulate=2, node="there"),
    )

    assert not {d.uuid for d in first_node.devices()} & {d.uuid for d in second_node.devices()}
