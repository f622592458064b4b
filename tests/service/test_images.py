"""Who may choose the image of a job, and what an image is called."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.clusters.records import ProjectSpec
from runai.hub_service.errors import InvalidRequest
from runai.hub_service.submission import Site, workload_specs

VISION = ProjectSpec("vision")
SITE = Site({"vision": VISION}, [], 16_000, most_devices=4, images=True)


def specs(**fields):
    request = SubmitRequest(command=["true"], **fields)
    return workload_specs(request, user="ana", project=VISION, site=SITE)


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
    (spec,) = specs(image=image)

    assert spec.image == image


@pytest.mark.parametrize(
    "image",
    ["", " ", "a b", "-x", "Upper/case", "x:", "a@sha256:12", "$(touch x)", "a\nb", "x" * 513],
)
def test_what_no_registry_can_have_is_refused(image):
    with pytest.raises(ValidationError):
        SubmitRequest(command=["true"], image=image)


def test_the_image_of_a_session_is_chosen_elsewhere():
    with pytest.raises(InvalidRequest, match="where servers are started"):
        specs(kind="session", image="python")
