"""Attribution of processes to workloads."""

from __future__ import annotations

import os
import subprocess

import psutil
import pytest

from runai.hub_service.agent.processes import process_owners as owners_module
from runai.hub_service.agent.processes.process_owners import ProcessOwners
from runai.hub_service.processes.pidfd import PidfdHandles


@pytest.fixture
def owner(hold):
    """Return a function that returns the workload of a process, given allocations."""

    def find(process, *allocations):
        owners = ProcessOwners()
        owners.set_allocations(allocations)
        found = owners.allocation_of(process)
        return found and found.worker

    return find


def test_process_outside_workloads_has_no_owner(owner, hold, start):
    assert owner(start(), hold("vision/a", "GPU", process=start())) is None


def test_the_nearest_ancestor_decides(owner, hold, start):
    inner = start(how="grandchild")
    outer = hold("vision/outer", "GPU", process=psutil.Process(os.getpid()))
    nested = hold("vision/inner", "GPU", process=inner.parent())

    assert owner(inner, outer, nested) == "vision/inner-0"


def test_an_ancestor_outweighs_what_the_environment_says(owner, hold, start):
    child = start(how="grandchild", env={"RUNAI_WORKLOAD": "vision/b"})

    found = owner(child, hold("vision/a", "GPU", process=child.parent()), hold("vision/b", "GPU"))

    assert found == "vision/a-0"


def test_the_environment_names_the_worker_among_several(owner, hold, start):
    process = start(env={"RUNAI_WORKLOAD": "vision/a", "RUNAI_WORKER": "vision/a-1"})

    assert owner(process, *(hold("vision/a", "GPU", worker=n) for n in (0, 1))) == "vision/a-1"


@pytest.mark.parametrize(
    ("there", "found"), [("/one", True), ("/other", False)], ids=["its own", "of another like it"]
)
def test_checkpoints_tell_a_workload_from_its_like_in_another_installation(
    owner, hold, start, there, found
):
    process = start(env={"RUNAI_WORKLOAD": "vision/a", "RUNAI_CHECKPOINT_DIR": there})

    assert (owner(process, hold("vision/a", "GPU", checkpoint_dir="/one")) is not None) == found


def test_process_of_a_workload_without_allocation_has_no_owner(owner, hold, start):
    process = start(env={"RUNAI_WORKLOAD": "vision/elsewhere"})

    assert owner(process, hold("vision/a", "GPU")) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run a process of another account")
def test_another_account_cannot_claim_to_be_of_a_workload(owner, hold, start):
    claim = {"RUNAI_WORKLOAD": "vision/a"}
    with subprocess.Popen(["/bin/sleep", "1000"], user=65534, env=claim) as liar:
        found = owner(psutil.Process(liar.pid), hold("vision/a", "GPU", process=start()))
        liar.kill()

    assert found is None


def test_a_process_that_becomes_the_workloads_is_noticed(hold, start):
    process = start(env={"RUNAI_WORKLOAD": "vision/a"})
    owners = ProcessOwners()
    owners.set_allocations([hold("vision/b", "GPU")])
    assert owners.allocation_of(process) is None

    owners.set_allocations([hold("vision/b", "GPU"), hold("vision/a", "GPU")])
    found = owners.allocation_of(process)

    assert found is not None
    assert found.workload == "vision/a"


def test_strangers_are_remembered_unless_they_are_young(hold, start):
    old, young = psutil.Process(1), start()
    owners = ProcessOwners()
    owners.set_allocations([hold("vision/a", "GPU")])
    for process in (old, young):
        owners.allocation_of(process)
    owners.retain({old.pid, young.pid})

    assert [owners.is_stranger(p.pid) for p in (old, young)] == [True, False]


def test_strangers_are_looked_at_again_now_and_then(hold, monkeypatch):
    monkeypatch.setattr(owners_module, "RECHECK_INTERVAL_S", -1.0)
    old = psutil.Process(os.getppid())
    owners = ProcessOwners()
    owners.set_allocations([hold("vision/a", "GPU")])
    owners.allocation_of(old)
    owners.retain({old.pid})

    assert not owners.is_stranger(old.pid)


# -- control groups ------------------------------------------------------------------------------

UID = "7d2c3a54-1f0e-4b6a-9c51-0123456789ab"
SYSTEMD_POD = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    ("lines", "group", "found"),
    [
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/{SYSTEMD_POD}/cri-containerd-ab.scope",
            UID,
            True,
            id="a pod, as systemd writes it",
        ),
        pytest.param(
            f"0::/kubepods/besteffort/pod{UID}/{'a' * 64}", UID, True, id="a pod, as cgroupfs does"
        ),
        pytest.param(
            f"0::/../../kubepods/pod{UID}/c", UID, True, id="seen from a container of its own"
        ),
        pytest.param(
            f"5:devices:/kubepods/pod{UID}/c\n0::/", UID, True, id="version 1 beside version 2"
        ),
        pytest.param(
            f"0::/kubepods/pod{UID.replace('7', '8')}/pod{UID}", UID, False,
            id="what a container names inside its own group is not believed",
        ),
        pytest.param("0::/runai.slice/a.scope", "/runai.slice/a.scope", True, id="our own scope"),
        pytest.param("0::/runai.slice/a.scope/x/y", "/runai.slice/a.scope", True, id="below it"),
        pytest.param("0::/runai.slice/a.scope2", "/runai.slice/a.scope", False, id="another one"),
        pytest.param("0::/user/runai.slice/a.scope", "/runai.slice/a.scope", False, id="a copy"),
        pytest.param("", UID, False, id="nothing told"),
    ],
)  # fmt: skip
def test_a_process_is_known_by_its_control_group(tmp_path, hold, holders, lines, group, found):
    process, _ = holders
    (tmp_path / str(process.pid)).mkdir()
    (tmp_path / str(process.pid) / "cgroup").write_text(lines + "\n")
    owners = ProcessOwners(tmp_path)
    owners.set_allocations([hold("vision/a", "GPU").model_copy(update={"cgroup": group})])

    whose = owners.owner_of(process.pid)

    assert (whose.allocation is not None) == found


def test_a_control_group_outweighs_an_ancestor(tmp_path, hold, start):
    process = start(how="grandchild")
    (tmp_path / str(process.pid)).mkdir()
    (tmp_path / str(process.pid) / "cgroup").write_text(f"0::/kubepods/pod{UID}/c\n")
    owners = ProcessOwners(tmp_path)
    pod = hold("vision/pod", "GPU").model_copy(update={"cgroup": UID})
    owners.set_allocations([hold("vision/a", "GPU", process=process.parent()), pod])

    assert owners.owner_of(process.pid).allocation == pod


# -- reused process ids --------------------------------------------------------------------------


def test_a_number_that_another_process_has_now_is_found_anew(hold, start, monkeypatch):
    process = start(env={"RUNAI_WORKLOAD": "vision/a"})
    owners = ProcessOwners()
    allocation = hold("vision/a", "GPU")
    owners.set_allocations([allocation])
    former = owners.owner_of(process.pid)
    owners.retain({process.pid})
    assert former.allocation == allocation
    assert owners.before(process.pid) is None

    # The same pid, but a later process of another workload.
    later = process.create_time() + 60
    monkeypatch.setattr(PidfdHandles, "still_runs", lambda *_: False)
    monkeypatch.setattr(owners_module, "_start_ticks", lambda _: b"4200")
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: later)
    monkeypatch.setattr(psutil.Process, "environ", lambda _: {})

    assert owners.owner_of(process.pid).allocation is None
    assert owners.owner_of(process.pid).created == later
    before = owners.before(process.pid)
    assert before is not None
    assert before[0] == former
    started = psutil.boot_time() + 4200 / os.sysconf("SC_CLK_TCK")
    assert before[1] == pytest.approx(started, abs=2)


def test_a_parent_younger_than_its_child_is_another_process(hold, start, monkeypatch):
    child = start(how="grandchild")
    parent = child.parent()
    ages = {child.pid: 100.0, parent.pid: 200.0}
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: ages.get(self.pid, 1.0))
    owners = ProcessOwners()
    owners.set_allocations([hold("vision/a", "GPU", process=parent)])

    assert owners.owner_of(parent.pid).allocation is not None
    assert owners.owner_of(child.pid).allocation is None


def test_process_that_reuses_the_pid_of_a_workload_has_no_owner(owner, hold, start):
    stranger = start()
    earlier = stranger.create_time() - 60
    told = hold("vision/a", "GPU", process=stranger).model_copy(update={"created": earlier})

    assert owner(stranger, told) is None


def test_a_process_that_just_ended_is_its_workloads_until_the_next_poll(hold, start):
    process = start(env={"RUNAI_WORKLOAD": "vision/a"})
    allocation, pid = hold("vision/a", "GPU"), process.pid
    owners = ProcessOwners()
    owners.set_allocations([allocation])
    owners.owner_of(pid)
    owners.retain({pid})
    process.kill()
    process.wait()
    found = []
    for _ in range(2):
        found.append(owners.owner_of(pid).allocation)
        owners.retain({pid})

    assert found == [allocation, None]


def test_a_process_that_is_gone_is_nobodys(hold):
    owners = ProcessOwners()
    owners.set_allocations([hold("vision/a", "GPU")])

    assert (owners.owner_of(4194305).allocation, owners.owner_of(4194305).created) == (None, 0.0)
