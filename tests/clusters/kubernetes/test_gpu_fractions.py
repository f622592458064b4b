"""Parsing of the GPU annotations of pods, and the errors in them."""

from __future__ import annotations

import pytest

from runai.hub_service.clusters.kubernetes.objects.gpu_fractions import DeviceRequest, read_part


@pytest.mark.parametrize(
    ("annotations", "device_request"),
    [
        pytest.param({}, None, id="no annotation"),
        pytest.param({"gpu-fraction": "0.5"}, DeviceRequest(milli=500), id="fraction"),
        pytest.param({"gpu-memory": "8000"}, DeviceRequest(mib=8000), id="memory"),
        pytest.param({"gpu-memory": "8G"}, DeviceRequest(mib=8192), id="memory with a unit"),
        pytest.param({"gpu-fraction": "1/3"}, DeviceRequest(milli=333), id="third of a device"),
        pytest.param(
            {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"},
            DeviceRequest(milli=500, devices=2),
            id="fraction of two devices",
        ),
        pytest.param(
            {"gpu-fraction": "1", "gpu-fraction-num-devices": "2", "runai/max-gpus": "4"},
            DeviceRequest(milli=1000, devices=2, most=4),
            id="two whole devices, up to four",
        ),
        pytest.param(
            {"gpu-fraction": "1.0", "gpu-fraction-num-devices": "2", "runai/max-gpus": "1"},
            DeviceRequest(milli=1000, devices=2, most=2),
            id="maximum below the request",
        ),
    ],
)
def test_device_request_round_trips_through_its_annotations(annotations, device_request):
    assert read_part(annotations, gpus=0) == (device_request, "")
    if device_request is not None:
        assert read_part(device_request.annotations, gpus=0) == (device_request, "")


FRACTION_MESSAGE = "gpu-fraction must be a part of one GPU, such as 0.5"
ALONE_MESSAGE = "is said without gpu-fraction"
WHOLE_MESSAGE = "is for whole devices"
NUMBER_MESSAGE = "must be a number of devices"
INVALID = {
    "whole device": ({"gpu-fraction": "1"}, 0, "must be a part of one GPU"),
    "more than a device": ({"gpu-fraction": "1.5"}, 0, FRACTION_MESSAGE),
    "fraction as a word": ({"gpu-fraction": "half"}, 0, FRACTION_MESSAGE),
    "memory with an unknown unit": (
        {"gpu-memory": "8 pounds"},
        0,
        "gpu-memory must be device memory, such as 8000 (MiB) or 8G",
    ),
    "fraction and memory": ({"gpu-fraction": "0.5", "gpu-memory": "1"}, 0, "are both given"),
    "device count": ({"gpu-fraction-num-devices": "2"}, 0, f"{ALONE_MESSAGE} or gpu-memory"),
    "fraction with a maximum": ({"gpu-fraction": "0.5", "runai/max-gpus": "4"}, 0, WHOLE_MESSAGE),
    "memory with a maximum": ({"gpu-memory": "8000", "runai/max-gpus": "4"}, 0, WHOLE_MESSAGE),
    "maximum as a word": ({"gpu-fraction": "1", "runai/max-gpus": "all"}, 0, NUMBER_MESSAGE),
    "maximum too large": ({"gpu-fraction": "1", "runai/max-gpus": "999"}, 0, NUMBER_MESSAGE),
    "beside whole GPUs": (
        {"gpu-fraction": "1", "runai/max-gpus": "4"},
        2,
        "and 2 whole are asked for",
    ),
    "maximum": ({"runai/max-gpus": "4"}, 2, ALONE_MESSAGE),
}


@pytest.mark.parametrize(("annotations", "gpus", "message"), INVALID.values(), ids=INVALID)
def test_invalid_gpu_fraction_annotations_of_a_pod_are_rejected_with_a_reason(
    annotations, gpus, message
):
    device_request, error = read_part(annotations, gpus)

    assert device_request is None
    assert message in error
