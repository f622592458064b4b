"""The invariants' checker finds states without a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faults.invariants import unexplained
from runai.hub_service.model.records import StateReason, WorkloadRecord, WorkloadSpec, WorkloadState
from runai.hub_service.scheduler.model.quantity import MilliGpu

SPEC = WorkloadSpec("vision", "exp1", "ana", "job", ("true",), gpus=MilliGpu(1000))
JOB = WorkloadRecord(SPEC, WorkloadState.QUEUED, submitted=0.0, workers=())


@pytest.mark.parametrize(
    ("state", "waited_a_cycle", "is_reported"),
    [
        pytest.param("queued", False, False, id="queued since now"),
        pytest.param("queued", True, True, id="queued longer than a cycle"),
        pytest.param("paused", True, True, id="paused longer than a cycle"),
        pytest.param("suspended", False, True, id="suspended by its user"),
        pytest.param("running", True, False, id="running"),
    ],
)
def test_invariant_checker_reports_workload_states_without_a_reason(
    state, waited_a_cycle, is_reported
):
    without_reason = replace(JOB, state=WorkloadState(state), reason=None)
    with_empty_reason = replace(without_reason, reason=StateReason("code", ""))
    with_reason = replace(without_reason, reason=StateReason("code", "all GPUs are in use"))
    waited = {JOB.id} if waited_a_cycle else set()

    assert bool(unexplained([without_reason], waited)) == is_reported
    assert unexplained([with_empty_reason], waited) == unexplained([without_reason], waited)
    assert unexplained([with_reason], waited) == []
