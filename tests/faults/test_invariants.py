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
    ("state", "waited", "is_reported"),
    [
        pytest.param("queued", False, False, id="it has just come"),
        pytest.param("queued", True, True, id="it waits longer than a cycle"),
        pytest.param("paused", True, True, id="it is paused longer than a cycle"),
        pytest.param("suspended", False, True, id="its user suspended it"),
        pytest.param("running", True, False, id="it runs"),
    ],
)
def test_invariant_checker_reports_workload_states_without_a_reason(state, waited, is_reported):
    record = replace(JOB, state=WorkloadState(state))
    known = {record.id} if waited else set()

    assert bool(unexplained([record], known)) == is_reported
    assert not unexplained([replace(record, reason=StateReason("a", "since it is so"))], known)
    assert unexplained([replace(record, reason=StateReason("a", ""))], known) == unexplained(
        [record], known
    )
