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
from runai.hub_service.wire.schemas import ProjectPut, SubmitRequest

A100, SMALL, H100 = "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-PCIE-40GB", "NVIDIA-H100-SXM5-80GB"
NODE_TYPES = [A100, SMALL, H100]
TWO, FOUR = MilliGpu(2000), MilliGpu(4000)


@pytest.mark.parametrize(
    ("table", "resolved"),
    [
        pytest.param({"h100": TWO, "*": FOUR}, {H100: TWO, "*": FOUR}, id="a word"),
        pytest.param({"a100 40gb": TWO}, {SMALL: TWO}, id="two words"),
        pytest.param({A100: None}, {A100: None}, id="the name itself"),
        pytest.param({"k40": TWO}, {"k40": TWO}, id="a type that no node has"),
    ],
)
def test_stored_quota_table_has_the_gpu_type_names_of_the_nodes(table, resolved):
    assert checked_table(table, NODE_TYPES) == resolved
    assert by_node_type(table, NODE_TYPES) == resolved


def test_stored_quota_entry_retains_its_gpu_type_when_a_similar_type_is_added():
    stored = checked_table({"a100": TWO}, [A100])

    assert by_node_type(stored, NODE_TYPES) == {A100: TWO}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        pytest.param({"a100": TWO}, f"{SMALL} and {A100} are of that name", id="two types"),
        pytest.param({"h100": TWO, H100: TWO}, "are the same GPU type", id="one type twice"),
    ],
)
def test_ambiguous_quota_table_is_refused(table, message):
    with pytest.raises(InvalidRequest, match=message):
        checked_table(table, NODE_TYPES)


def test_ambiguous_quota_entry_of_a_file_is_the_first_gpu_types_and_noted():
    table = {"a100": TWO}

    assert by_node_type(table, NODE_TYPES) == {SMALL: TWO}
    assert table_notes(table, NODE_TYPES) == [
        f"{SMALL} and {A100} are both called a100: the quota is of {SMALL}."
    ]


def test_quotas_under_two_names_of_one_gpu_type_add_up():
    assert by_node_type({"h100": TWO, H100: FOUR}, NODE_TYPES) == {H100: MilliGpu(6000)}
    assert by_node_type({"h100": TWO, H100: None}, NODE_TYPES) == {H100: None}


def test_quota_of_a_gpu_type_without_nodes_is_noted():
    assert table_notes({"k40": TWO, "*": TWO, "h100": TWO}, NODE_TYPES) == [
        "No node has a GPU of type k40: the quota of 2 counts once one has."
    ]


@pytest.mark.parametrize(
    ("table", "types", "largest"),
    [
        pytest.param({"h100": TWO, "*": FOUR}, [H100], TWO, id="its own entry"),
        pytest.param({"h100": TWO, "*": FOUR}, [A100], FOUR, id="the others'"),
        pytest.param({"h100": TWO, "*": FOUR}, [], FOUR, id="any type"),
        pytest.param({"h100": TWO, "*": FOUR}, NODE_TYPES, FOUR, id="all types"),
        pytest.param({"h100": TWO}, [A100], 0, id="nothing of the others"),
        pytest.param({"h100": None, "*": TWO}, [H100, A100], None, id="unlimited"),
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
        pytest.param({"h100": 2, "*": "0.5"}, 2500, id="a sum"),
        pytest.param({"h100": 2, "*": None}, None, id="one is unlimited"),
    ],
)
def test_project_quota_by_gpu_type_is_the_sum_of_its_table(quota, total):
    spec = project_with(quota=quota)

    assert spec.quota == total
    assert list(spec.quota_by_type or ()) == list(quota)


def test_single_number_replaces_a_quota_table_by_gpu_type():
    spec = changed_project(project_with(quota={"h100": 2}), {"quota": ProjectPut(quota=4).quota})

    assert (spec.quota, spec.quota_by_type) == (FOUR, None)


@pytest.mark.parametrize(("gpu_type", "gpus"), [("h100", 3), (None, 5), ("a100", 5)])
def test_session_beyond_the_build_quota_of_its_gpu_type_is_refused(gpu_type, gpus):
    project = project_with(quota={"h100": 2, "*": 4})
    site = SubmissionContext({"vision": project}, [], 16_000, gpu_types=NODE_TYPES)
    request = {"command": ["x"], "kind": "session", "gpu_type": gpu_type}
    more, less = (SubmitRequest(**request, gpus=number) for number in (gpus, 2))

    with pytest.raises(InvalidRequest, match="build quota on GPUs of one type is"):
        workload_spec(more, user="ana", project=project, site=site)
    assert workload_spec(less, user="ana", project=project, site=site).gpus == TWO
