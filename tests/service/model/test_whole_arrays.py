"""The record and the list's line of a whole array, from those of its elements."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from runai.hub_service.client.array_lines import folded
from runai.hub_service.model.arrays import whole
from runai.hub_service.model.records import WorkloadRecord, WorkloadSpec, WorkloadState
from runai.hub_service.wire.schemas import WorkloadView


@pytest.mark.parametrize("state", list(WorkloadState), ids=lambda state: state.value)
def test_array_of_elements_in_one_state_has_that_state(state) -> None:
    elements = [
        WorkloadRecord(
            WorkloadSpec("vision", f"sweep-{index}", "ana", "job", ("true",), array_index=index),
            state,
            0.0,
            (),
        )
        for index in range(2)
    ]
    views = [
        WorkloadView(
            id=f"vision/sweep-{index}",
            project="vision",
            name=f"sweep-{index}",
            user="ana",
            kind="job",
            state=state.value,
            preemptible=True,
            priority=50,
            gpus=1,
            submitted=datetime(2026, 1, 1, tzinfo=UTC),
            array_index=index,
        )
        for index in range(2)
    ]

    record, (line,) = whole(None, elements), folded(views)

    assert (record.state, record.states) == (state, {state: 2})
    assert (line.state, line.states) == (state.value, {state.value: 2})
