"""The Job manifest of a submitted workload, and the parsing back of all its fields."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from runai.hub_service.clusters.kubernetes.objects.amounts import cpu_milli, memory_mib
from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import DeviceRequest
from runai.hub_service.clusters.kubernetes.objects.job_manifest import (
    Confinement,
    PodTemplateSource,
    manifest,
    surroundings,
)
from runai.hub_service.clusters.kubernetes.objects.jobs import (
    ELASTIC,
    MIN_WORKERS,
    elastic_text,
    read_elastic,
    read_job,
)
from runai.hub_service.model.records import ElasticState, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.elastic_messages import WorkerPhase
from runai.hub_service.wire.errors import InvalidRequest

METADATA = {"uid": "u", "namespace": "lab", "creationTimestamp": "2026-01-01T00:00:00Z"}
PLAIN_SOURCE = PodTemplateSource("example/train")
SPEC = WorkloadSpec(
    "vision",
    "exp",
    "ana",
    "job",
    ("python", "train.py", "--cost=$(LR)"),
    env={"LR": "0.1$", "RANK": "9", "RUNAI_PROJECT": "other"},
    gpus=MilliGpu(2000),
    priority=75,
    backoff_limit=2,
    source="print(1)",
)
NOTEBOOK = {
    "spec": {
        "nodeName": "gpu-0",
        "hostname": "jupyter-ana",
        "serviceAccountName": "users",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "volumes": [
            {"name": "home", "persistentVolumeClaim": {"claimName": "claim-ana"}},
            {"name": "kube-api-access-x1", "projected": {}},
            {"name": "unused", "emptyDir": {}},
        ],
        "containers": [
            {"name": "sidecar", "image": "example/sidecar"},
            {
                "name": "notebook",
                "image": "example/notebook:3",
                "env": [{"name": "JUPYTERHUB_API_TOKEN", "value": "secret"}],
                "workingDir": "/home/jovyan",
                "volumeMounts": [
                    {"name": "home", "mountPath": "/home/jovyan"},
                    {"name": "kube-api-access-x1", "mountPath": "/var/run/secrets"},
                ],
            },
        ],
    }
}
POD_INDEX = {
    "fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
}


def pod_spec_of(job):
    return job["spec"]["template"]["spec"]


def environment(job) -> dict[str, str]:
    return {e["name"]: e.get("value", "") for e in pod_spec_of(job)["containers"][0]["env"]}


def stored_job(job):
    """Return a Job as the API server would return it."""
    named = {"uid": "1", "namespace": "lab", "creationTimestamp": "2026-11-22T00:00:00Z"}
    return read_job({**job, "metadata": {**job["metadata"], **named, "resourceVersion": "1"}})


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        replace(SPEC, workers=3, min_workers=3, array_index=4, expected_runtime=60, image="a/b:1"),
        replace(SPEC, gpus=MilliGpu(0), env={}, source="", node_type="a100", grace_seconds=5),
        replace(SPEC, gpu_types=("NVIDIA-A100", "NVIDIA-H100")),
        replace(SPEC, saves=True),
    ],
    ids=["one worker", "gang", "without GPUs", "types of GPUs", "saving"],
)
def test_manifest_round_trips_a_workload_spec(spec):
    read = stored_job(manifest(spec, PLAIN_SOURCE))

    assert read.spec == spec
    assert (read.is_queued, read.is_whole, read.may_be_suspended) == (True, True, True)
    assert (read.template.gpus, read.template.priority) == (spec.gpus // 1000, spec.priority)
    assert (read.template.project, read.template.kind) == ("vision", "train")
    assert read.template.saves is spec.saves


def test_array_manifest_is_an_indexed_job_with_element_variables_in_each_pod():
    spec = replace(SPEC, array=5, backoff_limit=2, env={"OF": "$(RUNAI_ARRAY_INDEX)"})
    job = manifest(spec, surroundings(NOTEBOOK))
    variables, read = environment(job), stored_job(job)

    assert (read.is_array, read.is_whole, read.is_queued, read.spec) == (True, False, True, spec)
    assert job["metadata"]["labels"]["runai/array"] == spec.name
    job_spec = job["spec"]
    assert (job_spec["completions"], job_spec["parallelism"]) == (5, 0)
    assert job_spec["backoffLimitPerIndex"] == 2
    actions = [rule["action"] for rule in job_spec["podFailurePolicy"]["rules"]]
    assert actions == ["FailIndex", "Ignore"]
    element = f"{spec.id}-$(RUNAI_ARRAY_INDEX)"
    assert (variables["RUNAI_WORKLOAD"], variables["RUNAI_WORKER"]) == (element, f"{element}-0")
    assert variables["RUNAI_CHECKPOINT_DIR"].endswith(f"/.runai/{element}/checkpoints")
    assert (variables["RUNAI_INDEX"], variables["OF"]) == ("0", "$$(RUNAI_ARRAY_INDEX)")


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        ("runai/paused-elements", "[]"),
        ("runai/paused-elements", '{"x": []}'),
        ("runai/paused-elements", '{"-1": [1], "20000": [1]}'),
        ("runai/paused-elements", "[" * 100_000),
        ("runai/deleted-elements", "x"),
        ("runai/deleted-elements", "-5"),
        ("runai/deleted-elements", "7-3,99999999999"),
    ],
)
def test_unreadable_annotations_of_an_array_are_ignored(annotation, text):
    job = manifest(replace(SPEC, array=5), PLAIN_SOURCE)
    job["metadata"]["annotations"][annotation] = text

    assert (stored_job(job).paused, stored_job(job).deleted_elements) == ({}, frozenset())


def test_impossible_pause_times_in_an_array_annotation_are_ignored():
    job = manifest(replace(SPEC, array=5), PLAIN_SOURCE)
    job["metadata"]["annotations"]["runai/paused-elements"] = '{"2": [1, 1e999, -1, NaN]}'

    assert stored_job(job).paused == {2: (1.0,)}


def test_job_with_completions_unlike_its_array_size_is_no_array():
    job = manifest(replace(SPEC, array=5), PLAIN_SOURCE)
    job["spec"]["completions"] = 2_000_000_000

    assert not stored_job(job).is_array


def test_job_pod_copies_image_and_volumes_but_no_secrets_of_the_notebook():
    job = manifest(SPEC, surroundings(NOTEBOOK))
    pod, container = pod_spec_of(job), pod_spec_of(job)["containers"][0]

    assert (container["image"], container["workingDir"]) == ("example/notebook:3", "/home/jovyan")
    assert [v["name"] for v in pod["volumes"]] == ["home", "runai-source"]
    assert [m["name"] for m in container["volumeMounts"]] == ["home", "runai-source"]
    assert (pod["serviceAccountName"], len(pod["tolerations"])) == ("users", 1)
    assert {"nodeName", "hostname"}.isdisjoint(pod)
    assert "secret" not in str(job)


def test_user_variables_override_defaults_but_not_workload_identity():
    variables = environment(manifest(replace(SPEC, workers=2, min_workers=2), PLAIN_SOURCE))

    assert (variables["LR"], variables["RUNAI_PROJECT"]) == ("0.1$$", "vision")  # $ is escaped
    assert (variables["RANK"], variables["WORLD_SIZE"]) == ("", "2")  # the rank is the pod's own
    assert "--cost=$$(LR)" in pod_spec_of(manifest(SPEC, PLAIN_SOURCE))["containers"][0]["command"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {},
            {
                "NODE_RANK": POD_INDEX,
                "PET_NNODES": "2",
                "PET_NODE_RANK": POD_INDEX,
                "PET_MASTER_ADDR": "vision-exp-0.runai-jobs",
                "PET_MASTER_PORT": "29500",
            },
            id="gang",
        ),
        pytest.param(
            {"env": {"PET_NODE_RANK": "$RANK", "PET_MASTER_PORT": "4"}},
            {
                "NODE_RANK": POD_INDEX,
                "PET_NNODES": "2",
                "PET_NODE_RANK": "$$RANK",
                "PET_MASTER_ADDR": "vision-exp-0.runai-jobs",
                "PET_MASTER_PORT": "4",
            },
            id="the user's own",
        ),
        pytest.param(
            {"command": ("torchrun", "--standalone", "t.py")},
            {"NODE_RANK": POD_INDEX},
            id="standalone",
        ),
        pytest.param({"elastic": True}, {}, id="elastic job"),
        pytest.param({"workers": 1, "min_workers": 1}, {}, id="one worker"),
    ],
)
def test_gang_pods_get_the_variables_of_torch_launchers(fields, expected):
    spec = replace(SPEC, **{"workers": 2, "min_workers": 2, **fields})
    (container,) = pod_spec_of(manifest(spec, PLAIN_SOURCE, api_url="http://runai"))["containers"]
    variables = {v["name"]: v.get("value") or v["valueFrom"] for v in container["env"]}

    launcher_env = {n: v for n, v in variables.items() if n == "NODE_RANK" or n.startswith("PET_")}
    assert launcher_env == expected
    assert len(variables) == len(container["env"])


@pytest.mark.parametrize(
    ("fields", "requests", "expected"),
    [
        pytest.param({}, {}, {}, id="none"),
        pytest.param({"cpu_milli": 2500}, {}, {"RUNAI_WORKER_CPUS": "2"}, id="CPU request"),
        pytest.param(
            {},
            {"cpu": "500m"},
            {"RUNAI_WORKER_CPUS": "1", "OMP_NUM_THREADS": "1"},
            id="request of the notebook",
        ),
        pytest.param(
            {"cpu_milli": 4000},
            {"cpu": "500m"},
            {"RUNAI_WORKER_CPUS": "4"},
            id="above the notebook's",
        ),
        pytest.param(
            {"cpu_milli": 500, "env": {"OMP_NUM_THREADS": "8"}},
            {},
            {"RUNAI_WORKER_CPUS": "1", "OMP_NUM_THREADS": "8"},
            id="the user's own",
        ),
        pytest.param({"elastic": True, "cpu_milli": 500}, {}, {}, id="elastic job"),
    ],
)
def test_job_pod_gets_environment_variables_for_its_cpu_request(fields, requests, expected):
    template_source = PodTemplateSource("example/train", resources={"requests": requests})
    variables = environment(manifest(replace(SPEC, **fields), template_source))

    names = ("RUNAI_WORKER_CPUS", "OMP_NUM_THREADS")
    assert {name: variables[name] for name in names if name in variables} == expected
    for name in ("LOKY_MAX_CPU_COUNT", "PYTHON_CPU_COUNT"):
        assert variables.get(name) == expected.get("RUNAI_WORKER_CPUS")


def test_job_without_gpus_sees_no_device():
    variables = environment(manifest(replace(SPEC, gpus=MilliGpu(0)), PLAIN_SOURCE))

    assert variables["NVIDIA_VISIBLE_DEVICES"] == "void"


@pytest.mark.parametrize(
    ("fields", "annotations"),
    [
        ({"gpus": MilliGpu(350)}, {"gpu-fraction": "0.35"}),
        ({"gpus": MilliGpu(0), "gpu_memory_mib": 8000}, {"gpu-memory": "8000"}),
    ],
    ids=["fraction", "memory"],
)
def test_gpu_fraction_and_gpu_memory_of_a_job_are_requested_by_annotations(fields, annotations):
    job = manifest(replace(SPEC, **fields), PLAIN_SOURCE)

    assert annotations.items() <= job["spec"]["template"]["metadata"]["annotations"].items()
    (container,) = pod_spec_of(job)["containers"]
    assert container["resources"] == {}
    (seen,) = [e for e in container["env"] if e["name"] == "NVIDIA_VISIBLE_DEVICES"]
    field = seen["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "metadata.annotations['runai/visible-devices']"
    assert read_job({**job, "metadata": {**job["metadata"], **METADATA}}).template.unsupported == ""


def test_elastic_job_of_one_process_requests_no_devices_of_the_kubelet():
    spec = replace(SPEC, elastic=True, gpus_max=MilliGpu(8000), guaranteed_workers=1)
    job = manifest(spec, PLAIN_SOURCE)

    assert pod_spec_of(job)["containers"][0]["resources"] == {}
    template = stored_job(job).template
    assert template.guaranteed == 1
    assert template.device_request == DeviceRequest(milli=1000, devices=2, most=8)
    assert (template.unsupported, template.is_blind) == ("", "")
    assert (template.gpus, template.milli_gpus()) == (0, 2000)


def test_job_manifest_drops_visible_devices_from_the_environment_of_a_spec():
    spec = replace(SPEC, env={"NVIDIA_VISIBLE_DEVICES": "all"})

    assert "NVIDIA_VISIBLE_DEVICES" not in environment(manifest(spec, PLAIN_SOURCE))


@pytest.mark.parametrize(
    ("spec", "template_source", "text"),
    [
        (replace(SPEC, elastic=True, workers=2), PLAIN_SOURCE, "would not find the service"),
        (replace(SPEC, kind="session"), PLAIN_SOURCE, "JupyterHub starts sessions"),
        (SPEC, PodTemplateSource(), "which image"),
        (replace(SPEC, source="#" * 200_000), PLAIN_SOURCE, "is too long"),
    ],
    ids=["no address", "session", "no image", "too long"],
)
def test_job_manifest_of_an_unsupported_spec_is_refused(spec, template_source, text):
    with pytest.raises(InvalidRequest, match=text):
        manifest(spec, template_source)


def test_elastic_state_annotation_has_saves_and_no_phases():
    state = ElasticState(saves=True, phases={"vision/exp-0": WorkerPhase.RUNNING})

    assert read_elastic({ELASTIC: elastic_text(state)}) == replace(state, phases={})


@pytest.mark.parametrize(
    ("completions", "annotations", "expected"),
    [  # expected: most and fewest workers
        pytest.param(4, {}, (4, 2), id="as submitted"),
        pytest.param(6, {}, (6, 2), id="more workers"),
        pytest.param(6, {MIN_WORKERS: "3"}, (6, 3), id="more workers, higher minimum"),
        pytest.param(2, {MIN_WORKERS: "3"}, (2, 2), id="fewer workers than the minimum"),
        pytest.param(1, {}, (2, 2), id="one worker"),
        pytest.param(6, {MIN_WORKERS: "many"}, (6, 2), id="minimum as a word"),
        pytest.param(6, {MIN_WORKERS: "0"}, (6, 2), id="minimum of zero"),
    ],
)
def test_elastic_spec_has_the_current_worker_expectedof_its_job(completions, annotations, expected):
    spec = replace(SPEC, elastic=True, workers=4, min_workers=2, gpus=MilliGpu(1000))
    job = manifest(spec, PLAIN_SOURCE, api_url="http://hub")
    job["metadata"]["annotations"] |= annotations
    job["spec"] |= {"completions": completions, "parallelism": completions}

    stored_spec = stored_job(job).spec
    assert stored_spec is not None
    assert (stored_spec.workers, stored_spec.min_workers) == expected


@pytest.mark.parametrize(
    "metadata",
    [
        {"ownerReferences": [{"kind": "JobSet", "name": "a", "uid": "u", "controller": True}]},
        {"labels": {"kueue.x-k8s.io/queue-name": "research"}},
    ],
    ids=["another controller", "Kueue"],
)
def test_job_managed_by_a_foreign_controller_may_not_be_suspended(metadata):
    job = manifest(SPEC, PLAIN_SOURCE)
    job["metadata"] |= metadata

    assert not stored_job(job).may_be_suspended


# -- confinement of a job's pod --------------------------------------------------------------------

REQUESTS = {"cpu": "500m", "memory": "1Gi"}
NOTEBOOK_BOUNDS = {"limits": {"cpu": "1500m", "memory": "2Gi"}, "requests": REQUESTS}


def beside(resources: dict[str, Any]) -> PodTemplateSource:
    notebook: dict[str, Any] = copy.deepcopy(NOTEBOOK)
    notebook["spec"]["containers"][1]["resources"] = resources
    return surroundings(notebook)


def resources_of(job) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = pod_spec_of(job)["containers"][0]["resources"]
    return found


@pytest.mark.parametrize("has_token", [False, True])
def test_job_pod_gets_a_token_of_the_api_from_an_admin_alone(has_token):
    notebook = {"spec": {**NOTEBOOK["spec"], "automountServiceAccountToken": True}}
    job = manifest(SPEC, surroundings(notebook), bounds=Confinement(has_token=has_token))

    assert pod_spec_of(job)["automountServiceAccountToken"] is has_token


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        pytest.param({"gpus": MilliGpu(0)}, 1, id="no GPU"),
        pytest.param({"gpus": MilliGpu(500)}, 1, id="half a GPU"),
        pytest.param({"gpus": MilliGpu(1000), "workers": 3, "min_workers": 3}, 1, id="gang"),
        pytest.param({"gpus": MilliGpu(2000)}, 2, id="two GPUs"),
        pytest.param({"elastic": True, "gpus_max": MilliGpu(4000)}, 4, id="one elastic process"),
    ],
)
def test_job_may_use_the_notebooks_cpu_and_memory_for_each_of_its_gpus(fields, factor):
    resources = resources_of(manifest(replace(SPEC, **fields), beside(NOTEBOOK_BOUNDS)))

    assert cpu_milli(resources["limits"]["cpu"]) == 1500 * factor  # the notebook has 1500m
    assert memory_mib(resources["limits"]["memory"]) == 2048 * factor  # the notebook has 2Gi
    # Kubernetes copies limits without requests into requests: a job is to fit its notebook's node.
    assert resources["requests"] == REQUESTS


@pytest.mark.parametrize(
    ("of_notebook", "admin_limits", "limits", "requests"),
    [
        ({}, {}, {}, {}),
        ({"requests": {"memory": "1Gi"}}, {}, {}, {"memory": "1Gi"}),
        # The job has two GPUs: it may use twice the 2Gi of the notebook.
        (NOTEBOOK_BOUNDS, {"cpu": "8"}, {"cpu": "8", "memory": "4Gi"}, REQUESTS),
        (
            NOTEBOOK_BOUNDS,
            {"cpu": "250m", "memory": "512Mi"},
            {"cpu": "250m", "memory": "512Mi"},
            {"cpu": "250m", "memory": "512Mi"},
        ),
        ({}, {"memory": "4Gi"}, {"memory": "4Gi"}, {"memory": "0"}),
        (
            {"limits": {"ephemeral-storage": "1G", "nvidia.com/gpu": "1", "example.com/fpga": "1"}},
            {},
            {"ephemeral-storage": "2G"},
            {"ephemeral-storage": "0"},
        ),
    ],
    ids=[
        "notebook without bounds",
        "notebook with a guarantee alone",
        "admin's CPU, notebook's memory",
        "admin's limits below the notebook's requests",
        "admin's memory alone",
        "notebook's disk, without its devices",
    ],
)
def test_job_pod_limits_are_the_admins_or_else_the_notebooks(
    of_notebook, admin_limits, limits, requests
):
    bounds = Confinement(limits=admin_limits)

    resources = resources_of(manifest(SPEC, beside(of_notebook), bounds=bounds))

    assert {k: v for k, v in resources["limits"].items() if k != "nvidia.com/gpu"} == limits
    assert resources.get("requests", {}) == requests
    assert resources["limits"]["nvidia.com/gpu"] == "2"


@pytest.mark.parametrize(
    ("fields", "admin_limits", "limits", "requests"),
    [
        pytest.param(
            {"cpu_milli": 500},
            {},
            {"cpu": "3000m", "memory": "4Gi"},
            {"cpu": "500m", "memory": "1Gi"},
            id="CPU below the notebook's limit",
        ),
        pytest.param(
            {"cpu_milli": 4000},
            {},
            {"cpu": "4000m", "memory": "4Gi"},
            {"cpu": "4000m", "memory": "1Gi"},
            id="CPU above the notebook's limit",
        ),
        pytest.param(
            {"memory_mib": 512},
            {},
            {"cpu": "3000m", "memory": "512Mi"},
            {"cpu": "500m", "memory": "512Mi"},
            id="memory",
        ),
        pytest.param(
            {"cpu_milli": 2000, "memory_mib": 2048},
            {"cpu": "2", "memory": "4Gi"},
            {"cpu": "2", "memory": "4Gi"},
            {"cpu": "2000m", "memory": "2048Mi"},
            id="up to the admin's limits",
        ),
    ],
)
def test_job_request_of_cpu_and_memory_overrides_that_of_its_notebook(
    fields, admin_limits, limits, requests
):
    bounds = Confinement(limits=admin_limits)

    resources = resources_of(
        manifest(replace(SPEC, **fields), beside(NOTEBOOK_BOUNDS), bounds=bounds)
    )

    assert {k: v for k, v in resources["limits"].items() if k != "nvidia.com/gpu"} == limits
    assert resources["requests"] == requests


@pytest.mark.parametrize(
    "fields", [{"cpu_milli": 2001}, {"memory_mib": 1025}], ids=["CPU", "memory"]
)
def test_job_request_above_the_admins_cpu_or_memory_limit_is_refused_with_both(fields):
    bounds = Confinement(limits={"cpu": "2", "memory": "1Gi"})

    with pytest.raises(InvalidRequest, match=r"(2001m of cpu.*, 2|1025Mi of memory.*, 1Gi)\."):
        manifest(replace(SPEC, **fields), beside(NOTEBOOK_BOUNDS), bounds=bounds)


def test_job_pod_stays_in_the_user_namespace_of_its_notebook():
    notebook = {"spec": {**NOTEBOOK["spec"], "hostUsers": False}}

    assert pod_spec_of(manifest(SPEC, surroundings(notebook)))["hostUsers"] is False
