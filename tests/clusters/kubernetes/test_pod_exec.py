"""Programs in pods: their exit codes, and reasons why some never begin.

Tests of programs that really run are in tests/nodes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.objects import pod
from control_plane.scheduling import Scheduler
from runai.hub_service.clusters.kubernetes.kubernetes_cluster import KubernetesCluster
from runai.hub_service.clusters.kubernetes.objects.core_objects import Pod
from runai.hub_service.clusters.kubernetes.workloads.pod_exec import PodExec, _container, _ended
from runai.hub_service.model.cluster import ProgramEnd
from runai.hub_service.wire.errors import Conflict, NotFound, RunaiError, Unavailable


def status(**details) -> dict[str, object]:
    return {"status": "Failure", "message": "it said so", **details}


@pytest.mark.parametrize(
    ("reply", "ended"),
    [
        pytest.param({"status": "Success"}, ProgramEnd(0), id="well"),
        pytest.param(
            status(details={"causes": [{"reason": "ExitCode", "message": "3"}]}),
            ProgramEnd(3),
            id="with an exit code",
        ),
        pytest.param(status(), ProgramEnd(127, "it said so"), id="it never began"),
        pytest.param(
            status(details={"causes": [{"reason": "ExitCode", "message": "?"}]}),
            ProgramEnd(127, "it said so"),
            id="nobody knows how",
        ),
    ],
)
def test_pod_exec_reply_is_parsed_to_the_exit_code_or_the_fault(reply, ended):
    assert _ended(reply) == ended


@pytest.mark.parametrize(
    ("names", "annotated", "chosen"),
    [
        pytest.param(["main"], "", "main", id="the only one"),
        pytest.param(["sidecar", "notebook"], "", "notebook", id="the notebook"),
        pytest.param(["a", "b"], "b", "b", id="the one that the pod names"),
        pytest.param(["a", "b"], "c", "a", id="not one that it has not"),
    ],
)
def test_exec_uses_the_default_container_or_the_notebook(names, annotated, chosen):
    notes = {"kubectl.kubernetes.io/default-container": annotated} if annotated else {}
    found = {
        "metadata": {"annotations": notes},
        "spec": {"containers": [{"name": name} for name in names]},
    }

    assert _container(found) == chosen


async def refused(programs: PodExec, workload: str, command: list[str]) -> RunaiError:
    with pytest.raises(RunaiError) as wrong:
        await programs.execute(workload, 0, command, b"")
    return wrong.value


@pytest.fixture
def running(lab, eventually):
    """Return a function that starts a scheduler and runs a pod, without a simulated program."""

    def begin(scheduler: Scheduler) -> str:
        lab.node("gpu-0", gpus=1)
        lab.project("vision", quota=1)
        lab.namespace.create(pod("notebook", project="vision"))
        workload = f"vision/{lab.namespace.name}.notebook"

        def up() -> bool:
            known = scheduler.call(scheduler.cluster.workloads())
            return [(str(record.id), str(record.state)) for record in known] == [
                (workload, "running")
            ]

        eventually(up, what="it runs")
        return workload

    return begin


def programs_of(scheduler: Scheduler) -> PodExec:
    return PodExec(scheduler.cluster._api, scheduler.cluster.lookup.pods_of)


async def no_environment(cluster: KubernetesCluster, workload: str, worker: int) -> Conflict:
    with pytest.raises(Conflict) as wrong:
        await cluster.environment(workload, worker)
    return wrong.value


@pytest.mark.kubernetes
def test_shell_environment_request_for_a_pod_is_refused_with_a_kubectl_exec_hint(
    running, rights, lab
):
    with Scheduler(rights) as scheduler:
        workload = running(scheduler)

        wrong = scheduler.call(no_environment(scheduler.cluster, workload, 0))
        none = scheduler.call(no_environment(scheduler.cluster, workload, 1))

    pod_arguments = f"--namespace {lab.namespace.name} notebook"
    assert (wrong.code, none.code) == ("is_a_pod", "is_a_pod")
    assert wrong.hint == f"For a terminal there: kubectl exec -it {pod_arguments} -- PROGRAM"
    assert "kubectl" not in none.hint


@pytest.mark.kubernetes
def test_pod_exec_without_rights_names_the_chart_setting(running, rights):
    with Scheduler(rights) as scheduler:
        workload = running(scheduler)

        wrong = scheduler.call(refused(programs_of(scheduler), workload, ["true"]))

    assert isinstance(wrong, Conflict)
    assert wrong.code == "exec_not_allowed"
    assert "jobs.exec" in wrong.hint


@pytest.mark.kubernetes
def test_pod_exec_on_an_unreachable_node_is_unavailable_with_a_message(running, plane):
    with Scheduler(plane.kubeconfig) as scheduler:  # an account with all rights
        workload = running(scheduler)

        wrong = scheduler.call(refused(programs_of(scheduler), workload, ["true"]))
        too_long = scheduler.call(refused(programs_of(scheduler), workload, ["x" * 40_000]))

    assert isinstance(wrong, Unavailable)
    assert wrong.message.startswith(f"The node of {workload} runs no program for us now: ")
    assert too_long.code == "too_large"


@pytest.mark.kubernetes
def test_pod_exec_is_refused_in_a_recreated_pod_of_the_same_name(running, rights):
    with Scheduler(rights) as scheduler:
        workload = running(scheduler)

        async def earlier(workload: str, uid: str) -> list[Pod]:
            pods = await scheduler.cluster.lookup.pods_of(workload, uid)
            return [replace(pod, uid="of an earlier pod") for pod in pods]

        programs = PodExec(scheduler.cluster._api, earlier)
        wrong = scheduler.call(refused(programs, workload, ["true"]))

    assert isinstance(wrong, NotFound)
