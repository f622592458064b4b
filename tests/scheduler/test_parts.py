"""Quotas by GPU type: each entry of a table is a guarantee of its own (Q4)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import (
    applied,
    gpus,
    job,
    places,
    project,
    reserved,
    session,
    settled,
    snapshot,
    started,
    stopped,
    waits,
)
from runai.hub_service.scheduler import (
    Node,
    Plan,
    Project,
    Snapshot,
    Stop,
    Wait,
    WorkerState,
    Workload,
    decide,
    oversubscribed,
)
from runai.hub_service.scheduler.index import Changes, Index

NODES = [
    Node(name="n1", devices=4, gpu_type="a100"),
    Node(name="n2", devices=4, gpu_type="t4"),
]


def table(name: str, quotas: dict[str, float | None], **fields: Any) -> Project:
    """Make a project whose quota is a table in GPUs."""
    by_type = {gpu_type: gpus(number) for gpu_type, number in quotas.items()}
    return replace(project(name, **fields), quota_by_type=by_type)


def asking(gpu_type: str, workload: Workload) -> Workload:
    """Let a workload ask for a GPU type by name."""
    workers = tuple(replace(worker, gpu_types=(gpu_type,)) for worker in workload.workers)
    return replace(workload, workers=workers)


def singles(count: int, owner: str, node: str, *, first: int = 0) -> list[Workload]:
    """Make running one-GPU jobs, one a device."""
    return [
        job(f"{owner}-{node}-{i}", 1, owner, on=f"{node}:{i}") for i in range(first, first + count)
    ]


X = table("x", {"a100": 2, "*": 2})
Y = table("y", {"a100": 2, "*": 2})


# ---- S, R2: what is guaranteed of a type is given back on that type


RECLAIMS: dict[str, tuple[list[Project], list[Workload], set[str]]] = {
    "who is over on a type gives back there, though it is within its sum": (
        [X, Y],
        [*singles(4, "x", "n1"), asking("a100", job("new", 2, "y"))],
        {"x-n1-2-0", "x-n1-3-0"},
    ),
    "who is within on a type keeps it, though it is over elsewhere": (
        [X, Y],
        [
            *singles(2, "x", "n1"),
            *singles(4, "x", "n2"),
            *singles(2, "y", "n1", first=2),
            asking("a100", job("new", 1, "y")),
        ],
        set(),
    ),
    "and gives back where it is over": (
        [X, Y],
        [*singles(2, "x", "n1"), *singles(4, "x", "n2"), asking("t4", job("new", 2, "y"))],
        {"x-n2-2-0", "x-n2-3-0"},
    ),
    "a type that is named has no part in any other": (
        [table("x", {"a100": 0, "*": 4}), Y],
        [*singles(4, "x", "n1"), asking("a100", job("new", 2, "y"))],
        {"x-n1-2-0", "x-n1-3-0"},
    ),
    "a table without any other guarantees nothing of the rest": (
        [table("x", {"a100": 4}), Y],
        [*singles(4, "x", "n2"), asking("t4", job("new", 2, "y"))],
        {"x-n2-2-0", "x-n2-3-0"},
    ),
    "an unlimited entry is never over its quota": (
        [table("x", {"a100": None}), Y],
        [*singles(4, "x", "n1"), asking("a100", job("new", 2, "y"))],
        set(),
    ),
    "a project with one number is judged as a whole": (
        [project("x", 4), Y],
        [*singles(4, "x", "n1"), asking("a100", job("new", 2, "y"))],
        set(),
    ),
    "and takes back what is over of a type": (
        [X, project("y", 4)],
        [*singles(4, "x", "n1"), asking("a100", job("new", 2, "y"))],
        {"x-n1-2-0", "x-n1-3-0"},
    ),
    "whoever may use both types takes back where its quota has room": (
        [X, Y],
        [*singles(4, "x", "n1"), *singles(4, "y", "n2"), job("new", 1, "y")],
        {"x-n1-3-0"},
    ),
    "a priority goes first within a part": (
        [table("x", {"a100": 4})],
        [*singles(4, "x", "n1"), asking("a100", job("new", 1, "x", priority=90))],
        {"x-n1-3-0"},
    ),
}


@pytest.mark.parametrize(("projects", "there", "expected"), RECLAIMS.values(), ids=list(RECLAIMS))
def test_a_guarantee_is_one_of_a_type(
    projects: list[Project], there: list[Workload], expected: set[str]
) -> None:
    world = snapshot(NODES, projects, there)
    plan = decide(world)

    assert stopped(plan) == expected
    assert reserved(plan) == ({"new-0"} if expected else set())
    assert started(decide(applied(world, plan))) >= ({"new-0"} if expected else set())


def test_the_sum_of_a_table_stands_in_the_plan() -> None:
    plan = decide(snapshot(NODES, [X, Y], [asking("a100", job("new", 3, "x"))]))

    share = plan.projects["x"]
    assert (share.quota, share.fair_share, share.allocated, share.over_quota) == (
        4000,
        3000,
        3000,
        0,
    )


SHARES: dict[str, tuple[list[Project], list[Workload], dict[str, int]]] = {
    "types that all quotas tell apart are shared apart": (
        [X, Y],
        [asking("a100", job("x-1", 4, "x")), asking("t4", job("y-1", 4, "y"))],
        {"x": 4000, "y": 4000},
    ),
    "no share is larger than what there is of a type": (
        [X, project("y", 0, weight=1)],
        [asking("a100", job("x-1", 4, "x", workers=2)), job("y-1", 1, "y")],
        {"x": 4000, "y": 1000},
    ),
    "surplus of a type goes by the weights that tables give it": (
        [table("x", {"a100": 3}, weight=3), table("y", {"a100": 1}, weight=1)],
        [
            asking("a100", job("x-1", 4, "x", workers=2)),
            asking("a100", job("y-1", 4, "y", workers=2)),
        ],
        {"x": 3000, "y": 1000},
    ),
}


@pytest.mark.parametrize(("projects", "there", "expected"), SHARES.values(), ids=list(SHARES))
def test_fair_shares_by_type(
    projects: list[Project], there: list[Workload], expected: dict[str, int]
) -> None:
    plan = decide(snapshot(NODES, projects, there))

    assert {name: share.fair_share for name, share in plan.projects.items()} == expected


# ---- O1


def test_who_is_within_its_quota_of_the_type_goes_first() -> None:
    world = snapshot(
        NODES,
        [X, Y],
        [
            *singles(2, "x", "n1"),
            # y holds more in all, but nothing of this type.
            *singles(4, "y", "n2"),
            asking("a100", job("x-new", 2, "x")),
            asking("a100", job("y-new", 2, "y")),
        ],
    )

    assert started(decide(world)) == {"y-new-0"}


# ---- who may use several types


CHOICES: dict[str, tuple[list[Workload], dict[str, str]]] = {
    "any other first": ([job("g", 1, "x")], {"g-0": "n2:0"}),
    "beyond its quota where GPUs are idle": (
        [*singles(3, "x", "n2"), job("g", 2, "x")],
        {"g-0": "n1:0,1"},
    ),
    "a gang stays on one side of the table": (
        [*singles(2, "y", "n2"), job("g", 1, "x", workers=3)],
        {"g-0": "n1:0", "g-1": "n1:1", "g-2": "n1:2"},
    ),
    "each on its own where the other is full": (
        [job(f"g{i}", 2, "x") for i in range(5)],
        {"g0-0": "n2:0,1", "g1-0": "n1:0,1", "g2-0": "n2:2,3", "g3-0": "n1:2,3"},
    ),
    "where it has a place, though more is idle elsewhere": (
        [
            *[job(f"h{i}", 0.75, "y", on=f"n2:{i}") for i in range(4)],
            job("g", 0.5, "x"),
        ],
        {"g-0": "n1:0"},
    ),
    "without a GPU anywhere": ([*singles(4, "x", "n2"), job("g", 0, "x")], {"g-0": "n2:"}),
}


@pytest.mark.parametrize(("there", "expected"), CHOICES.values(), ids=list(CHOICES))
def test_who_may_use_several_types_is_booked_on_one(
    there: list[Workload], expected: dict[str, str]
) -> None:
    assert places(decide(snapshot(NODES, [X, Y], there))) == expected


def test_sessions_stay_within_the_build_quota_of_the_type_and_of_the_project() -> None:
    world = snapshot(
        NODES,
        [table("x", {"a100": 1, "*": 3}, build=3)],
        [
            asking("a100", session("ana-1", 1, "x")),
            asking("a100", session("bo-1", 1, "x")),
            asking("t4", session("cy-1", 2, "x")),
            asking("t4", session("di-1", 1, "x")),
        ],
    )
    plan = decide(world)

    assert started(plan) == {"ana-1-0", "cy-1-0"}
    assert waits(plan) == {"bo-1": "over_build_quota", "di-1": "over_build_quota"}


def test_a_limit_is_one_for_all_types() -> None:
    world = snapshot(
        NODES,
        [table("x", {"a100": 2, "*": 2}, limit=3)],
        [asking("a100", job("j1", 2, "x")), asking("t4", job("j2", 2, "x"))],
    )

    assert waits(decide(world)) == {"j2": "over_limit"}


def test_a_parents_table_counts_as_its_sum() -> None:
    world = snapshot(NODES, [table("lab", {"a100": 1, "*": 2}), project("x", 5, parent="lab")])

    assert decide(world).projects["lab"].quota == 3000


def test_who_asks_for_a_type_that_is_not_there_hears_so() -> None:
    world = snapshot(NODES, [X], [asking("h100", job("new", 1, "x"))])

    assert waits(decide(world)) == {"new": "no_such_node"}


def test_more_of_a_type_is_promised_than_there_is() -> None:
    world = snapshot(NODES, [table("x", {"a100": 3}), table("y", {"a100": 2, "*": 1})])

    assert oversubscribed(world) == (
        "the quotas of a100 add up to 5 GPUs, but the cluster has 4 GPUs of them",
    )


# ---- always


@st.composite
def typed_worlds(draw: st.DrawFn) -> Snapshot:
    """Draw a cluster of several GPU types whose projects have tables, numbers or both."""
    nodes = [
        Node(name=f"n{i}", devices=draw(st.integers(1, 3)), gpu_type=draw(st.sampled_from("ab")))
        for i in range(draw(st.integers(1, 3)))
    ]
    numbers = st.sampled_from([0, 0.5, 1, 2, 3])
    projects = []
    for name in "pqr"[: draw(st.integers(1, 3))]:
        named = draw(st.sampled_from([None, ["a"], ["a", "*"], ["a", "b"], ["*"]]))
        projects.append(
            project(name, draw(numbers))
            if named is None
            else table(name, {gpu_type: draw(numbers) for gpu_type in named})
        )
    free = [(node.name, device) for node in nodes for device in range(node.devices)]
    type_of = {node.name: node.gpu_type for node in nodes}
    workloads = []
    for i in range(draw(st.integers(1, 8))):
        owner = draw(st.sampled_from([p.name for p in projects]))
        size = draw(st.sampled_from([0.5, 1, 1, 1, 2]))
        place = None
        if size <= 1 and free and draw(st.booleans()):
            node, device = free.pop(draw(st.integers(0, len(free) - 1)))
            place = f"{node}:{device}"
        workload = job(f"w{i}", size, owner, on=place)
        wanted = draw(st.sampled_from([None, None, "a", "b"]))
        if wanted and (place is None or type_of[place.partition(":")[0]] == wanted):
            workload = asking(wanted, workload)
        workloads.append(workload)
    return snapshot(nodes, projects, workloads)


def held_by_part(world: Snapshot) -> Counter[tuple[str, str]]:
    """Sum what each project holds of each entry of its table, in milli-GPU."""
    type_of = {node.name: node.gpu_type for node in world.nodes}
    tables = {p.name: p.quota_by_type for p in world.projects}
    held: Counter[tuple[str, str]] = Counter()
    for workload in world.workloads:
        for worker in workload.workers:
            if worker.state is WorkerState.RUNNING and worker.node is not None:
                held[workload.project, _entry(tables[workload.project], type_of[worker.node])] += (
                    worker.gpus
                )
    return held


def _entry(quotas: Any, gpu_type: str) -> str:
    return gpu_type if quotas is not None and gpu_type in quotas else "*"


@given(typed_worlds())
def test_only_who_is_over_its_quota_of_a_type_loses_there(world: Snapshot) -> None:
    plan = decide(world)
    # What this plan starts counts: who gets more may lose what helps another.
    held = held_by_part(world) + held_by_part(started_beside(world, plan))
    type_of = {node.name: node.gpu_type for node in world.nodes}
    by_name = {p.name: p for p in world.projects}

    for stop in plan.decisions:
        if isinstance(stop, Stop) and stop.reason.rule == "R2":
            victim = next(w for w in world.workloads if w.name == stop.workload)
            owner = by_name[victim.project]
            entry = _entry(owner.quota_by_type, type_of[victim.workers[0].node or ""])
            quotas = owner.quota_by_type
            quota = owner.quota if quotas is None else quotas.get(entry, 0)
            assert isinstance(quota, int)
            assert held[owner.name, entry] > quota


def started_beside(world: Snapshot, plan: Plan) -> Snapshot:
    """Give a world of what a plan starts alone."""
    new = started(plan)
    after = applied(world, plan)
    return replace(after, workloads=tuple(w for w in after.workloads if w.workers[0].name in new))


@given(typed_worlds())
def test_no_gpu_is_idle_that_somebody_who_waits_may_use(world: Snapshot) -> None:
    plan = decide(world)
    after = applied(world, plan)
    waiting = {d.workload for d in plan.decisions if isinstance(d, Wait)}
    busy = {
        (worker.node, device)
        for workload in after.workloads
        for worker in workload.workers
        if worker.state is not WorkerState.PENDING
        for device in worker.devices
    } | {
        (worker.node, device)
        for workload in world.workloads
        for worker in workload.workers
        for device in worker.devices
    }

    for workload in after.workloads:
        worker = workload.workers[0]
        if workload.name in waiting and worker.state is WorkerState.PENDING:
            for node in world.nodes:
                if not worker.gpu_types or node.gpu_type in worker.gpu_types:
                    idle = [d for d in range(node.devices) if (node.name, d) not in busy]
                    assert len(idle) < max(1, worker.gpus // 1000)


@given(typed_worlds(), st.randoms(use_true_random=False))
def test_neither_order_nor_an_index_changes_a_plan_with_tables(world: Snapshot, dice: Any) -> None:
    plan = decide(world)
    other = replace(
        world,
        nodes=tuple(dice.sample(world.nodes, len(world.nodes))),
        projects=tuple(dice.sample(world.projects, len(world.projects))),
        workloads=tuple(dice.sample(world.workloads, len(world.workloads))),
    )
    index = Index(replace(world, workloads=()))

    assert decide(other) == plan
    index.apply(Changes(workloads=world.workloads))
    assert decide(index) == plan
    assert decide(index) == plan, "a cycle leaves nothing behind"
    gone = world.workloads[0].name
    index.apply(Changes(gone=(gone,)))
    assert decide(index) == decide(index.snapshot())


@given(typed_worlds())
def test_plans_with_tables_come_to_rest(world: Snapshot) -> None:
    world = settled(world, cycles=4)

    for _ in range(3):
        plan = decide(world)
        assert {d.kind for d in plan.decisions} <= {"wait"}
        world = applied(world, plan)
