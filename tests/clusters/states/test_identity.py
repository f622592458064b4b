"""The sentence that refuses a request which means an earlier workload of the name."""

from __future__ import annotations

from datetime import datetime

import pytest

from runai.hub_service.clusters.states.identity import new_uid, refuse_other
from runai.hub_service.model.records import WorkloadRecord, WorkloadSpec, WorkloadState
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.errors import Conflict

EARLIER = datetime(2026, 11, 28, 21, 5).astimezone().timestamp()
NOW = datetime(2026, 11, 29, 21, 30).astimezone().timestamp()
SPEC = WorkloadSpec("vision", "alpha", "bob", "job", ("train",), gpus=MilliGpu(1000))
RECORD = WorkloadRecord(SPEC, WorkloadState.QUEUED, NOW, (), uid=new_uid(NOW))

UNKNOWN = "The vision/alpha that you mean"
INTENDED = {
    "uid with a time": (new_uid(EARLIER), "vision/alpha of 21:05 on 28 November"),
    "uid of the same minute": (new_uid(NOW), "vision/alpha of 21:30 on 29 November"),
    "uid of Kubernetes": ("0f9f32ec-7d1c-4c39-8e76-0d8a1a4f6a3c", UNKNOWN),
    "uid without a time": ("5c7dfb86-43c4-5e5c-9d2a-5f8c8e2f0a11", UNKNOWN),
    "other text": ("exp1", UNKNOWN),
    "uid of the far future": (f"ffffffff-ffff-7{'f' * 3}-bfff-{'f' * 12}", UNKNOWN),
}


@pytest.mark.parametrize(("uid", "intended"), INTENDED.values(), ids=INTENDED)
def test_refusal_of_an_outdated_workload_uid_names_both_workloads_and_times(uid, intended):
    with pytest.raises(Conflict) as refused:
        refuse_other(RECORD, uid)

    assert refused.value.message == (
        f"{intended} is gone: this is another one, submitted by bob at 21:30 on 29 November."
    )


@pytest.mark.parametrize("uid", ["", RECORD.uid], ids=["no uid", "its own uid"])
def test_request_with_the_uid_of_the_workload_is_not_refused(uid):
    refuse_other(RECORD, uid)


def test_workload_uids_created_in_the_same_moment_differ():
    assert len({new_uid(NOW) for _ in range(1000)}) == 1000
