"""The custom resource: what the API server rejects, and the columns of `kubectl get projects`."""

from __future__ import annotations

import pytest

from control_plane.calls import ApiRefused
from control_plane.objects import add_project, job
from control_plane.scheduling import Scheduler

pytestmark = pytest.mark.kubernetes


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({"quota": -1}, "must be a number of GPUs", id="negative quota"),
        pytest.param({"quota": "0.1234"}, "three decimals", id="too fine a quota"),
        pytest.param({"quota": "many"}, "must be a number of GPUs", id="quota as a word"),
        pytest.param({"buildQuota": "unlimited"}, "three decimals", id="unlimited build quota"),
        pytest.param(
            {"quotaByType": {"h100": "many"}}, "must be a number of GPUs", id="quota table"
        ),
        pytest.param({"weight": -1}, "greater than or equal to 0", id="negative weight"),
        pytest.param({"parent": "wrong"}, "its own parent", id="its own parent"),
        pytest.param({"members": ["ana", "ana"]}, "Duplicate value", id="a member twice"),
        pytest.param({"name": "longer-than-24-characters"}, "at most 24", id="name too long"),
    ],
)
def test_api_server_refuses_invalid_project_specs(plane, spec, message):
    with pytest.raises(ApiRefused, match=message) as refused:
        add_project(plane, **({"name": "wrong"} | spec))

    assert refused.value.status == 422


def test_api_server_accepts_whole_fractional_and_unlimited_quotas(lab):
    for number, quota in enumerate([0, 2, "0.5", "2.125", "unlimited"]):
        lab.project(f"vision-{number}", quota=quota)
        lab.project(f"typed-{number}", quotaByType={"h100": quota, "*": 1})


def test_kubectl_lists_quota_fair_share_allocation_and_pending_work(lab, kubeconfig, eventually):
    lab.node("gpu-0", gpus=2)
    lab.project("vision", quota="1.5")
    lab.project("nlp", quotaByType={"h100": 2, "*": "0.5"})
    for name in ("one", "two", "three"):
        lab.namespace.create(job(name, project="vision"))

    with Scheduler(kubeconfig):
        vision_row = eventually(
            lambda: _row(lab, "vision") if _row(lab, "vision")[1:5] == EXPECTED_COLUMNS else None,
            what="the columns are filled",
        )

        nlp_quota = eventually(
            lambda: row[1] if len(row := _row(lab, "nlp")) > 4 else None, what="nlp is listed"
        )

    assert vision_row[0] == "vision"
    assert set(nlp_quota.split(",")) == {"h100=2", "*=0.5"}


EXPECTED_COLUMNS = ["1.5", "2", "2", "1"]
"""Quota, fair share, allocated, pending."""


def test_project_status_is_invalid_until_its_parent_exists(lab, kubeconfig, eventually):
    lab.project("vision", parent="nobody", quota=1)

    with Scheduler(kubeconfig):
        condition = eventually(lambda: _valid(lab, "vision"), what="the status is written")
        assert condition["status"] == "False"
        assert condition["message"] == "there is no project nobody, its parent"
        lab.project("nobody")
        eventually(lambda: _valid(lab, "vision")["status"] == "True", what="the project is valid")


def _row(lab, name: str) -> list[str]:
    row: str = lab.plane.kubectl("get", "project", name, "--no-headers")
    return row.split()


def _valid(lab, name: str):
    found = lab.plane.request("GET", f"/apis/jupyter-runai.dev/v1alpha1/projects/{name}")
    conditions = found.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == "Valid"), None)
