"""Parsing of the GPU annotations of pods, and the errors in them."""

from __future__ import annotations

import pytest

from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import DeviceRequest, read_part


@pytest.mark.parametrize(
    ("annotations", "device_request"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({"gpu-fraction": "0.5"}, DeviceRequest(milli=500), id="a fraction"),
        pytest.param({"gpu-memory": "8000"}, DeviceRequest(mib=8000), id="memory"),
        pytest.param(
            {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"},
            DeviceRequest(milli=500, devices=2),
            id="of several devices",
        ),
        pytest.param(
            {"gpu-fraction": "1", "gpu-fraction-num-devices": "2", "runai/max-gpus": "4"},
            DeviceRequest(milli=1000, devices=2, most=4),
            id="two, up to four",
        ),
        pytest.param(
            {"gpu-fraction": "1.0", "gpu-fraction-num-devices": "2", "runai/max-gpus": "1"},
            DeviceRequest(milli=1000, devices=2, most=2),
            id="never fewer at most than it asks for",
        ),
    ],
)
def test_device_request_round_trips_through_its_annotations(annotations, device_request):
    assert read_part(annotations, 0) == (device_request, "")
    if device_request is not None:
        assert read_part(device_request.annotations, 0) == (device_request, "")


A_PART = "gpu-fraction must be a part of one GPU, such as 0.5"
WRONG = {
    "all of a device": ({"gpu-fraction": "1"}, 0, "must be a part of one GPU"),
    "more than a device": ({"gpu-fraction": "1.5"}, 0, A_PART),
    "a word": ({"gpu-fraction": "half"}, 0, A_PART),
    "a unit": ({"gpu-memory": "8GiB"}, 0, "gpu-memory must be MiB of device memory, such as 8000"),
    "a part and memory": ({"gpu-fraction": "0.5", "gpu-memory": "1"}, 0, "are both given"),
    "devices alone": (
        {"gpu-fraction-num-devices": "2"},
        0,
        "is said without gpu-fraction or gpu-memory",
    ),
    "parts of more": ({"gpu-fraction": "0.5", "runai/max-gpus": "4"}, 0, "is for whole devices"),
    "memory of more": ({"gpu-memory": "8000", "runai/max-gpus": "4"}, 0, "is for whole devices"),
    "no number": ({"gpu-fraction": "1", "runai/max-gpus": "all"}, 0, "must be a number of devices"),
    "too many": ({"gpu-fraction": "1", "runai/max-gpus": "999"}, 0, "must be a number of devices"),
    "beside whole": ({"gpu-fraction": "1", "runai/max-gpus": "4"}, 2, "and 2 whole are asked for"),
    "alone": ({"runai/max-gpus": "4"}, 2, "is said without gpu-fraction"),
}


@pytest.mark.parametrize(("annotations", "gpus", "wrong"), WRONG.values(), ids=WRONG)
def test_invalid_gpu_fraction_annotations_of_a_pod_are_rejected_with_a_reason(
    annotations, gpus, wrong
):
    device_request, error = read_part(annotations, gpus)

    assert device_request is None
    assert wrong in error
