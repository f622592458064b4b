"""A choice's changes to a notebook's pod, and the pod's progress messages."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes_asyncio.client import V1EnvVar, V1Pod, V1ResourceRequirements
from kubespawner.objects import make_pod

from runai.hub_service.clusters.kubernetes.objects import core_objects
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import memory_variables
from runai.spawner import pod as names
from runai.spawner.amount import parse_amount
from runai.spawner.pod import PodExit, PodStart, environment, start_state, with_session
from runai.spawner.session_request import SessionRequest

NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}


def session_request(gpus: str, project: str | None = "vision") -> SessionRequest:
    return SessionRequest(project, parse_amount(gpus))


def session_pod(request: SessionRequest, **pod: Any) -> V1Pod:
    fields = {"name": "jupyter-ana", "cmd": ["lab"], "port": 8888, "image": "lab"}
    pod = {"image_pull_policy": "Always", "scheduler_name": "another", **fields, **pod}
    return with_session(make_pod(**pod), request)


def env(pod: V1Pod) -> dict[str, str]:
    return {v.name: v.value for v in pod.spec.containers[0].env}


def test_spawner_and_scheduler_use_the_same_kubernetes_names():
    assert names.SCHEDULER == core_objects.SCHEDULER
    assert names.GPU_RESOURCE == core_objects.GPU_RESOURCE
    assert names.GPU_TYPE_LABEL == core_objects.GPU_TYPE_LABEL


@pytest.mark.parametrize("gpus", ["1", "4"])
def test_whole_gpus_become_resource_limits_and_requests(gpus: str):
    pod = session_pod(session_request(gpus), cpu_limit=2)
    resources = pod.spec.containers[0].resources

    assert resources.limits == {"cpu": 2, "nvidia.com/gpu": gpus}
    assert resources.requests == {"nvidia.com/gpu": gpus}
    assert "gpu-fraction" not in pod.metadata.annotations
    assert env(pod) == {}


@pytest.mark.parametrize(
    ("gpus", "annotation"),
    [("0.35", ("gpu-fraction", "0.35")), ("2 GiB", ("gpu-memory", "2048"))],
)
def test_fractional_gpus_become_pod_annotations(gpus: str, annotation: tuple[str, str]):
    pod = session_pod(session_request(gpus), extra_resource_limits={"nvidia.com/gpu": "1"})

    assert annotation in pod.metadata.annotations.items()
    assert "nvidia.com/gpu" not in pod.spec.containers[0].resources.limits
    field_paths = {e.name: e.value_from.field_ref.field_path for e in pod.spec.containers[0].env}
    assert field_paths == {
        "NVIDIA_VISIBLE_DEVICES": names.VISIBLE_DEVICES,
        **{
            variable["name"]: variable["valueFrom"]["fieldRef"]["fieldPath"]
            for variable in memory_variables()
        },
    }


def test_session_pod_has_scheduler_project_kind_and_priority():
    pod = session_pod(
        session_request("1"), annotations={"runai/priority": "125"}, labels={"of": "admins"}
    )

    assert pod.spec.scheduler_name == "runai-scheduler"
    assert pod.metadata.labels == {
        "of": "admins",
        "runai/project": "vision",
        "runai/kind": "build",
    }
    assert pod.metadata.annotations == {"runai/priority": "125"}  # an admin's value wins


def test_pod_without_project_has_the_configured_scheduler_and_no_gpu():
    pod = session_pod(SessionRequest())

    assert pod.spec.scheduler_name == "another"
    assert env(pod) == NO_GPU


@pytest.mark.parametrize("gpus", ["0", "0.5", "1"])
@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({"env": {"NVIDIA_VISIBLE_DEVICES": "all", "A": "1"}}, id="environment"),
        pytest.param(
            {
                "extra_container_config": {
                    "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
                }
            },
            id="extra_container_config",
        ),
    ],
)
def test_pod_drops_configured_values_of_nvidia_visible_devices(gpus: str, extra: dict[str, Any]):
    assert "all" not in env(session_pod(session_request(gpus), **extra)).values()


def test_session_pod_with_a_mig_device_sets_no_nvidia_visible_devices():
    mig = {"nvidia.com/mig-1g.10gb": "1"}
    pod = session_pod(session_request("0"), extra_resource_limits=mig)

    assert pod.spec.containers[0].resources.limits == mig
    assert env(pod) == {}


@pytest.mark.parametrize("amount", ["0", 0], ids=["text", "number"])
def test_pod_with_zero_mig_devices_sees_no_gpu(amount: object):
    pod = session_pod(
        session_request("0"), extra_resource_limits={"nvidia.com/mig-1g.10gb": amount}
    )

    assert env(pod) == NO_GPU


def test_sidecar_containers_of_a_session_pod_stay_unchanged():
    pod = make_pod("jupyter-ana", ["lab"], 8888, "lab", "Always")
    sidecar = pod.spec.containers[0].__class__(
        name="sidecar",
        env=[V1EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="none")],
        resources=V1ResourceRequirements(limits={"cpu": "1"}),
    )
    pod.spec.containers.insert(0, sidecar)
    with_session(pod, session_request("1"))

    assert sidecar.resources.limits == {"cpu": "1"}
    assert [v.value for v in sidecar.env] == ["none"]


@pytest.mark.parametrize("terms", [None, [[], []]], ids=["no affinity", "two terms"])
def test_session_pod_requires_its_gpu_types_by_node_affinity(terms: list[list[Any]] | None):
    required = [{"matchExpressions": term} for term in terms] if terms else None
    pod = make_pod(
        name="jupyter-ana",
        cmd=["lab"],
        port=8888,
        image="lab",
        image_pull_policy="Always",
        scheduler_name="another",
        node_affinity_required=required,
    )
    with_session(pod, session_request("1"), ["H100", "L4"])

    rule = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
    expressions = [term.match_expressions for term in rule.node_selector_terms]
    assert len(expressions) == (len(terms) if terms else 1)
    for [type_expression] in expressions:
        assert (type_expression.key, type_expression.values) == (
            core_objects.GPU_TYPE_LABEL,
            ["H100", "L4"],
        )


@pytest.mark.parametrize(
    ("gpus", "fraction"), [("0", "0"), ("0.5", "0.5"), ("2", "1"), ("8 GiB", None)]
)
def test_session_pod_environment_names_project_workload_and_gpu_fraction(
    gpus: str, fraction: str | None
):
    variables = environment(session_request(gpus), workload="vision/lab.x", api_url="http://runai/")

    assert variables["RUNAI_PROJECT"] == "vision"
    assert variables["RUNAI_WORKLOAD"] == "vision/lab.x"
    assert variables.get("RUNAI_GPU_FRACTION") == fraction
    assert ("TF_FORCE_GPU_ALLOW_GROWTH" in variables) == (gpus in ("0.5", "8 GiB"))


def test_session_pod_environment_without_a_project_has_only_the_service_url():
    variables = environment(SessionRequest(), workload="", api_url="http://runai/")

    assert variables == {"RUNAI_API_URL": "http://runai/"}


def pending_pod(**status: Any) -> dict[str, Any]:
    return {"spec": {}, "status": {"phase": "Pending", **status}}


SECRET = "abcdef0123456789"
NODE = {
    "nodeName": "gpu-0",
    "containers": [
        {"name": "sidecar"},
        {"name": "notebook", "env": [{"name": "API_TOKEN", "value": SECRET}, {"name": "HOME"}]},
    ],
}


def pod_on_node(phase: str, container: dict[str, Any], **pod: Any) -> dict[str, Any]:
    sidecar = {"name": "sidecar", "state": {"terminated": {"exitCode": 9}}, "restartCount": 3}
    statuses = [sidecar, {"name": "notebook", "restartCount": 0, **container}]
    return {"spec": NODE, "status": {"phase": phase, "containerStatuses": statuses}, **pod}


def ended_pod(phase: str, code: int, reason: str, message: str = "") -> dict[str, Any]:
    end = {"exitCode": code, "reason": reason, "message": message}
    return pod_on_node(phase, {"state": {"terminated": end}})


def restarted_pod(code: int, reason: str, message: str, **state: Any) -> dict[str, Any]:
    last = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return pod_on_node("Running", {"state": state, "lastState": last, "restartCount": 1})


def start_on_node(end: PodExit | None = None, **state: Any) -> PodStart:
    return PodStart(node="gpu-0", end=end, **state)


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "message": "no GPU is free"}
BOUND_POD = {"spec": NODE, "status": {"phase": "Pending", "conditions": [UNSCHEDULABLE]}}
RUNNING: dict[str, Any] = {"state": {"running": {}}, "lastState": {}}
EVICTED_STATUS = {"phase": "Failed", "reason": "Evicted", "message": "The node was low\non memory."}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff"}}


@pytest.mark.parametrize(
    ("pod", "pod_start"),
    [
        pytest.param({"spec": {}}, PodStart(), id="new pod"),
        pytest.param(pending_pod(conditions=None), PodStart(), id="no conditions yet"),
        pytest.param(
            pending_pod(conditions=[UNSCHEDULABLE]),
            PodStart(sentence="no GPU is free"),
            id="unschedulable",
        ),
        pytest.param(BOUND_POD, start_on_node(), id="bound"),
        pytest.param(
            pod_on_node("Running", RUNNING),
            start_on_node(),
            id="runs, its sidecar does not",
        ),
        pytest.param(
            pod_on_node("Pending", {"state": {"waiting": {"reason": "ImagePullBackOff"}}}),
            start_on_node(),
            id="waits for its image",
        ),
        pytest.param(
            ended_pod("Failed", 1, "Error", "why\n"),
            start_on_node(PodExit("exit code 1", "why")),
            id="failed with a message",
        ),
        pytest.param(
            ended_pod("Succeeded", 0, "Completed"), start_on_node(PodExit()), id="finished"
        ),
        pytest.param(
            restarted_pod(1, "Error", "why", running={}),
            start_on_node(PodExit("exit code 1", "why")),
            id="started again",
        ),
        pytest.param(
            restarted_pod(1, "Error", "first", terminated={"exitCode": 2, "message": "second"}),
            start_on_node(PodExit("exit code 1", "first")),
            id="ended twice",
        ),
        pytest.param(
            restarted_pod(137, "OOMKilled", "", **BACK_OFF),
            start_on_node(PodExit("exit code 137: out of memory")),
            id="out of memory",
        ),
        pytest.param(
            restarted_pod(128, "StartError", 'exec: "/nowhere": no such file', **BACK_OFF),
            start_on_node(
                PodExit("exit code 128: it could not be started", 'exec: "/nowhere": no such file')
            ),
            id="missing program",
        ),
        pytest.param(
            ended_pod("Failed", 1, "OfAnotherRuntime"),
            start_on_node(PodExit("exit code 1: OfAnotherRuntime")),
            id="unknown reason",
        ),
        pytest.param(
            pod_on_node("Running", {**RUNNING, "restartCount": 1}),
            start_on_node(PodExit()),
            id="restarted without a reason",
        ),
        pytest.param(
            {"spec": NODE, "status": EVICTED_STATUS},
            start_on_node(PodExit("The node was low on memory")),
            id="evicted",
        ),
        pytest.param(
            {"spec": NODE, "status": {"phase": "Failed"}},
            start_on_node(PodExit()),
            id="failed without a reason",
        ),
        pytest.param(
            {
                **pod_on_node("Running", RUNNING),
                "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            },
            start_on_node(is_deleted=True),
            id="being deleted",
        ),
    ],
)
def test_server_start_state_reports_scheduling_end_and_deletion_of_a_pod(
    pod: dict[str, Any], pod_start: PodStart
):
    assert start_state(pod) == pod_start


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        pytest.param("\033[31m<b>a\033[0m\r\nb", "<b>a\nb", id="plain text"),
        pytest.param(f"http://hub/?x={SECRET}", "http://hub/?x=…", id="secret of its environment"),
        pytest.param("password=other", "password=…", id="value of a password field"),
        pytest.param(
            "\n".join(map(str, range(80))), "\n".join(map(str, range(60, 80))), id="last 20 lines"
        ),
        pytest.param(
            f"{SECRET[4:]}\n{'x' * 2048}",
            "x" * 2048,
            id="cut inside a secret",
        ),
        pytest.param(SECRET[4:] + "é" * 1024, "", id="single line that may be cut"),
    ],
)
def test_last_lines_of_an_ended_server_pod_are_text_without_secrets(message: str, lines: str):
    end = start_state(ended_pod("Failed", 1, "Error", message)).end

    assert end is not None
    assert end.lines == lines


def test_last_lines_of_a_server_pod_omit_a_line_cut_by_the_size_limit():
    share_bytes = 12 * 1024 // 8  # of each of 8 containers
    pod = ended_pod("Failed", 1, "Error", ("first\nsecond\n" + SECRET)[:-4].rjust(share_bytes, "x"))
    pod["spec"] = {**NODE, "initContainers": [{"name": f"init-{n}"} for n in range(6)]}

    assert start_state(pod).end == PodExit("exit code 1", "second")


@pytest.mark.parametrize(
    ("config", "policy"),
    [
        pytest.param({}, "FallbackToLogsOnError", id="not configured"),
        pytest.param({"terminationMessagePolicy": "File"}, "File", id="configured by an admin"),
    ],
)
def test_session_pod_falls_back_to_logs_as_termination_message(config: dict[str, str], policy: str):
    pod = session_pod(session_request("0"), extra_container_config=config)

    assert pod.spec.containers[0].termination_message_policy == policy
