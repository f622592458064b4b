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
    ("reply", "end"),
    [
        pytest.param({"status": "Success"}, ProgramEnd(0), id="success"),
        pytest.param(
            status(details={"causes": [{"reason": "ExitCode", "message": "3"}]}),
            ProgramEnd(3),
            id="exit code",
        ),
        pytest.param(status(), ProgramEnd(127, "it said so"), id="no exit code"),
        pytest.param(
            status(details={"causes": [{"reason": "ExitCode", "message": "?"}]}),
            ProgramEnd(127, "it said so"),
            id="unreadable exit code",
        ),
    ],
)
def test_pod_exec_reply_is_parsed_to_the_exit_code_or_the_fault(reply, end):
    assert _ended(reply) == end


@pytest.mark.parametrize(
    ("names", "annotated", "chosen"),
    [
        pytest.param(["main"], "", "main", id="single container"),
        pytest.param(["sidecar", "notebook"], "", "notebook", id="notebook container"),
        pytest.param(["a", "b"], "b", "b", id="container in the annotation"),
        pytest.param(["a", "b"], "c", "a", id="unknown container in the annotation"),
    ],
)
def test_exec_uses_the_default_container_or_the_notebook(names, annotated, chosen):
    notes = {"kubectl.kubernetes.io/default-container": annotated} if annotated else {}
    manifest = {
        "metadata": {"annotations": notes},
        "spec": {"containers": [{"name": name} for name in names]},
    }

    assert _container(manifest) == chosen


async def refusal(programs: PodExec, workload: str, command: list[str]) -> RunaiError:
    with pytest.raises(RunaiError) as raised:
        await programs.execute(workload, 0, command, b"")
    return raised.value


@pytest.fixture
def start_notebook(lab, eventually):
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

        eventually(up, what="the pod runs")
        return workload

    return begin


def programs_of(scheduler: Scheduler) -> PodExec:
    return PodExec(scheduler.cluster._api, scheduler.cluster.lookup.pods_of)


async def no_environment(cluster: KubernetesCluster, workload: str, worker: int) -> Conflict:
    with pytest.raises(Conflict) as raised:
        await cluster.environment(workload, worker)
    return raised.value


@pytest.mark.kubernetes
def test_shell_environment_request_for_a_pod_is_refused_with_a_kubectl_exec_hint(
    start_notebook, kubeconfig, lab
):
    with Scheduler(kubeconfig) as scheduler:
        workload = start_notebook(scheduler)

        error = scheduler.call(no_environment(scheduler.cluster, workload, 0))
        other_error = scheduler.call(no_environment(scheduler.cluster, workload, 1))

    pod_arguments = f"--namespace {lab.namespace.name} notebook"
    assert (error.code, other_error.code) == ("is_a_pod", "is_a_pod")
    assert error.hint == f"For a terminal there: kubectl exec -it {pod_arguments} -- PROGRAM"
    assert "kubectl" not in other_error.hint


@pytest.mark.kubernetes
def test_pod_exec_without_rights_names_the_chart_setting(start_notebook, kubeconfig):
    with Scheduler(kubeconfig) as scheduler:
        workload = start_notebook(scheduler)

        error = scheduler.call(refusal(programs_of(scheduler), workload, ["true"]))

    assert isinstance(error, Conflict)
    assert error.code == "exec_not_allowed"
    assert "jobs.exec" in error.hint


@pytest.mark.kubernetes
def test_pod_exec_on_an_unreachable_node_is_unavailable_with_a_message(start_notebook, plane):
    with Scheduler(plane.kubeconfig) as scheduler:  # an account with all rights
        workload = start_notebook(scheduler)

        error = scheduler.call(refusal(programs_of(scheduler), workload, ["true"]))
        too_long = scheduler.call(refusal(programs_of(scheduler), workload, ["x" * 40_000]))

    assert isinstance(error, Unavailable)
    assert error.message.startswith(f"The node of {workload} runs no program for us now: ")
    assert too_long.code == "too_large"


@pytest.mark.kubernetes
def test_pod_exec_is_refused_in_a_recreated_pod_of_the_same_name(start_notebook, kubeconfig):
    with Scheduler(kubeconfig) as scheduler:
        workload = start_notebook(scheduler)

        async def earlier(workload: str, uid: str) -> list[Pod]:
            pods = await scheduler.cluster.lookup.pods_of(workload, uid)
            return [replace(pod, uid="of an earlier pod") for pod in pods]

        programs = PodExec(scheduler.cluster._api, earlier)
        error = scheduler.call(refusal(programs, workload, ["true"]))

    assert isinstance(error, NotFound)
