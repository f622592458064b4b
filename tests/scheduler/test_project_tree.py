"""The project tree: defaults resolved, a parent's own queue, circles and missing parents (S3)."""

from __future__ import annotations

from builders import gpus, parent, project
from runai.hub_service.scheduler import Project
from runai.hub_service.scheduler.state.project_tree import UNLIMITED, ProjectTree


def tree(*projects: Project, own: tuple[str, ...] = ()) -> ProjectTree:
    return ProjectTree(projects, own)


def test_a_project_has_the_defaults_that_are_documented() -> None:
    account = tree(project("a", 2.5)).projects["a"]

    assert (account.quota, account.build_quota, account.weight) == (2500, 2500, 2500)
    assert (account.limit, account.priority, account.never_lent) == (UNLIMITED, 100, 0)
    assert not account.is_unlimited


def test_an_unlimited_quota_weighs_as_one_gpu() -> None:
    account = tree(project("a", None)).projects["a"]

    assert (account.is_unlimited, account.build_quota, account.weight) == (True, UNLIMITED, 1000)


def test_the_build_quota_is_never_above_the_quota() -> None:
    accounts = tree(project("a", 2, build=1), project("b", 2, build=3)).projects

    assert (accounts["a"].build_quota, accounts["b"].build_quota) == (1000, 2000)


def test_a_weight_is_given_in_gpus_of_quota() -> None:
    assert tree(project("a", 2, weight=5)).projects["a"].weight == 5000


def test_how_far_a_project_is_over_its_entitlement() -> None:
    account = tree(project("a", 2, limit=6)).projects["a"]
    account.allocated = 5000
    assert account.overage == 3000

    account.fair_share = 4000
    assert account.overage == 1000

    account.fair_share = 7000
    assert account.overage == -2000


def test_a_path_leads_from_a_project_to_its_root() -> None:
    found = tree(parent("top"), parent("mid", parent="top"), project("leaf", 1, parent="mid"))

    assert [a.name for a in found.projects["leaf"].path] == ["leaf", "mid", "top"]
    assert [a.name for a in found.roots] == ["top"]
    assert found.projects["top"].quota == 1000


def test_a_parents_own_queue_has_what_its_children_leave() -> None:
    found = tree(
        project("p", 5, priority=7, created=3), project("c", 2, parent="p"), own=("p", "c")
    )
    own = found.queue_of("p")

    assert own is not None
    assert own is not found.projects["p"]
    assert (own.name, own.priority, own.age) == ("p itself", 7, (3, "p"))
    assert (own.quota, own.weight, own.build_quota) == (3000, 3000, UNLIMITED)
    assert [a.name for a in own.path] == ["p itself", "p"]
    assert own in found.projects["p"].children
    assert found.queue_of("c") is found.projects["c"]


def test_a_parents_own_queue_weighs_as_one_gpu_where_nothing_is_left_or_all_is_unlimited() -> None:
    nothing = tree(project("p", 1), project("c", 2, parent="p"), own=("p",)).queue_of("p")
    all_ = tree(project("p", None), project("c", 2, parent="p"), own=("p",)).queue_of("p")

    assert nothing is not None
    assert all_ is not None
    assert (nothing.quota, nothing.weight) == (0, 1000)
    assert (all_.quota, all_.weight) == (UNLIMITED, 1000)


def test_only_parents_with_workloads_of_their_own_have_queues_beside_their_children() -> None:
    found = tree(project("p", 1), project("c", 1, parent="p"), own=("c", "nobody"))

    assert (found.queue_of("p"), found.queue_of("nobody")) == (None, None)
    assert [found.lacks_queue(name) for name in ("p", "c", "nobody")] == [True, False, False]


def test_circles_and_missing_parents_stand_at_the_root() -> None:
    found = tree(
        project("a", 1, parent="b"),
        project("b", 1, parent="a"),
        project("self", 1, parent="self"),
        project("orphan", 1, parent="gone"),
    )

    assert {a.name for a in found.roots} == {"b", "self", "orphan"}
    assert found.projects["a"].parent is found.projects["b"]


def test_a_table_of_gpu_types_counts_as_its_sum() -> None:
    table = Project(name="a", quota_by_type={"a100": gpus(2), "*": gpus(1)})  # type: ignore[dict-item]
    unlimited = Project(name="b", quota_by_type={"a100": gpus(2), "*": None})  # type: ignore[dict-item]

    accounts = tree(table, unlimited).projects
    assert (accounts["a"].quota, accounts["b"].is_unlimited) == (3000, True)


def test_holders_are_the_projects_with_never_lent_gpus() -> None:
    found = tree(project("a", 1), project("b", 1, never_lent=1))

    assert [account.name for account in found.holders] == ["b"]
