"""Attribution of processes to workloads."""

from __future__ import annotations

import os
import subprocess

import psutil
import pytest

from runai.hub_service.agent.processes import process_owners as owners_module
from runai.hub_service.agent.processes.process_owners import ProcessOwners
from runai.hub_service.processes.pidfd import PidfdHandles

NOBODY_UID = 65534


@pytest.fixture
def find_owner(allocate):
    """Return a function that returns the workload of a process, given allocations."""

    def find(process, *allocations):
        owners = ProcessOwners()
        owners.set_allocations(allocations)
        allocation = owners.allocation_of(process)
        return allocation and allocation.worker

    return find


def test_process_outside_workloads_has_no_owner(find_owner, allocate, start):
    assert find_owner(start(), allocate("vision/a", "GPU", process=start())) is None


def test_process_belongs_to_the_workload_of_its_nearest_ancestor(find_owner, allocate, start):
    inner = start(relation="grandchild")
    outer = allocate("vision/outer", "GPU", process=psutil.Process(os.getpid()))
    nested = allocate("vision/inner", "GPU", process=inner.parent())

    assert find_owner(inner, outer, nested) == "vision/inner-0"


def test_process_belongs_to_its_ancestors_workload_and_not_its_variables(
    find_owner, allocate, start
):
    child = start(relation="grandchild", env={"RUNAI_WORKLOAD": "vision/b"})

    worker = find_owner(
        child, allocate("vision/a", "GPU", process=child.parent()), allocate("vision/b", "GPU")
    )

    assert worker == "vision/a-0"


def test_worker_of_a_process_is_read_from_its_environment(find_owner, allocate, start):
    process = start(env={"RUNAI_WORKLOAD": "vision/a", "RUNAI_WORKER": "vision/a-1"})

    assert (
        find_owner(process, *(allocate("vision/a", "GPU", worker=n) for n in (0, 1)))
        == "vision/a-1"
    )


@pytest.mark.parametrize(
    ("checkpoint_dir", "is_owned"),
    [("/one", True), ("/other", False)],
    ids=["own checkpoint directory", "checkpoint directory of another installation"],
)
def test_process_of_an_equal_workload_name_is_distinguished_by_checkpoint_dir(
    find_owner, allocate, start, checkpoint_dir, is_owned
):
    process = start(env={"RUNAI_WORKLOAD": "vision/a", "RUNAI_CHECKPOINT_DIR": checkpoint_dir})
    owner = find_owner(process, allocate("vision/a", "GPU", checkpoint_dir="/one"))

    assert (owner is not None) == is_owned


def test_process_of_a_workload_without_allocation_has_no_owner(find_owner, allocate, start):
    process = start(env={"RUNAI_WORKLOAD": "vision/elsewhere"})

    assert find_owner(process, allocate("vision/a", "GPU")) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run a process of another account")
def test_process_of_a_foreign_account_cannot_claim_a_workload(find_owner, allocate, start):
    claim = {"RUNAI_WORKLOAD": "vision/a"}
    with subprocess.Popen(["/bin/sleep", "1000"], user=NOBODY_UID, env=claim) as claimant:
        worker = find_owner(
            psutil.Process(claimant.pid), allocate("vision/a", "GPU", process=start())
        )
        claimant.kill()

    assert worker is None


def test_process_is_owned_once_its_workload_is_allocated(allocate, start):
    process = start(env={"RUNAI_WORKLOAD": "vision/a"})
    owners = ProcessOwners()
    owners.set_allocations([allocate("vision/b", "GPU")])
    assert owners.allocation_of(process) is None

    owners.set_allocations([allocate("vision/b", "GPU"), allocate("vision/a", "GPU")])
    allocation = owners.allocation_of(process)

    assert allocation is not None
    assert allocation.workload == "vision/a"


def test_processes_without_an_owner_are_cached_unless_they_are_young(allocate, start):
    old, young = psutil.Process(1), start()  # the first process of the machine, and a new one
    owners = ProcessOwners()
    owners.set_allocations([allocate("vision/a", "GPU")])
    for process in (old, young):
        owners.allocation_of(process)
    owners.retain({old.pid, young.pid})

    assert [owners.is_stranger(p.pid) for p in (old, young)] == [True, False]


def test_processes_without_an_owner_are_checked_again_after_an_interval(allocate, monkeypatch):
    monkeypatch.setattr(owners_module, "RECHECK_INTERVAL_S", -1.0)
    old = psutil.Process(os.getppid())
    owners = ProcessOwners()
    owners.set_allocations([allocate("vision/a", "GPU")])
    owners.allocation_of(old)
    owners.retain({old.pid})

    assert not owners.is_stranger(old.pid)


# -- control groups ------------------------------------------------------------------------------

POD_UID = "7d2c3a54-1f0e-4b6a-9c51-0123456789ab"
SCOPE = "/runai.slice/a.scope"
SYSTEMD_POD = f"kubepods-burstable-pod{POD_UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("lines", "group", "is_owned"),
    [
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/{SYSTEMD_POD}/cri-containerd-ab.scope",
            POD_UID,
            True,
            id="pod, systemd",
        ),
        pytest.param(
            f"0::/kubepods/besteffort/pod{POD_UID}/{'a' * 64}", POD_UID, True, id="pod, cgroupfs"
        ),
        pytest.param(
            f"0::/../../kubepods/pod{POD_UID}/c", POD_UID, True, id="pod, relative path"
        ),
        pytest.param(
            f"5:devices:/kubepods/pod{POD_UID}/c\n0::/", POD_UID, True, id="versions 1 and 2"
        ),
        pytest.param(
            f"0::/kubepods/pod{POD_UID.replace('7', '8')}/pod{POD_UID}", POD_UID, False,
            id="pod name below another pod's group",
        ),
        pytest.param(f"0::{SCOPE}", SCOPE, True, id="scope of the workload"),
        pytest.param(f"0::{SCOPE}/x/y", SCOPE, True, id="group below the scope"),
        pytest.param(f"0::{SCOPE}2", SCOPE, False, id="another scope"),
        pytest.param(f"0::/user{SCOPE}", SCOPE, False, id="scope below a user's group"),
        pytest.param("", POD_UID, False, id="no control group"),
    ],
)  # fmt: skip
def test_process_is_attributed_by_its_control_group(
    tmp_path, allocate, sleeping_processes, lines, group, is_owned
):
    process, _ = sleeping_processes
    (tmp_path / str(process.pid)).mkdir()
    (tmp_path / str(process.pid) / "cgroup").write_text(lines + "\n")
    owners = ProcessOwners(tmp_path)
    owners.set_allocations([allocate("vision/a", "GPU").model_copy(update={"cgroup": group})])

    process_owner = owners.owner_of(process.pid)

    assert (process_owner.allocation is not None) == is_owned


def test_process_belongs_to_its_control_groups_pod_and_not_its_ancestor(tmp_path, allocate, start):
    process = start(relation="grandchild")
    (tmp_path / str(process.pid)).mkdir()
    (tmp_path / str(process.pid) / "cgroup").write_text(f"0::/kubepods/pod{POD_UID}/c\n")
    owners = ProcessOwners(tmp_path)
    pod = allocate("vision/pod", "GPU").model_copy(update={"cgroup": POD_UID})
    owners.set_allocations([allocate("vision/a", "GPU", process=process.parent()), pod])

    assert owners.owner_of(process.pid).allocation == pod


# -- reused process ids --------------------------------------------------------------------------


def test_process_with_a_reused_pid_gets_the_later_workload_as_owner(allocate, start, monkeypatch):
    process = start(env={"RUNAI_WORKLOAD": "vision/a"})
    owners = ProcessOwners()
    allocation = allocate("vision/a", "GPU")
    owners.set_allocations([allocation])
    former_owner = owners.owner_of(process.pid)
    owners.retain({process.pid})
    assert former_owner.allocation == allocation
    assert owners.previous_owner(process.pid) is None

    # The same pid, but a later process of another workload.
    later, start_ticks = process.create_time() + 60, 4200
    monkeypatch.setattr(PidfdHandles, "still_runs", lambda *_: False)
    monkeypatch.setattr(owners_module, "_start_ticks", lambda _: b"%d" % start_ticks)
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: later)
    monkeypatch.setattr(psutil.Process, "environ", lambda _: {})

    assert owners.owner_of(process.pid).allocation is None
    assert owners.owner_of(process.pid).created == later
    previous = owners.previous_owner(process.pid)
    assert previous is not None
    previous_owner, later_start_s = previous
    assert previous_owner == former_owner
    expected_s = psutil.boot_time() + start_ticks / os.sysconf("SC_CLK_TCK")
    assert later_start_s == pytest.approx(expected_s, abs=2)


def test_process_older_than_its_parent_does_not_belong_to_the_parents_workload(
    allocate, start, monkeypatch
):
    child = start(relation="grandchild")
    parent = child.parent()
    ages = {child.pid: 100.0, parent.pid: 200.0}
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: ages.get(self.pid, 1.0))
    owners = ProcessOwners()
    owners.set_allocations([allocate("vision/a", "GPU", process=parent)])

    assert owners.owner_of(parent.pid).allocation is not None
    assert owners.owner_of(child.pid).allocation is None


def test_process_that_reuses_the_pid_of_a_workload_has_no_owner(find_owner, allocate, start):
    process = start()
    earlier = process.create_time() - 60
    allocation = allocate("vision/a", "GPU", process=process).model_copy(
        update={"created": earlier}
    )

    assert find_owner(process, allocation) is None


def test_exited_process_has_its_owner_until_the_next_poll(allocate, start):
    process = start(env={"RUNAI_WORKLOAD": "vision/a"})
    allocation, pid = allocate("vision/a", "GPU"), process.pid
    owners = ProcessOwners()
    owners.set_allocations([allocation])
    owners.owner_of(pid)
    owners.retain({pid})
    process.kill()
    process.wait()
    attributed = []
    for _ in range(2):
        attributed.append(owners.owner_of(pid).allocation)
        owners.retain({pid})

    assert attributed == [allocation, None]


def test_unknown_pid_has_no_owner(allocate):
    owners = ProcessOwners()
    owners.set_allocations([allocate("vision/a", "GPU")])

    owner = owners.owner_of(4194305)  # above the largest possible PID
    assert (owner.allocation, owner.created) == (None, 0.0)
