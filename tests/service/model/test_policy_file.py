"""The scheduler's policy file as operators write it, and its effect on the controller."""

from dataclasses import replace
from typing import Any, cast

import pytest

from builders import cluster, job, project, snapshot
from inline_decisions import inline_scheduler
from runai.hub_service.controller.controller import Controller
from runai.hub_service.model.admin_files import read_policy
from runai.hub_service.scheduler import SHIPPED, Policy, Start
from runai.hub_service.wire.errors import InvalidRequest


def test_policy_file_has_shipped_values_for_missing_settings(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("packing: spread\nmax_pauses_per_hour: 2\n")

    assert read_policy(path) == replace(SHIPPED, packing="spread", max_pauses_per_hour=2)


def test_empty_policy_file_is_the_shipped_policy(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("# nothing chosen yet\n")

    assert read_policy(path) == SHIPPED


def test_scheduler_policy_without_a_file_is_the_shipped_policy():
    assert read_policy(None) == SHIPPED


def test_policy_file_phases_replace_the_shipped_phases(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("phases: [allocate, reclaim]\n")

    assert read_policy(path) == replace(SHIPPED, phases=("allocate", "reclaim"))


def test_policy_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "policy.yaml"
    path.write_text("\ufeffpacking: spread\n", encoding="utf-8")

    assert read_policy(path) == replace(SHIPPED, packing="spread")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("packing: tight", "policy: packing must be one of binpack, spread, frag, not 'tight'"),
        ("pack: spread", "policy: unknown field pack"),
        ("- spread", "policy must be an object"),
        ("packing: [", "is no YAML"),
        ("packing: spread\npacking: frag", "'packing' is there twice"),
    ],
    ids=["invalid value", "unknown field", "no object", "no YAML", "repeated field"],
)
def test_policy_file_error_names_the_file_and_the_mistake(tmp_path, text, message):
    path = tmp_path / "policy.yaml"
    path.write_text(text)

    with pytest.raises(InvalidRequest) as refused:
        read_policy(path)

    assert str(path) in str(refused.value)
    assert message in str(refused.value)


class UnchangingCluster:
    """Two jobs wait for two empty nodes with two GPUs each; nothing changes that."""

    async def observe(self):
        return snapshot(cluster("2x2"), [project("a", 4)], [job("a-1"), job("a-2")])

    async def apply(self, plan):
        return ()


@pytest.mark.parametrize(
    ("packing", "nodes"), [("binpack", ["n1", "n1"]), ("spread", ["n1", "n2"])]
)
async def test_controller_places_jobs_by_the_packing_policy(packing, nodes):
    controller = Controller(
        cast("Any", UnchangingCluster()), inline_scheduler(), policy=Policy(packing=packing)
    )

    cycle = await controller.cycle()

    assert [d.node for d in cycle.plan.decisions if isinstance(d, Start)] == nodes
    assert cycle.snapshot.policy.packing == packing
