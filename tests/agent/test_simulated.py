"""How a simulated device's load follows from its holders' processes."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.hub_service.agent import usage
from runai.hub_service.agent.devices import simulated
from runai.hub_service.agent.devices.simulated import SimulatedDevices, equal_shares
from runai.hub_service.agent.processes.process_table import ProcessTable

DEMANDS_AND_SHARES = [
    pytest.param({}, {}, id="no process"),
    pytest.param({"a": 0.5}, {"a": 0.5}, id="half a device"),
    pytest.param({"a": 3.0}, {"a": 1.0}, id="more than a device"),
    pytest.param({"a": 2.0, "b": 2.0}, {"a": 0.5, "b": 0.5}, id="two large demands"),
    pytest.param({"a": 0.1, "b": 2.0}, {"a": 0.1, "b": 0.9}, id="small and large demand"),
    pytest.param({"a": 0.0, "b": 1.0}, {"a": 0.0, "b": 1.0}, id="idle process"),
]


@pytest.mark.parametrize(("demands", "shares"), DEMANDS_AND_SHARES)
def test_demands_of_active_processes_share_a_simulated_gpu_equally(demands, shares):
    assert equal_shares(demands, 1.0) == pytest.approx(shares)


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 10), max_size=8))
def test_simulated_gpu_shares_never_exceed_the_device_or_their_demand(demands):
    shares = equal_shares(demands, 1.0)

    assert shares.keys() == demands.keys()
    assert all(0 <= shares[name] <= demands[name] for name in demands)
    assert sum(shares.values()) == pytest.approx(min(1.0, sum(demands.values())))


@pytest.fixture
def source():
    devices = SimulatedDevices(2, node="here")
    yield devices
    devices.close()


def test_first_poll_of_simulated_gpus_has_no_usage_samples(source, start, allocate):
    allocations = [allocate("vision/a", source.devices()[0].uuid, process=start(busy=True))]
    report = usage.report("here", source.poll(allocations), allocations)

    assert report.samples == []
    assert [d.utilization for d in report.devices] == [None, None]


def test_simulated_memory_is_spread_over_the_devices_of_a_worker(source, start, allocate):
    uuids = [d.uuid for d in source.devices()]
    allocations = [allocate("vision/a", *uuids, process=start(mib=200))]
    source.poll(allocations)
    first, second = usage.report("here", source.poll(allocations), allocations).samples

    assert first.memory_mib == second.memory_mib
    assert 100 <= (first.memory_mib or 0) < 150


def test_memory_sum_of_processes_on_a_simulated_gpu_is_at_most_its_memory(
    source, start, allocate, monkeypatch
):
    monkeypatch.setattr(simulated, "MEMORY_MIB", 100)
    uuid = source.devices()[0].uuid
    allocations = [allocate(f"vision/{n}", uuid, process=start(mib=150)) for n in "ab"]
    source.poll(allocations)
    report = usage.report("here", source.poll(allocations), allocations)

    assert [s.memory_mib for s in report.samples] == pytest.approx([50, 50], abs=1)
    assert (report.devices[0].memory_mib or 0) <= 100


def test_gang_workers_load_only_their_own_simulated_gpus(source, start, allocate, eventually):
    first, second = (d.uuid for d in source.devices())
    busy = start(busy=True)
    allocations = [
        allocate("vision/a", first, process=busy, worker=0),
        allocate("vision/a", second, process=start(), worker=1),
    ]
    source.poll(allocations)
    before = busy.cpu_times().user
    eventually(lambda: busy.cpu_times().user > before + 0.1)
    report = usage.report("here", source.poll(allocations), allocations)

    by_device = {s.device: s.utilization for s in report.samples}
    assert (by_device[first] or 0) > 0
    assert by_device[second] == pytest.approx(0, abs=0.05)


# -- processor time ------------------------------------------------------------------------------

# Starts a child for each input line, waits for its end, and prints a line.
PARENT_PROGRAM = """
import subprocess, sys
for line in sys.stdin:
    subprocess.run([sys.executable, "-c", line])
    print(flush=True)
"""
CPU_LOAD_PROGRAM = "import time\nwhile time.process_time() < {seconds}: pass"


@pytest.fixture
def parent():
    with subprocess.Popen(
        [sys.executable, "-u", "-c", PARENT_PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


def cpu_seconds(table, allocations):
    uses = table.measure(allocations)
    assert uses is not None
    return sum(use.cpu_seconds for use in uses)


def test_usage_of_child_processes_that_exit_between_two_polls_is_included(parent, allocate):
    table = ProcessTable()
    allocations = [allocate("vision/a", "GPU", process=psutil.Process(parent.pid))]
    table.measure(allocations)
    parent.stdin.write(f"exec({CPU_LOAD_PROGRAM.format(seconds=0.3)!r})\n".encode())
    parent.stdin.flush()
    parent.stdout.readline()

    assert cpu_seconds(table, allocations) >= 0.25  # the kernel counts clock ticks


def test_usage_of_a_child_process_is_not_doubled_when_it_ends(
    parent, allocate, eventually, tmp_path
):
    table = ProcessTable()
    root = psutil.Process(parent.pid)
    allocations = [allocate("vision/a", "GPU", process=root)]
    table.measure(allocations)
    # The child stays until a poll has seen it: on a busy machine it would end between two polls.
    burned_file, seen_file = tmp_path / "burned_file", tmp_path / "seen_file"
    program = (
        f"{CPU_LOAD_PROGRAM.format(seconds=0.5)}\n"
        f"import pathlib\npathlib.Path({str(burned_file)!r}).touch()\n"
        f"while not pathlib.Path({str(seen_file)!r}).exists(): time.sleep(0.01)"
    )
    parent.stdin.write(f"exec({program!r})\n".encode())
    parent.stdin.flush()
    eventually(burned_file.exists)
    before = cpu_seconds(table, allocations)
    seen_file.touch()
    parent.stdout.readline()
    after = cpu_seconds(table, allocations)

    times = root.cpu_times()
    assert before >= 0.4
    assert before + after == pytest.approx(times.children_user + times.children_system, abs=0.3)


def test_cpu_usage_before_the_first_poll_is_excluded(start, allocate, eventually):
    process = start(busy=True)
    eventually(lambda: process.cpu_times().user > 0.5)
    table = ProcessTable()
    allocations = [allocate("vision/a", "GPU", process=process)]
    process.suspend()

    assert table.measure(allocations) is None
    assert cpu_seconds(table, allocations) == pytest.approx(0, abs=0.05)


def test_process_table_excludes_processes_without_an_allocation(start, allocate):
    allocated_process, _other_process = start(), start()
    table = ProcessTable()
    allocations = [allocate("vision/a", "GPU", process=allocated_process)]
    table.measure(allocations)

    assert [use.pid for use in table.measure(allocations) or ()] == [allocated_process.pid]


def pids_of(poll) -> set[int]:
    return {process.pid for process in poll.processes}


def test_process_started_during_a_gpu_release_uses_a_device_only_after_it(source, start, allocate):
    def program():
        return start(mib=1, env={"RUNAI_WORKLOAD": "vision/lab"})

    server, kernel = start(mib=1), program()
    lab = allocate("vision/lab", source.devices()[0].uuid, process=server, is_server=True)
    releasing = lab.model_copy(update={"release": True})
    source.poll([lab])
    before = pids_of(source.poll([releasing]))
    restarted = program()
    during = pids_of(source.poll([releasing]))
    after = pids_of(source.poll([lab]))

    assert before == during == {server.pid, kernel.pid}
    assert after == {server.pid, kernel.pid, restarted.pid}


def test_zombie_process_uses_no_device(source, start, allocate, eventually):
    process = start(mib=1)
    allocations = [allocate("vision/a", source.devices()[0].uuid, process=process)]
    source.poll(allocations)
    assert pids_of(source.poll(allocations)) == {process.pid}
    process.kill()
    eventually(lambda: process.status() == psutil.STATUS_ZOMBIE)
    source.poll(allocations)  # its usage until its end

    assert pids_of(source.poll(allocations)) == set()
