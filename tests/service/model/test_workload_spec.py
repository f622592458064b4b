"""The stored form of a request: a free name, the image and the selected GPU types."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from pydantic import ValidationError

from runai.hub_service.model.device import NodeCapacity
from runai.hub_service.model.gpu_types import resolve_types
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.model.workload_spec import SubmissionContext, workload_spec
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.workload_request import SubmitRequest

VISION = ProjectSpec("vision")
A100, A100_40GB, L4 = "NVIDIA A100-SXM4-80GB", "NVIDIA-A100-PCIE-40GB", "NVIDIA L4"
SITE = SubmissionContext(
    {"vision": VISION},
    taken=[],
    largest_device_mib=16_000,
    most_devices=4,
    gpu_types=[A100, A100_40GB, L4],
    executor="kubernetes",
)


def spec_of(site=SITE, **fields):
    request = SubmitRequest(command=["true"], **fields)
    return workload_spec(request, user="ana", project=VISION, site=site)


@pytest.mark.parametrize("used_count", [0, 1, 63, 64, 65, 1000])
def test_default_job_name_has_the_next_free_number(used_count):
    used_names = {f"vision/job-{number}" for number in range(1, used_count + 1)}

    spec = spec_of(
        SubmissionContext({"vision": VISION}, used_names, largest_device_mib=1000), gpus=1
    )

    assert spec.name == f"job-{used_count + 1}"


@pytest.mark.parametrize("fields", [{"name": "lab-ana"}, {"name": "lab", "array": 2}])
def test_job_name_of_a_notebook_server_is_refused(fields):
    with pytest.raises(InvalidRequest, match="notebook servers have names that begin with lab-"):
        spec_of(gpus=1, **fields)


@pytest.mark.parametrize("name", ["lab", "labs-1", "my-lab-1"])
def test_job_name_similar_to_a_notebook_servers_is_accepted(name):
    assert spec_of(gpus=1, name=name).name == name


# -- container image -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "image",
    [
        "python",
        "quay.io/jupyter/pytorch-notebook:cuda12-latest",
        "registry.example.org:5000/team/train_it:v1.2",
        f"example/train@sha256:{'0a' * 32}",
    ],
)
def test_valid_container_image_reference_is_stored(image):
    spec = spec_of(image=image)

    assert spec.image == image


@pytest.mark.parametrize(
    "image",
    ["", " ", "a b", "-x", "Upper/case", "x:", "a@sha256:12", "$(touch x)", "a\nb", "x" * 513],
)
def test_submit_request_refuses_invalid_container_image(image):
    with pytest.raises(ValidationError):
        SubmitRequest(command=["true"], image=image)


def test_session_with_a_container_image_is_refused():
    with pytest.raises(InvalidRequest, match="where servers are started"):
        spec_of(kind="session", image="python")


# -- GPU types -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu_type", "resolved"),
    [
        pytest.param("NVIDIA A100-SXM4-80GB", (A100,), id="full name"),
        pytest.param("nvidia-a100-sxm4-80gb", (A100,), id="name in the form of a label"),
        pytest.param("A100", (A100, A100_40GB), id="one word of two types"),
        pytest.param("a100 40gb", (A100_40GB,), id="two words"),
        pytest.param("l4", (L4,), id="word in small letters"),
        pytest.param("l4,a100 40gb", (L4, A100_40GB), id="two names, first preferred"),
        pytest.param("a100 40gb, L4", (A100_40GB, L4), id="two names in reverse order"),
        pytest.param(
            "nvidia a100 sxm4 80gb,a100",
            (A100, A100_40GB),
            id="repeated type counts at its first place",
        ),
    ],
)
def test_requested_gpu_type_selects_types_with_its_words_in_preference_order(gpu_type, resolved):
    spec = spec_of(gpus=1, gpu_type=gpu_type)

    assert spec.gpu_types == resolved


def test_request_without_gpu_type_accepts_any_type():
    assert spec_of(gpus=1).gpu_types == ()


@pytest.mark.parametrize("gpu_type", ["H100", "A10", "A100 L4", "-"])
def test_unknown_gpu_type_is_refused_with_list_of_existing_types(gpu_type):
    with pytest.raises(InvalidRequest, match=f"There is no GPU of type {gpu_type}") as refused:
        spec_of(gpus=1, gpu_type=gpu_type)

    assert refused.value.hint == f"There is {A100} and {L4} and {A100_40GB}."


@pytest.mark.parametrize("gpu_type", ["A100,H100", "H100, A100"])
def test_unknown_gpu_type_is_refused_beside_a_known_one(gpu_type):
    with pytest.raises(InvalidRequest, match="There is no GPU of type H100"):
        spec_of(gpus=1, gpu_type=gpu_type)


@pytest.mark.parametrize("gpu_type", ["A100,", ",", "A100,,L4"])
def test_empty_gpu_type_is_refused(gpu_type):
    with pytest.raises(InvalidRequest, match="There is no GPU of type"):
        spec_of(gpus=1, gpu_type=gpu_type)


def test_unknown_gpu_type_hint_mentions_nodes_without_a_type():
    with pytest.raises(InvalidRequest) as refused:
        resolve_types("A100", [""])

    assert refused.value.hint == "No node says which type it has."


def test_gpu_type_without_gpus_is_refused():
    with pytest.raises(InvalidRequest, match="no GPU is asked for"):
        spec_of(gpu_type="A100")


# -- node capacity -------------------------------------------------------------------------------

SIZED_SITE = replace(
    SITE,
    largest=NodeCapacity(cpu_milli=2000, memory_mib=6656),
    largest_by_type={A100: (4, 80_000), A100_40GB: (2, 40_000)},
)
"""The site with its largest nodes: by GPU type, their GPUs and the MiB of a GPU."""


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        pytest.param({"cpu": "2.5"}, "2.5 CPUs, more than any node has: the largest has 2.",
                     "--cpu 2.", id="CPU"),
        pytest.param({"gpus": 1, "cpu": 3, "workers": 2}, "3 CPUs, more than", "--cpu 2.",
                     id="CPU beside a GPU"),
        pytest.param({"elastic": True, "cpu": 3}, "3 CPUs, more than", "--cpu 2.",
                     id="CPU of an elastic job"),
        pytest.param({"kind": "session", "memory_mib": 8192},
                     "8 GiB of memory, more than any node has: the largest has 6656 MiB.",
                     "--memory 6656M.", id="memory of a session"),
        pytest.param({"gpus": 8}, "8 GPUs, more than any node has: the largest has 4.",
                     "--gpus 4, or for more --workers.", id="GPUs"),
        pytest.param({"gpus": 5, "cpu": 3}, "5 GPUs, more than", "--gpus 4, or",
                     id="GPUs before CPU"),
        pytest.param({"gpu_memory_mib": 16_001},
                     "16001 MiB of one GPU, more than any GPU has: the largest has 16000 MiB.",
                     "--gpu-memory 16000M.", id="GPU memory"),
        pytest.param({"gpus": 3, "gpu_type": "40gb"},
                     f"3 GPUs, more than any node of type {A100_40GB} has: the largest has 2.",
                     "--gpus 2, or for more --workers, or for another --gpu-type.",
                     id="GPUs of a type"),
        pytest.param({"gpus": 1, "gpu_type": "l4"},
                     f"1 GPU, more than any node of type {L4} has: the largest has 0.",
                     "--gpus 0, or for another --gpu-type.",
                     id="type without nodes"),
        pytest.param({"gpus": 5, "gpu_type": "l4,a100"},
                     f"5 GPUs, more than any node of type {L4} or {A100} or {A100_40GB} has: the",
                     "--gpus 4, or for more", id="GPUs of several types"),
        pytest.param({"gpu_memory_mib": 40_001, "gpu_type": "40gb"},
                     f"40001 MiB of one GPU, more than any GPU of type {A100_40GB} has: the largest"
                     " has 40000 MiB.",
                     "--gpu-memory 40000M, or for another --gpu-type.", id="GPU memory of a type"),
    ],
)  # fmt: skip
def test_job_request_above_any_nodes_capacity_is_refused_with_both_amounts(fields, message, hint):
    with pytest.raises(
        InvalidRequest, match=f"^Each worker requests {re.escape(message)}"
    ) as refused:
        spec_of(SIZED_SITE, **fields)

    assert refused.value.code == "over_node"
    assert refused.value.hint.startswith(f"Ask for at most {hint}")


@pytest.mark.parametrize(
    ("fields", "site"),
    [
        pytest.param({"gpus": 4, "cpu": 2, "memory_mib": 6656}, SIZED_SITE, id="whole node"),
        pytest.param({"gpus": 0, "workers": 9, "cpu": 1}, SIZED_SITE, id="many workers"),
        pytest.param({"gpus": 6, "elastic": True}, SIZED_SITE, id="elastic, down to one GPU"),
        pytest.param({"gpu_memory_mib": 16_000}, SIZED_SITE, id="whole memory of a GPU"),
        pytest.param({"gpus": 3, "gpu_type": "40gb,80gb"}, SIZED_SITE, id="fits the second type"),
        pytest.param({"gpu_memory_mib": 80_000, "gpu_type": "a100"}, SIZED_SITE,
                     id="GPU memory of one type"),
        pytest.param({"gpus": 6, "elastic": True, "gpu_type": "40gb"}, SIZED_SITE,
                     id="elastic, down to one GPU of its type"),
        pytest.param({"cpu": 99, "memory_mib": 2**20}, replace(SITE, largest=NodeCapacity()),
                     id="unbounded nodes"),
        pytest.param({"gpus": 99, "cpu": 99, "gpu_type": "A100"}, SITE, id="unknown node sizes"),
    ],
)  # fmt: skip
def test_job_request_that_fits_some_node_is_accepted(fields, site):
    assert spec_of(site, **fields).workers == fields.get("workers", 1)


@pytest.mark.parametrize(
    ("fields", "cpu_milli", "is_requested"),
    [
        pytest.param({"gpus": 0, "cpu": 1}, 1000, True, id="request of the default amount"),
        pytest.param({"gpus": 0}, 1000, False, id="default"),
        pytest.param({"gpus": 1}, 0, False, id="none beside a GPU"),
    ],
)
def test_requested_cpu_is_distinguished_from_the_default(fields, cpu_milli, is_requested):
    spec = spec_of(SITE, **fields)

    assert spec.cpu_milli == cpu_milli
    assert spec.cpu_asked is is_requested


def test_cluster_without_gpus_refuses_a_gpu_request():
    site = SubmissionContext({"vision": VISION}, [], largest_device_mib=0, largest=NodeCapacity())

    for fields, largest in (({"gpus": 1}, "0"), ({"gpu_memory_mib": 1024}, "0 MiB")):
        with pytest.raises(InvalidRequest, match=f"the largest has {largest}[.]") as refused:
            spec_of(site, **fields)
        assert refused.value.hint == "Ask for at most --gpus 0."
