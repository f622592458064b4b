"""The driver's own limits: real control groups, and a fake driver that records its calls."""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pynvml
import pytest

from runai.hub_service.agent.devices.nvml import NvmlDevices
from runai.hub_service.agent.enforcement.hard_limits import HardLimits
from runai.hub_service.limits.cgroups import Groups, GroupsUnavailable
from runai.hub_service.limits.driver_limits import DriverLimits, DriverLimitsUnavailable

MIB = 1 << 20
NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND = 3, 4, 13  # error codes of NVML
UNLIMITED = getattr(pynvml, "NVML_DEVICE_MEMORY_LIMIT_MAX", None)


@pytest.fixture
def driver_615(nvml, nvml_615_library, monkeypatch) -> Iterator[Path]:
    """Open two devices of a driver with limits; yield the file that records the limits."""
    if UNLIMITED is None:
        pytest.skip("this nvidia-ml-py is older than limits of the driver")
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(nvml_615_library)))
    pynvml._nvmlGetFunctionPointer_cache.clear()
    nvml.write(*(f"gpu GPU-{n} 1000 100 0 0 Fake" for n in range(2)))
    source = NvmlDevices()
    yield Path(f"{os.environ['FAKE_NVML_STATE']}.limits")
    source.close()


@pytest.fixture
def workload() -> str:
    """Return the name of a workload that is unique on this machine."""
    return f"vision/t{uuid.uuid4().hex[:12]}"


def recorded_limits(path: Path) -> list[tuple[int, str, int, int]]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return [
        (int(gpu), Path(group).name, int(soft), int(hard))
        for gpu, group, soft, hard in lines
        if not group.endswith("/probe")
    ]


def members(groups: Groups, worker: str) -> set[int]:
    return set(map(int, (groups.path(worker) / "cgroup.procs").read_text().split()))


@pytest.mark.cc
@pytest.mark.cgroups
def test_worker_processes_get_a_control_group_with_a_memory_limit_per_device(
    driver_615, allocate, start, workload
):
    child = start(relation="grandchild")
    root = child.parent()
    assert root is not None
    driver = DriverLimits.open(["GPU-0", "GPU-1"])
    limits = HardLimits(driver)
    allocation = allocate(
        workload, "GPU-0", "GPU-1", process=root, gpus=0.5, limits_mib={"GPU-0": 400, "GPU-1": 200}
    )

    assert limits.enforce([allocation]) == {workload}
    assert limits.enforce([allocation]) == {workload}  # the second call changes nothing

    group = f"{workload.replace('/', '.')}-0"
    assert recorded_limits(driver_615) == [  # GPU, group, soft limit, hard limit
        (0, group, 400 * MIB, 400 * MIB),
        (1, group, 200 * MIB, 200 * MIB),
    ]
    assert {root.pid, child.pid} <= members(driver.groups, f"{workload}-0")
    assert os.getpid() not in members(driver.groups, f"{workload}-0")

    for process in (child, root):
        process.kill()
        process.wait()
    assert limits.enforce([]) == set()
    assert recorded_limits(driver_615)[2:] == [(0, group, 0, UNLIMITED), (1, group, 0, UNLIMITED)]
    assert not driver.groups.path(f"{workload}-0").exists()


@pytest.mark.cc
@pytest.mark.cgroups
def test_restarted_agent_adopts_existing_control_groups(driver_615, allocate, start, workload):
    process = start()
    allocation = allocate(workload, "GPU-0", process=process, gpus=0.5, limits_mib={"GPU-0": 400})
    HardLimits(DriverLimits.open(["GPU-0"])).enforce([allocation])

    assert HardLimits(DriverLimits.open(["GPU-0"])).enforce([allocation]) == {workload}


@pytest.mark.cc
@pytest.mark.cgroups
def test_workload_refused_by_the_driver_falls_back_to_a_soft_limit(
    driver_615, nvml, allocate, start, workload, caplog
):
    limits = HardLimits(DriverLimits.open(["GPU-0"]))
    nvml.write(
        "gpu GPU-0 1000 100 0 0 Fake", f"fault 0 nvmlDeviceSetMemoryLimits_v1 {NOT_SUPPORTED}"
    )
    allocation = allocate(workload, "GPU-0", process=start(), gpus=0.5, limits_mib={"GPU-0": 400})

    assert limits.enforce([allocation]) == set()
    assert "keeps a soft memory limit" in caplog.text


@pytest.mark.cc
@pytest.mark.cgroups
def test_process_with_a_reused_pid_is_not_moved_to_a_control_group(
    driver_615, allocate, start, workload
):
    process = start()
    allocation = allocate(workload, "GPU-0", process=process, gpus=0.5, limits_mib={"GPU-0": 400})
    earlier = allocation.model_copy(update={"created": process.create_time() - 60})
    driver = DriverLimits.open(["GPU-0"])

    assert HardLimits(driver).enforce([earlier]) == set()
    assert not driver.groups.path(f"{workload}-0").exists()


@pytest.mark.cc
@pytest.mark.cgroups
def test_adopt_refuses_a_process_in_a_control_group_of_its_own(start, workload):
    groups = Groups.find()
    process = start()
    path = groups.adopt(workload, process)

    with pytest.raises(GroupsUnavailable, match="is in a control group of its own"):
        groups.adopt(f"{workload}-other", process)
    assert process.pid in set(map(int, (path / "cgroup.procs").read_text().split()))
    process.kill()
    process.wait()
    groups.remove(workload)


@pytest.mark.cc
@pytest.mark.cgroups
@pytest.mark.parametrize(
    ("error_code", "reason"),
    [
        pytest.param(
            FUNCTION_NOT_FOUND, "the driver has no limits by control group", id="older driver"
        ),
        pytest.param(NO_PERMISSION, "the driver lets only root set limits", id="not root"),
        pytest.param(NOT_SUPPORTED, "NVML says: Not Supported", id="MIG device"),
    ],
)
def test_driver_that_sets_no_memory_limits_raises_an_error_with_the_reason(
    driver_615, nvml, error_code, reason
):
    nvml.write("gpu GPU-0 1000 100 0 0 Fake", f"fault -1 nvmlDeviceSetMemoryLimits_v1 {error_code}")

    with pytest.raises(DriverLimitsUnavailable, match=reason):
        DriverLimits.open(["GPU-0"])


@pytest.mark.cc
@pytest.mark.cgroups
def test_nvml_without_the_memory_limit_call_is_reported_as_an_older_driver(nvml):
    nvml.write("gpu GPU-0 1000 100 0 0 Fake")
    source = NvmlDevices()

    with pytest.raises(DriverLimitsUnavailable, match="615 and newer have"):
        DriverLimits.open(["GPU-0"])
    source.close()


def write_proc(folder: Path, mounts: str, group: str = "0::/hub\n") -> Path:
    (folder / "self").mkdir()
    (folder / "self/mounts").write_text(mounts)
    (folder / "self/cgroup").write_text(group)
    return folder


def test_missing_cgroup_v2_is_reported(tmp_path):
    with pytest.raises(GroupsUnavailable, match="has no control groups of version 2"):
        Groups.find(write_proc(tmp_path, "tmpfs /tmp tmpfs rw 0 0\n"))


def test_unwritable_cgroup_root_is_reported(tmp_path):
    mounts = f"cgroup2 {tmp_path / 'absent'} cgroup2 ro 0 0\n"

    with pytest.raises(GroupsUnavailable, match="no control group may be made in"):
        Groups.find(write_proc(tmp_path, mounts))


def test_worker_control_groups_are_siblings_of_the_platforms_group(tmp_path):
    mounts = f"cgroup2 {tmp_path} cgroup2 rw 0 0\n"

    groups = Groups.find(write_proc(tmp_path, mounts, "0::/unit/platform\n"))

    assert groups.path("vision/a-0") == tmp_path / "unit/vision.a-0"


def test_adopt_refuses_an_exited_process(allocate, tmp_path):
    groups = Groups(tmp_path, "/hub", tmp_path)

    with pytest.raises(GroupsUnavailable):
        groups.adopt("vision/a-0", psutil.Process())
