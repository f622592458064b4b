"""Whose a process is."""

from __future__ import annotations

import os
import subprocess

import psutil
import pytest

from runai.hub_service.agent import usage
from runai.hub_service.agent.usage import Owners


@pytest.fixture
def owner(hold):
    """Return a function: the workload of a process, given allocations."""

    def find(process, *allocations):
        owners = Owners()
        owners.learn(allocations)
        found = owners.owner(process)
        return found and found.worker

    return find


def test_a_process_of_nobody(owner, hold, start):
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


def test_a_workload_that_holds_nothing_here_is_nobody(owner, hold, start):
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
    owners = Owners()
    owners.learn([hold("vision/b", "GPU")])
    assert owners.owner(process) is None

    owners.learn([hold("vision/b", "GPU"), hold("vision/a", "GPU")])
    found = owners.owner(process)

    assert found is not None
    assert found.workload == "vision/a"


def test_strangers_are_remembered_unless_they_are_young(hold, start):
    old, young = psutil.Process(os.getppid()), start()
    owners = Owners()
    owners.learn([hold("vision/a", "GPU")])
    for process in (old, young):
        owners.owner(process)
    owners.retain({old.pid, young.pid})

    assert [owners.is_stranger(p.pid) for p in (old, young)] == [True, False]


def test_strangers_are_looked_at_again_now_and_then(hold, monkeypatch):
    monkeypatch.setattr(usage, "LOOK_AGAIN_S", -1.0)
    old = psutil.Process(os.getppid())
    owners = Owners()
    owners.learn([hold("vision/a", "GPU")])
    owners.owner(old)
    owners.retain({old.pid})

    assert not owners.is_stranger(old.pid)
