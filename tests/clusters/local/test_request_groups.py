"""Requests of CPU and memory as control groups, in a fake tree; a process joins a real one."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest

from labs import decision_loop, local_lab
from runai.hub_service.clusters.local.processes.request_groups import RequestGroups
from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.limits.cgroups import Groups, group_of, mounted
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from starts import one_start
from waiting import eventually_async

GIB = 2**30
WORKER = "vision/exp-0"
OVER_MEMORY = "used more than the 1024 MiB of memory that it requested, so the kernel killed it"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return the delegated group of a fake tree, in whose leaf this process is."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text(f"cgroup2 {tmp_path}/tree cgroup2 rw 0 0\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/unit/platform\n")
    unit = tmp_path / "tree/unit"
    (unit / "platform").mkdir(parents=True)
    (unit / "platform/cgroup.procs").touch()
    (unit / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (unit / "cgroup.subtree_control").touch()
    return unit


@pytest.fixture
def proc(unit: Path, tmp_path: Path) -> Path:
    return tmp_path / "proc"


@pytest.fixture
def groups(proc: Path) -> RequestGroups:
    opened = RequestGroups.enable(proc)
    assert opened is not None
    return opened


def spec(**fields: int | bool) -> WorkloadSpec:
    return WorkloadSpec("vision", "exp", "ana", "job", ("true",), **fields)  # type: ignore[arg-type]


def cpu_weight_and_memory_max(unit: Path, worker: str = "vision.exp-0") -> tuple[str, str]:
    group = unit / worker
    return (group / "cpu.weight").read_text(), (group / "memory.max").read_text()


def test_control_groups_are_enabled_with_controllers_and_empty_old_groups_removed(unit, proc):
    (unit / "vision.old-0").mkdir()
    (unit / "vision.runs-0").mkdir()
    (unit / "vision.runs-0/cgroup.procs").touch()

    assert RequestGroups.enable(proc) is not None

    assert (unit / "cgroup.subtree_control").read_text() == "+cpu +memory"
    assert {path.name for path in unit.iterdir() if path.is_dir()} == {"platform", "vision.runs-0"}


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("proc/self/mounts", "cgroup /x cgroup rw 0 0\n", "has no control groups of version 2"),
        ("proc/self/cgroup", "0::/user.slice\n", "user.slice, not in a group named platform"),
        ("tree/unit/cgroup.controllers", "cpu pids\n", "has no controller for memory"),
        ("tree/unit/cgroup.controllers", "\n", "has no controller for cpu and memory"),
        ("tree/unit/cgroup.subtree_control", None, "no control group may be made in"),
        ("tree/unit/cgroup.subtree_control", "/", "Is a directory"),
    ],
    ids=[
        "version 1",
        "not in a leaf",
        "no memory controller",
        "no controller",
        "read-only",
        "refused by the kernel",
    ],
)
def test_control_groups_that_cannot_enforce_requests_are_logged_once(
    unit, proc, tmp_path, caplog, path, content, reason
):
    file = tmp_path / path
    file.unlink()
    if content == "/":
        file.mkdir()
    elif content is not None:
        file.write_text(content)
    caplog.set_level("INFO")

    assert RequestGroups.enable(proc) is None

    [record] = caplog.records
    assert "requested CPU and memory are not enforced: " in record.message
    assert reason in record.message
    assert "docs/operations.md" in record.message


@pytest.mark.parametrize(
    ("fields", "weight_and_max"),
    [
        ({}, ("100", "max")),
        ({"cpu_milli": 1000, "memory_mib": 1024}, ("100", "max")),
        ({"cpu_milli": 1000, "memory_mib": 1024, "memory_asked": True}, ("100", str(GIB))),
        ({"cpu_milli": 500}, ("50", "max")),
        ({"cpu_milli": 110}, ("11", "max")),
        ({"cpu_milli": 100, "memory_mib": 64}, ("100", "max")),
        ({"cpu_milli": 500_000, "memory_mib": 0, "memory_asked": True}, ("10000", "max")),
    ],
    ids=[
        "no request",
        "default requests",
        "explicit memory request",
        "half a CPU",
        "above the minimum",
        "minimum",
        "maximum",
    ],
)
def test_control_group_gets_the_requested_cpu_weight_and_memory_limit(
    unit, groups, fields, weight_and_max
):
    assert groups.enforce_request(WORKER, spec(**fields)) == str(unit / "vision.exp-0/cgroup.procs")
    assert cpu_weight_and_memory_max(unit) == weight_and_max


def test_control_group_that_the_kernel_refuses_is_logged(unit, groups, caplog):
    (unit / "vision.exp-0").touch()

    assert groups.enforce_request(WORKER, spec()) == ""
    assert "CPU and memory of vision/exp-0 are not enforced" in caplog.text


@pytest.mark.parametrize(
    ("exit_status", "events", "text"),
    [
        (ExitStatus(-9), "low 0\noom 1\noom_kill 2\n", OVER_MEMORY),
        (ExitStatus(-9), "oom 0\noom_kill 1\n", ""),
        (ExitStatus(-9), "oom 1\noom_kill 0\n", ""),
        (ExitStatus(-9), None, ""),
        (ExitStatus(1), "oom 1\noom_kill 1\n", ""),
        (ExitStatus(-9, text="had more"), "oom 1\noom_kill 1\n", "had more"),
    ],
    ids=["over", "machine out of memory", "reclaimed", "no group", "exit code 1", "known"],
)
def test_worker_exit_reason_names_the_memory_limit_after_an_oom_kill(
    unit, groups, exit_status, events, text
):
    if events is not None:
        groups.enforce_request(WORKER, spec())
        (unit / "vision.exp-0/memory.events").write_text(events)

    assert groups.explain_exit(WORKER, spec(memory_mib=1024), exit_status).text == text


async def test_job_starts_in_its_control_group_and_reports_an_oom_kill(unit, groups, tmp_path):
    async with local_lab(tmp_path, requests=groups) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        job = lab.job("exp", gpus=0, cpu_milli=2000, memory_mib=1024, memory_asked=True)
        async with decision_loop(lab.cluster):
            await lab.cluster.submit([job])
            record = await lab.until(job.id, "running")
            await lab.ready(job)

            assert cpu_weight_and_memory_max(unit) == ("200", str(GIB))
            assert (unit / "vision.exp-0/cgroup.procs").read_text() == "0"  # the process that joins

            (unit / "vision.exp-0/memory.events").write_text("oom 1\noom_kill 1\n")
            process = record.workers[0].process
            assert process is not None
            os.kill(process.pid, signal.SIGKILL)
            record = await lab.until(job.id, "failed")
    assert record.reason is not None
    assert record.reason.text == f"it {OVER_MEMORY}"


async def test_session_process_joins_its_control_group_when_attached(unit, groups, proc, tmp_path):
    async with local_lab(tmp_path, requests=groups) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        session = lab.session(memory_mib=2048, memory_asked=True)
        await lab.started(session)
        process = await lab.session_process()
        (proc / str(process.pid)).mkdir()
        (proc / str(process.pid) / "cgroup").write_text("0::/unit/platform\n")
        joined = unit / "vision.lab-ana-0/cgroup.procs"
        joined.parent.mkdir()
        joined.touch()

        await lab.cluster.attach(session.id, process)

        assert cpu_weight_and_memory_max(unit, joined.parent.name) == ("100", str(2 * GIB))
        assert joined.read_text() == str(process.pid)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("0::/unit/vision.exp-0\n", True, id="own group"),
        pytest.param("0::/unit/vision.other-0\n", False, id="group of another worker"),
        pytest.param("0::/unit/platform\n", None, id="group of the platform"),
        pytest.param("0::/user.slice/vision.exp-0\n", None, id="same name elsewhere"),
        pytest.param("", None, id="no group"),
    ],
)
def test_process_belongs_to_a_worker_if_it_is_in_its_control_group(groups, proc, line, expected):
    (proc / "7").mkdir()
    (proc / "7/cgroup").write_text(line)

    assert groups.is_in_group(WORKER, 7) is expected
    assert groups.is_in_group(WORKER, 8) is None  # it has ended


async def test_control_group_limits_of_running_workers_are_set_again_on_service_restart(
    unit, groups, tmp_path
):
    async with local_lab(tmp_path, requests=groups, forget=False) as lab:
        await lab.cluster.put_project(ProjectSpec("vision"))
        job = lab.job("exp", cpu_milli=2000)
        await lab.started(job)
    (unit / "vision.exp-0/cpu.weight").write_text("reset")

    async with local_lab(tmp_path, requests=groups) as lab:

        async def is_set_again() -> bool:
            return cpu_weight_and_memory_max(unit) == ("200", "max")

        await eventually_async(is_set_again)


def test_worker_that_cannot_join_its_control_group_runs_and_logs_it(tmp_path):
    with one_start(tmp_path / "attempt") as start:
        start("echo", "runs", group=str(tmp_path / "gone/cgroup.procs"))

        assert start.final_exit() == ExitStatus(0)
        assert f"not enforced: {tmp_path}/gone/cgroup.procs: No such file" in start.output()
        assert start.output().endswith("runs\n")


@pytest.mark.cgroups
def test_worker_runs_in_a_real_control_group_that_is_removed_afterwards(tmp_path):
    own_group = group_of(Path("/proc/self"))
    base = mounted(Path("/proc")) / own_group.lstrip("/")
    name = f"vision/t{uuid.uuid4().hex[:12]}-0"
    real = Groups(base, own_group)
    real.path(name).mkdir()
    with one_start(tmp_path / "attempt") as start:
        start("cat", "/proc/self/cgroup", group=str(real.path(name) / "cgroup.procs"))
        start.final_exit()

        assert f"0::{own_group.rstrip('/')}/{real.path(name).name}\n" in start.output()
    RequestGroups(base).remove(name)
    assert not real.path(name).exists()


async def test_default_cpu_request_of_a_session_sets_thread_variables_if_enforced(groups, tmp_path):
    async with local_lab(tmp_path, requests=groups) as lab:
        session = lab.session(cpu_milli=1000)
        await lab.started(session)

        variables = (await lab.cluster.environment(session.id)).variables

    assert (variables["RUNAI_WORKER_CPUS"], variables["OMP_NUM_THREADS"]) == ("1", "1")
