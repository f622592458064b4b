"""A process's memory share of each device, from its environment."""

from __future__ import annotations

import pytest

from runai.hub_service.limits.hook.runai_limits.share import MIB, Share

HALF_H200 = {
    "RUNAI_GPU_MEMORY_LIMITS_MIB": "71885",
    "RUNAI_GPU_DEVICES_MIB": "143771",
    "RUNAI_GPU_CONTEXT_MIB": "500",
}


def share(limits: str, devices: str, context: int = 500) -> Share:
    parsed = Share.of(
        {
            "RUNAI_GPU_MEMORY_LIMITS_MIB": limits,
            "RUNAI_GPU_DEVICES_MIB": devices,
            "RUNAI_GPU_CONTEXT_MIB": str(context),
        }
    )
    assert parsed is not None
    return parsed


@pytest.mark.parametrize(
    ("limits", "devices", "usable"),
    [
        pytest.param("71885", "143771", [71385], id="limit without the context"),
        pytest.param("600", "16384", [300], id="share about the size of its context"),
        pytest.param("143771", "143771", [None], id="whole device"),
        pytest.param("8192,4096", "16384,16384", [7692, 3596], id="two shared devices"),
        pytest.param("16384,4096", "16384,16384", [None, 3596], id="whole and shared device"),
        pytest.param("8192", "", [7692], id="unknown device size"),
    ],
)
def test_memory_share_has_the_usable_memory_of_each_device(limits, devices, usable):
    assert usable == [share(limits, devices).usable_mib(i) for i in range(len(usable))]


def test_device_beyond_the_listed_memory_limits_has_no_memory_limit():
    assert share("8192", "16384").usable_mib(1) is None


def test_memory_fraction_is_relative_to_the_reported_device_memory():
    half = share("71885", "143771")

    assert half.fraction(0, 143771 * MIB) == 71385 / 143771
    # Another layer has already reduced the reported memory: half of it would be a quarter.
    assert half.fraction(0, 72000 * MIB) == 71385 / 72000
    assert half.fraction(0, 71885 * MIB // 2) is None


def test_memory_share_of_a_process_outside_workloads_is_none():
    assert Share.of({}) is None
    assert Share.of(HALF_H200 | {"RUNAI_GPU_MEMORY_LIMITS_MIB": ""}) is None
