"""The project tree: defaults resolved, a parent's own queue, circles and missing parents (S3)."""

from __future__ import annotations

from builders import gpus, parent, project
from runai.hub_service.scheduler import Project
from runai.hub_service.scheduler.state.project_tree import UNLIMITED, ProjectTree


def tree(*projects: Project, owners: tuple[str, ...] = ()) -> ProjectTree:
    return ProjectTree(projects, owners)


def test_project_defaults_match_the_documentation() -> None:
    project_node = tree(project("a", 2.5)).projects["a"]

    assert (project_node.quota, project_node.build_quota, project_node.weight) == (2500, 2500, 2500)
    assert (project_node.limit, project_node.priority, project_node.never_lent) == (
        UNLIMITED,
        100,
        0,
    )
    assert not project_node.is_unlimited


def test_unlimited_quota_has_the_fair_share_weight_of_one_gpu() -> None:
    project_node = tree(project("a", None)).projects["a"]

    assert (project_node.is_unlimited, project_node.build_quota, project_node.weight) == (
        True,
        UNLIMITED,
        1000,
    )


def test_build_quota_never_exceeds_the_quota() -> None:
    project_nodes = tree(project("a", 2, build=1), project("b", 2, build=3)).projects

    assert (project_nodes["a"].build_quota, project_nodes["b"].build_quota) == (1000, 2000)


def test_project_weight_is_stored_in_thousandths_of_a_gpu() -> None:
    assert tree(project("a", 2, weight=5)).projects["a"].weight == 5000


def test_project_overage_is_its_gpus_beyond_the_larger_of_quota_and_fair_share() -> None:
    project_node = tree(project("a", 2, limit=6)).projects["a"]
    project_node.allocated = 5000
    # The fair share is still 0, so that the quota of 2 GPUs counts.
    assert project_node.overage == 3000

    project_node.fair_share = 4000
    assert project_node.overage == 1000

    project_node.fair_share = 7000
    assert project_node.overage == -2000


def test_project_path_leads_to_the_root() -> None:
    project_tree = tree(
        parent("top"), parent("mid", parent="top"), project("leaf", 1, parent="mid")
    )

    assert [node.name for node in project_tree.projects["leaf"].path] == ["leaf", "mid", "top"]
    assert [node.name for node in project_tree.roots] == ["top"]
    # A parent without a quota has the sum of its descendants' quotas.
    assert project_tree.projects["top"].quota == 1000


def test_queue_of_a_parent_project_gets_the_quota_that_its_children_do_not_have() -> None:
    project_tree = tree(
        project("p", 5, priority=7, created=3), project("c", 2, parent="p"), owners=("p", "c")
    )
    queue = project_tree.queue_of("p")

    assert queue is not None
    assert queue is not project_tree.projects["p"]
    assert (queue.name, queue.priority, queue.age) == ("p itself", 7, (3, "p"))
    assert (queue.quota, queue.weight, queue.build_quota) == (3000, 3000, UNLIMITED)
    assert [node.name for node in queue.path] == ["p itself", "p"]
    assert queue in project_tree.projects["p"].children
    assert project_tree.queue_of("c") is project_tree.projects["c"]


def test_queue_of_a_parent_project_weighs_one_gpu_without_a_positive_finite_quota() -> None:
    child = project("c", 2, parent="p")
    empty_queue = tree(project("p", 1), child, owners=("p",)).queue_of("p")
    unlimited_queue = tree(project("p", None), child, owners=("p",)).queue_of("p")

    assert empty_queue is not None
    assert unlimited_queue is not None
    assert (empty_queue.quota, empty_queue.weight) == (0, 1000)
    assert (unlimited_queue.quota, unlimited_queue.weight) == (UNLIMITED, 1000)


def test_parent_project_without_workloads_has_no_queue_of_its_own() -> None:
    project_tree = tree(project("p", 1), project("c", 1, parent="p"), owners=("c", "unknown"))

    assert project_tree.queue_of("p") is project_tree.queue_of("unknown") is None
    assert {name for name in ("p", "c", "unknown") if project_tree.lacks_queue(name)} == {"p"}


def test_projects_with_circular_or_missing_parents_become_roots() -> None:
    project_tree = tree(
        project("a", 1, parent="b"),
        project("b", 1, parent="a"),
        project("self", 1, parent="self"),
        project("orphan", 1, parent="missing"),
    )

    assert {node.name for node in project_tree.roots} == {"b", "self", "orphan"}
    assert project_tree.projects["a"].parent is project_tree.projects["b"]


def test_quota_by_gpu_type_counts_as_its_sum() -> None:
    table = Project(name="a", quota_by_type={"a100": gpus(2), "*": gpus(1)})  # type: ignore[dict-item]
    unlimited = Project(name="b", quota_by_type={"a100": gpus(2), "*": None})  # type: ignore[dict-item]

    project_nodes = tree(table, unlimited).projects
    assert (project_nodes["a"].quota, project_nodes["b"].is_unlimited) == (3000, True)


def test_holder_projects_are_the_projects_with_never_lent_gpus() -> None:
    project_tree = tree(project("a", 1), project("b", 1, never_lent=1))

    assert [node.name for node in project_tree.holders] == ["b"]
