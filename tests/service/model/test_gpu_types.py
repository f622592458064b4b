"""Quota tables: which GPU type an entry guarantees, and what a workload may have of it."""

import pytest

from runai.hub_service.model.gpu_types import (
    by_node_type,
    checked_table,
    largest_entry,
    table_notes,
)
from runai.hub_service.model.project_changes import changed_project
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.model.workload_spec import SubmissionContext, workload_spec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.errors import InvalidRequest
from runai.hub_service.wire.schemas import ProjectPut
from runai.hub_service.wire.workload_request import SubmitRequest

A100, A100_40GB, H100 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-PCIE-40GB", "NVIDIA-H100-SXM5-80GB"
NODE_TYPES = [A100, A100_40GB, H100]
GPUS_2, GPUS_4 = MilliGpu(2000), MilliGpu(4000)


@pytest.mark.parametrize(
    ("table", "resolved"),
    [
        pytest.param(
            {"h100": GPUS_2, "*": GPUS_4},
            {H100: GPUS_2, "*": GPUS_4},
            id="one word of the name",
        ),
        pytest.param({"a100 40gb": GPUS_2}, {A100_40GB: GPUS_2}, id="two words of the name"),
        pytest.param({A100: None}, {A100: None}, id="full name"),
        pytest.param({"k40": GPUS_2}, {"k40": GPUS_2}, id="type without nodes"),
    ],
)
def test_stored_quota_table_has_the_gpu_type_names_of_the_nodes(table, resolved):
    assert checked_table(table, NODE_TYPES) == resolved
    assert by_node_type(table, NODE_TYPES) == resolved


def test_stored_quota_entry_retains_its_gpu_type_when_a_similar_type_is_added():
    stored = checked_table({"a100": GPUS_2}, [A100])

    assert by_node_type(stored, NODE_TYPES) == {A100: GPUS_2}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        pytest.param({"a100": GPUS_2}, f"{A100_40GB} and {A100} are of that name", id="two types"),
        pytest.param(
            {"h100": GPUS_2, H100: GPUS_2},
            "are the same GPU type",
            id="one type under two names",
        ),
    ],
)
def test_ambiguous_quota_table_is_refused(table, message):
    with pytest.raises(InvalidRequest, match=message):
        checked_table(table, NODE_TYPES)


def test_ambiguous_quota_entry_of_a_file_is_the_first_gpu_types_and_noted():
    table = {"a100": GPUS_2}

    assert by_node_type(table, NODE_TYPES) == {A100_40GB: GPUS_2}
    assert table_notes(table, NODE_TYPES) == [
        f"{A100_40GB} and {A100} are both called a100: the quota is of {A100_40GB}."
    ]


def test_quotas_under_two_names_of_one_gpu_type_add_up():
    assert by_node_type({"h100": GPUS_2, H100: GPUS_4}, NODE_TYPES) == {H100: MilliGpu(6000)}
    assert by_node_type({"h100": GPUS_2, H100: None}, NODE_TYPES) == {H100: None}


def test_quota_of_a_gpu_type_without_nodes_is_noted():
    assert table_notes({"k40": GPUS_2, "*": GPUS_2, "h100": GPUS_2}, NODE_TYPES) == [
        "No node has a GPU of type k40: the quota of 2 counts once one has."
    ]


@pytest.mark.parametrize(
    ("table", "types", "largest"),
    [
        pytest.param({"h100": GPUS_2, "*": GPUS_4}, [H100], GPUS_2, id="entry of its type"),
        pytest.param({"h100": GPUS_2, "*": GPUS_4}, [A100], GPUS_4, id="entry for other types"),
        pytest.param({"h100": GPUS_2, "*": GPUS_4}, [], GPUS_4, id="request for any type"),
        pytest.param({"h100": GPUS_2, "*": GPUS_4}, NODE_TYPES, GPUS_4, id="request for all types"),
        pytest.param({"h100": GPUS_2}, [A100], 0, id="no entry for its type"),
        pytest.param({"h100": None, "*": GPUS_2}, [H100, A100], None, id="unlimited entry"),
    ],
)
def test_workload_may_use_the_largest_quota_entry_of_its_gpu_types(table, types, largest):
    assert largest_entry(table, types, NODE_TYPES) == largest


def project_with(**fields):
    change = ProjectPut(**fields)
    changes = {name: getattr(change, name) for name in change.model_fields_set}
    return changed_project(ProjectSpec("vision"), changes)


@pytest.mark.parametrize(
    ("quota", "total"),
    [
        pytest.param({"h100": 2, "*": "0.5"}, 2500, id="limited entries"),
        pytest.param({"h100": 2, "*": None}, None, id="one unlimited entry"),
    ],
)
def test_project_quota_by_gpu_type_is_the_sum_of_its_table(quota, total):
    spec = project_with(quota=quota)

    assert spec.quota == total
    assert list(spec.quota_by_type or ()) == list(quota)


def test_single_number_replaces_a_quota_table_by_gpu_type():
    spec = changed_project(project_with(quota={"h100": 2}), {"quota": ProjectPut(quota=4).quota})

    assert (spec.quota, spec.quota_by_type) == (GPUS_4, None)


@pytest.mark.parametrize(("gpu_type", "too_many_gpus"), [("h100", 3), (None, 5), ("a100", 5)])
def test_session_beyond_the_build_quota_of_its_gpu_type_is_refused(gpu_type, too_many_gpus):
    project = project_with(quota={"h100": 2, "*": 4})
    site = SubmissionContext({"vision": project}, [], 16_000, gpu_types=NODE_TYPES)
    request = {"command": ["x"], "kind": "session", "gpu_type": gpu_type}
    large_request = SubmitRequest(**request, gpus=too_many_gpus)
    small_request = SubmitRequest(**request, gpus=2)

    with pytest.raises(InvalidRequest, match="build quota on GPUs of one type is"):
        workload_spec(large_request, user="ana", project=project, site=site)
    spec = workload_spec(small_request, user="ana", project=project, site=site)
    assert spec.gpus == GPUS_2
