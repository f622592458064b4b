"""The stored form of a request: a free name, the image and the selected GPU types."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from runai.hub_service.model.gpu_types import types_meant
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.model.workload_spec import Site, workload_spec
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.schemas import SubmitRequest

VISION = ProjectSpec("vision")
A100, SMALL, L4 = "NVIDIA A100-SXM4-80GB", "NVIDIA-A100-PCIE-40GB", "NVIDIA L4"
SITE = Site(
    {"vision": VISION}, [], 16_000, most_devices=4, gpu_types=[A100, SMALL, L4], images=True
)


def spec_of(site=SITE, **fields):
    request = SubmitRequest(command=["true"], **fields)
    return workload_spec(request, user="ana", project=VISION, site=site)


@pytest.mark.parametrize("many", [0, 1, 63, 64, 65, 1000])
def test_a_name_is_found_beside_however_many(many):
    taken = {f"vision/job-{number}" for number in range(1, many + 1)}

    spec = spec_of(Site({"vision": VISION}, taken, 1000), gpus=1)

    assert spec.name == f"job-{many + 1}"


# -- its image -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "image",
    [
        "python",
        "quay.io/jupyter/pytorch-notebook:cuda12-latest",
        "registry.example.org:5000/team/train_it:v1.2",
        f"example/train@sha256:{'0a' * 32}",
    ],
)
def test_an_image_that_a_registry_may_have_is_kept(image):
    spec = spec_of(image=image)

    assert spec.image == image


@pytest.mark.parametrize(
    "image",
    ["", " ", "a b", "-x", "Upper/case", "x:", "a@sha256:12", "$(touch x)", "a\nb", "x" * 513],
)
def test_submit_request_refuses_invalid_image(image):
    with pytest.raises(ValidationError):
        SubmitRequest(command=["true"], image=image)


def test_the_image_of_a_session_is_chosen_elsewhere():
    with pytest.raises(InvalidRequest, match="where servers are started"):
        spec_of(kind="session", image="python")


# -- the type of its GPUs ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        pytest.param("NVIDIA A100-SXM4-80GB", (A100,), id="its name"),
        pytest.param("nvidia-a100-sxm4-80gb", (A100,), id="its name as labels write it"),
        pytest.param("A100", (A100, SMALL), id="a word that several have"),
        pytest.param("a100 40gb", (SMALL,), id="two words"),
        pytest.param("l4", (L4,), id="a word, in small letters"),
        pytest.param("l4,a100 40gb", (L4, SMALL), id="two names, the first preferred"),
        pytest.param("a100 40gb, L4", (SMALL, L4), id="two names the other way round"),
        pytest.param(
            "nvidia a100 sxm4 80gb,a100", (A100, SMALL), id="a type twice counts where it is first"
        ),
    ],
)
def test_gpu_type_means_types_with_its_words_in_order_of_preference(asked, meant):
    spec = spec_of(gpus=1, gpu_type=asked)

    assert spec.gpu_types == meant


def test_request_without_gpu_type_accepts_any_type():
    assert spec_of(gpus=1).gpu_types == ()


@pytest.mark.parametrize("asked", ["H100", "A10", "A100 L4", "-"])
def test_unknown_gpu_type_is_refused_with_list_of_existing_types(asked):
    with pytest.raises(InvalidRequest, match=f"There is no GPU of type {asked}") as wrong:
        spec_of(gpus=1, gpu_type=asked)

    assert wrong.value.hint == f"There is {A100} and {L4} and {SMALL}."


@pytest.mark.parametrize("asked", ["A100,H100", "H100, A100"])
def test_unknown_gpu_type_is_refused_beside_a_known_one(asked):
    with pytest.raises(InvalidRequest, match="There is no GPU of type H100"):
        spec_of(gpus=1, gpu_type=asked)


@pytest.mark.parametrize("asked", ["A100,", ",", "A100,,L4"])
def test_empty_gpu_type_is_refused(asked):
    with pytest.raises(InvalidRequest, match="There is no GPU of type"):
        spec_of(gpus=1, gpu_type=asked)


def test_where_no_node_says_what_it_has_that_is_said():
    with pytest.raises(InvalidRequest) as wrong:
        types_meant("A100", [""])

    assert wrong.value.hint == "No node says which type it has."


def test_a_type_without_a_gpu_is_a_mistake():
    with pytest.raises(InvalidRequest, match="no GPU is asked for"):
        spec_of(gpu_type="A100")
