"""The output of `%%gpu` for a cell, and the status line of a session."""

from __future__ import annotations

import threading
from itertools import chain, count, repeat
from typing import Any

import pytest

from overviews import overview, project, workload
from runai.hub_service.wire.device_schemas import LimitView
from runai.hub_service.wire.errors import Unavailable
from runai.widgets.gpu_cell import CellMeter
from runai.widgets.state import status_state

LIMIT = LimitView(memory_mib=8192, tier="frameworks", badge="soft limit", why="PyTorch keeps it")
HALF_GPU: dict[str, Any] = {"gpus": 0.5, "allocated": 0.5, "limit": LIMIT}


def test_gpu_meter_samples_during_a_cell_and_once_at_its_end():
    loads = chain([0.1, 0.2, 0.3], repeat(0.0))  # any number of reads until the test goes on
    memory = chain([1024, 4096, 2048], repeat(0))
    reads, third_read = count(1), threading.Event()

    def read():
        if next(reads) == 3:
            third_read.set()
        return workload("lab", utilized=next(loads), memory_used_mib=next(memory), **HALF_GPU)

    with CellMeter(read, every_s=0.001) as meter:
        assert third_read.wait(30)

    assert "of 0.5 GPU busy" in meter.report()
    assert "4.0 of 8.0 GiB at most" in meter.report()


def test_gpu_meter_average_is_relative_to_the_allocated_share():
    ticks = iter([100.0, 112.5])  # seconds at the cell's begin and end

    def read():
        return workload("lab", utilized=0.25, memory_used_mib=None, simulated=True, **HALF_GPU)

    with CellMeter(read, every_s=3600, clock=lambda: next(ticks)) as meter:
        pass

    assert meter.report() == "50 % of 0.5 GPU busy · 12.5 s (simulated GPU)"


def test_cell_runs_and_reports_not_measured_if_the_service_is_away():
    def read():
        raise Unavailable("The GPU service is away.")

    with CellMeter(read, every_s=3600) as meter:
        has_run = True

    assert has_run
    assert meter.report().endswith("not measured: The GPU service is away.")


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        # 0.1 GPU of the allocated 0.5 is 20 %.
        (HALF_GPU | {"utilized": 0.1, "memory_used_mib": 2048},
         "½ GPU · 20 % · 2.0 of 8 GiB · vision 0 of 2.5 (simulated)"),
        ({"allocated": 0, "utilized": None}, "no GPU · vision 0 of 2.5"),
    ],
)  # fmt: skip
def test_session_status_is_one_line_with_gpu_and_memory_use(fields, line):
    view = workload("lab", simulated=True, **fields)
    state = status_state(overview(view, projects=(project("vision"),)), "vision/lab")

    assert state["notes"] == [line]


def test_status_line_of_a_missing_session_states_that_it_does_not_exist():
    assert "not there" in status_state(overview(), "vision/lab")["notes"][0]
