"""A worker's environment variables for its GPU share, where devices and shares differ."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from runai.hub_service.clusters.workloads.worker_environment import (
    launcher_variables,
    worker_environment,
)
from runai.hub_service.limits import HOOK
from runai.hub_service.limits.sharing import TimeSliced
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import (
    WorkerRecord,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
)
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare

DEVICES = [
    Device(index, f"GPU-{index}", "H200", memory_mib, simulated=False)
    for index, memory_mib in enumerate((143_771, 81_920))
]


class Mps:
    """A machine whose first device is shared by MPS."""

    def variables(self, device: str, memory_mib: int) -> Mapping[str, str]:
        return {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{device}={memory_mib}M"}

    def unavailable_reason(self, device: str) -> str:
        return ""

    def mps(self, device: str) -> str:
        return ""


def environment(
    *shares: tuple[int, int], env=None, sharing=None, command=("true",), enforced=False, **fields
) -> dict[str, str]:
    spec = WorkloadSpec("vision", "exp", "ana", "job", command, env=env or {}, **fields)
    device_shares = tuple(DeviceShare(device, MilliGpu(milli)) for device, milli in shares)
    worker = WorkerRecord("vision/exp-0", 0, "running", "box", device_shares)
    record = WorkloadRecord(spec, WorkloadState.RUNNING, 0.0, (worker,))
    return worker_environment(
        record,
        worker,
        DEVICES,
        api_url="",
        sharing=sharing or TimeSliced(),
        enforced=enforced,
    )


@pytest.mark.parametrize(
    ("shares", "fields", "limits", "devices", "smallest"),
    [
        pytest.param([(0, 500)], {}, "71885", "143771", "71885", id="half of an H200"),
        pytest.param([(1, 250)], {}, "20480", "81920", "20480", id="a quarter of an A100"),
        pytest.param(
            [(0, 500), (1, 500)], {}, "71885,40960", "143771,81920", "40960", id="two devices"
        ),
        pytest.param([(1, 98)], {"gpu_memory_mib": 8000}, "8000", "81920", "8000", id="memory"),
        pytest.param([(0, 1000)], {}, "143771", "143771", "143771", id="a whole device"),
    ],
)
def test_worker_environment_has_the_memory_limit_of_each_device(
    shares, fields, limits, devices, smallest
):
    variables = environment(*shares, **fields)

    assert variables["RUNAI_GPU_MEMORY_LIMITS_MIB"] == limits
    assert variables["RUNAI_GPU_DEVICES_MIB"] == devices
    assert variables["RUNAI_GPU_MEMORY_LIMIT_MIB"] == smallest


def test_jax_and_cupy_memory_is_limited_to_the_gpu_share_minus_the_cuda_context():
    variables = environment((0, 500))

    assert variables["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.4965"  # (71885 - 500) / 143771
    assert variables["CUPY_GPU_MEMORY_LIMIT"] == str((71_885 - 500) << 20)


def test_jax_and_cupy_memory_is_not_limited_on_a_whole_device():
    variables = environment((0, 1000))

    assert not {"XLA_PYTHON_CLIENT_MEM_FRACTION", "CUPY_GPU_MEMORY_LIMIT"} & variables.keys()


@pytest.mark.parametrize(
    ("env", "path"),
    [
        pytest.param({}, HOOK, id="no PYTHONPATH"),
        pytest.param({"PYTHONPATH": "/home/ana/lib"}, f"{HOOK}:/home/ana/lib", id="own PYTHONPATH"),
        pytest.param({"PYTHONPATH": f"/x:{HOOK}"}, f"{HOOK}:/x", id="PYTHONPATH with the hook"),
    ],
)
def test_gpu_memory_hook_precedes_the_users_own_pythonpath(env, path):
    assert environment((0, 500), env=env)["PYTHONPATH"] == path


def test_users_pythonpath_is_unchanged_for_a_job_without_a_gpu():
    assert environment(env={"PYTHONPATH": "/home/ana/lib"})["PYTHONPATH"] == "/home/ana/lib"
    assert "PYTHONPATH" not in environment()


@pytest.mark.parametrize(
    ("shares", "limit"),
    [
        pytest.param([(0, 500)], "GPU-0=71885M", id="share of one device"),
        pytest.param([(0, 1000)], None, id="whole device"),
        pytest.param([(0, 500), (1, 500)], None, id="shares of two devices"),
    ],
)
def test_mps_memory_limit_is_set_only_for_a_share_of_a_single_device(shares, limit):
    variables = environment(*shares, sharing=Mps())

    assert variables.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") == limit


TORCHRUN = {"PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"}


@pytest.mark.parametrize(
    ("command", "fields", "names"),
    [
        pytest.param("torchrun t.py", {}, {"NODE_RANK", *TORCHRUN}, id="gang"),
        pytest.param("torchrun t.py", {"workers": 1}, set(), id="one worker"),
        pytest.param("torchrun t.py", {"elastic": True}, set(), id="elastic job"),
        pytest.param("torchrun --standalone t.py", {}, {"NODE_RANK"}, id="standalone"),
        pytest.param("torchrun --nnodes 1 t.py", {}, {"NODE_RANK"}, id="one node"),
        pytest.param("sh -c 'torchrun --nnodes=1 t.py'", {}, {"NODE_RANK"}, id="one node, a shell"),
        pytest.param("torchrun --nnodes=1:4 t.py", {}, {"NODE_RANK", *TORCHRUN}, id="node range"),
        pytest.param("torchrun --nnodes 16 t.py", {}, {"NODE_RANK", *TORCHRUN}, id="16 nodes"),
        pytest.param(
            "python t.py", {"source": "run('torchrun --standalone')"}, {"NODE_RANK"}, id="cell"
        ),
        pytest.param(
            "torchrun t.py", {"env": {"PET_STANDALONE": "1"}}, {"NODE_RANK"}, id="own standalone"
        ),
        pytest.param(
            "torchrun t.py", {"env": {"PET_NNODES": "1"}}, {"NODE_RANK"}, id="own node count"
        ),
        pytest.param(
            "torchrun t.py",
            {"env": {"PET_NNODES": "2", "NODE_RANK": "5"}},
            TORCHRUN - {"PET_NNODES"},
            id="own values",
        ),
    ],
)
def test_torch_launchers_get_the_variables_of_their_gang_unless_they_run_standalone(
    command, fields, names
):
    fields = {"workers": 2, **fields}
    own_env = fields.get("env", {})
    spec = WorkloadSpec("vision", "exp", "ana", "job", tuple(command.split()), **fields)
    variables = environment(command=spec.command, **fields)

    gang_variables = launcher_variables(spec)
    assert gang_variables.keys() == names
    actual = {name for name in variables if name == "NODE_RANK" or name.startswith("PET_")}
    assert actual == names | own_env.keys()
    assert (
        own_env.items() | {(name, variables[same]) for name, same in gang_variables.items()}
        <= variables.items()
    )


EXPLICIT = {"cpu_asked": True}


@pytest.mark.parametrize(
    ("fields", "cpus", "threads"),
    [
        pytest.param({"cpu_milli": 4000, **EXPLICIT}, "4", None, id="4 CPUs"),
        pytest.param({"cpu_milli": 2500, **EXPLICIT}, "2", None, id="2.5 CPUs"),
        pytest.param({"cpu_milli": 1900, **EXPLICIT}, "1", "1", id="1.9 CPUs"),
        pytest.param({"cpu_milli": 100, **EXPLICIT}, "1", "1", id="0.1 CPUs"),
        pytest.param({}, None, None, id="no request"),
        pytest.param({"cpu_milli": 1000}, None, None, id="default, not enforced"),
        pytest.param({"cpu_milli": 1000, "enforced": True}, "1", "1", id="default, enforced"),
        pytest.param({"cpu_milli": 100, "enforced": True}, None, None, id="minimum, enforced"),
        pytest.param(
            {"cpu_milli": 100, "enforced": True, **EXPLICIT}, "1", "1", id="minimum, requested"
        ),
        pytest.param(
            {"cpu_milli": 4000, "elastic": True, **EXPLICIT}, None, None, id="elastic job"
        ),
        pytest.param(
            {"cpu_milli": 1000, "env": {"OMP_NUM_THREADS": "8"}, **EXPLICIT},
            "1",
            "8",
            id="own OMP_NUM_THREADS",
        ),
    ],
)
def test_worker_environment_has_the_cpus_of_its_request(fields, cpus, threads):
    variables = environment(**fields)

    names = ("RUNAI_WORKER_CPUS", "LOKY_MAX_CPU_COUNT", "PYTHON_CPU_COUNT")
    assert [variables.get(name) for name in names] == [cpus] * 3
    assert variables.get("OMP_NUM_THREADS") == threads
