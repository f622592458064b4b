"""Placement: devices, packing, memory, gangs, allowed nodes (P1 to P5), caps (Q)."""

from __future__ import annotations

import pytest

from builders import (
    cluster,
    job,
    places,
    project,
    reserved,
    session,
    snapshot,
    started,
    waits,
    with_workloads,
)
from runai.hub_service.scheduler import (
    Mib,
    Node,
    NodeTypes,
    Project,
    Snapshot,
    Start,
    Workload,
    decide,
)

PROJECTS = [project("a", 16)]


def place_of(snapshot: Snapshot, worker: str) -> str | None:
    return places(decide(snapshot)).get(worker)


# ---- P2


PACKING = {
    "fraction joins the fullest device with room": (
        "2x2",
        [job("x", 0.25, on="n1:0"), job("y", 0.5, on="n2:1")],
        job("new", 0.5),
        {"binpack": "n2:1", "spread": "n1:1"},
    ),
    "fraction that fits no shared device": (
        "2x2",
        [job("x", 0.75, on="n1:0"), job("y", 1, on="n2:0")],
        job("new", 0.5),
        {"binpack": "n1:1", "spread": "n1:1"},
    ),
    "whole GPU on the fullest node": (
        "2x4",
        [job("x", 2, on="n2:0,1")],
        job("new", 1),
        {"binpack": "n2:2", "spread": "n1:0"},
    ),
    "whole GPUs on the fullest node with enough": (
        "1x4+2x8",
        [job("x", 3, on="n1:0,1,2"), job("y", 4, on="n3:0,1,2,3")],
        job("new", 2),
        {"binpack": "n3:4,5", "spread": "n2:0,1"},
    ),
    "equal nodes: by name": ("3x2", [], job("new", 2), {"binpack": "n1:0,1", "spread": "n1:0,1"}),
    "job without a GPU on a node without idle GPUs": (
        "1x2+1x0",
        [],
        job("new", 0),
        {"binpack": "n2:", "spread": "n1:"},
    ),
}


TERMINATING_CASES = {
    "idle GPU for one job": (
        [job("stays", 0.5, on="n1:0"), job("goes", 0.5, on="n1:0", state="stopping")],
        [job("new", 0.5)],
        {"new-0": "n1:1"},
        set(),
    ),
    "free half and idle GPU for two jobs": (
        [job("stays", 0.25, on="n1:0"), job("goes", 0.25, on="n1:0", state="stopping")],
        [job("first", 0.5, submitted=1), job("second", 0.5, submitted=2)],
        {"first-0": "n1:0", "second-0": "n1:1"},
        set(),
    ),
    "no idle GPU: reservation (R7)": (
        [
            job("stays", 0.5, on="n1:0"),
            job("goes", 0.5, on="n1:0", state="stopping"),
            job("whole", 1, on="n1:1"),
        ],
        [job("new", 0.5)],
        {"new-0": "n1:0"},
        {"new-0"},
    ),
}


@pytest.mark.parametrize(
    ("existing", "new", "expected", "reserves"), TERMINATING_CASES.values(), ids=TERMINATING_CASES
)
def test_fractional_job_never_waits_for_a_stopping_worker_while_a_gpu_is_idle(
    existing: list[Workload], new: list[Workload], expected: dict[str, str], reserves: set[str]
) -> None:
    """Packing chooses among devices that have room now; no fraction waits while a GPU is idle.

    The time a stopping worker needs is unknown, and the next fraction joins the device that stays
    half empty (P2).
    """
    plan = decide(snapshot("1x2", PROJECTS, [*existing, *new]))

    assert (places(plan), reserved(plan)) == (expected, reserves)


@pytest.mark.parametrize("packing", ["binpack", "spread"])
@pytest.mark.parametrize(("nodes", "existing", "new", "expected"), PACKING.values(), ids=PACKING)
def test_packing_policy_determines_the_node_and_the_device_of_a_new_job(
    nodes: str, existing: list[Workload], new: Workload, expected: dict[str, str], packing: str
) -> None:
    cluster_snapshot = snapshot(nodes, PROJECTS, [*existing, new], packing=packing)

    assert place_of(cluster_snapshot, "new-0") == expected[packing]


# ---- P1, P3


def test_sixteen_half_gpu_jobs_fill_eight_devices_and_no_more() -> None:
    plan = decide(snapshot("1x8", PROJECTS, [job(f"h{i:02}", 0.5) for i in range(17)]))

    used_devices = [d.devices[0].device for d in plan.decisions if isinstance(d, Start)]
    assert sorted(used_devices) == sorted([*range(8), *range(8)])
    assert waits(plan) == {"h16": "behind"}


def test_jobs_of_0_1_and_0_2_gpus_fit_a_quota_of_0_3_gpus() -> None:
    cluster_snapshot = snapshot(
        "1x1",
        [project("a", 0.3)],
        [session("ana-1", 0.1), session("bo-1", 0.2), session("cy-1", 0.1)],
    )

    plan = decide(cluster_snapshot)

    assert started(plan) == {"ana-1-0", "bo-1-0"}
    assert waits(plan) == {"cy-1": "over_build_quota"}


MEMORY_CASES = {
    "memory request to the last MiB": (100, [job("m1", gpu_memory_mib=60)], 40, True),
    "memory request one MiB too large": (100, [job("m1", gpu_memory_mib=60)], 41, False),
    "beside a fraction, rounded down": (101, [job("f", 0.5)], 51, True),
    "beside a fraction, one MiB too large": (101, [job("f", 0.5)], 52, False),
    "beside a whole GPU": (100, [job("w", 1)], 1, False),
    "device of unknown size": (0, [], 1, False),
}


@pytest.mark.parametrize(
    ("device_mib", "existing", "requested_mib", "fits"), MEMORY_CASES.values(), ids=MEMORY_CASES
)
def test_memory_request_fits_only_beside_the_booked_memory(
    device_mib: int, existing: list[Workload], requested_mib: int, *, fits: bool
) -> None:
    cluster_snapshot = snapshot(
        cluster("1x1", memory_mib=device_mib),
        PROJECTS,
        [*existing, job("new", gpu_memory_mib=requested_mib)],
    )

    assert ("new-0" in started(decide(cluster_snapshot))) is fits


def test_fractional_jobs_exceed_no_whole_gpu_even_if_device_memory_is_free() -> None:
    thirds = [job(f"t{i}", 0.335) for i in range(3)]  # 3 x 33 MiB, but 1005 milli

    assert started(decide(snapshot(cluster("1x1", memory_mib=100), PROJECTS, thirds))) == {
        "t0-0",
        "t1-0",
    }


def test_memory_requests_are_charged_to_the_quota_rounded_up() -> None:
    # The quota of 0.25 GPUs is 256 of the device's 1024 MiB.
    within_quota = snapshot(
        cluster("1x1", memory_mib=1024),
        [project("a", 0.25)],
        [session("ana-1", gpu_memory_mib=256)],
    )
    over_quota = snapshot(
        cluster("1x1", memory_mib=1024),
        [project("a", 0.25)],
        [session("ana-1", gpu_memory_mib=257)],
    )

    assert decide(within_quota).projects["a"].allocated == 250
    assert waits(decide(over_quota)) == {"ana-1": "over_build_quota"}


def test_fractional_request_on_several_devices_uses_distinct_devices() -> None:
    cluster_snapshot = snapshot(
        "1x3", PROJECTS, [job("x", 0.75, on="n1:0"), job("new", 0.5, devices_wanted=2)]
    )

    assert place_of(cluster_snapshot, "new-0") == "n1:1,2"


# ---- P4


def test_gang_prefers_a_single_node() -> None:
    cluster_snapshot = snapshot(
        "2x1+1x4", PROJECTS, [job("x", 2, on="n3:0,1"), job("gang", workers=2)]
    )

    assert places(decide(cluster_snapshot)) == {"gang-0": "n3:2", "gang-1": "n3:3"}


def test_gang_prefers_a_single_domain_if_no_node_fits() -> None:
    nodes = [
        *cluster("1x2", labels={"rack": "r1"}),
        Node(name="n2", devices=1, labels={"rack": "r2"}),
        Node(name="n3", devices=2, labels={"rack": "r2"}),
    ]
    cluster_snapshot = snapshot(nodes, PROJECTS, [job("gang", workers=3, pack_by="rack")])

    assert places(decide(cluster_snapshot)) == {
        "gang-0": "n3:0",
        "gang-1": "n3:1",
        "gang-2": "n2:0",
    }


def test_gang_uses_few_nodes_and_fills_the_last_node_well() -> None:
    cluster_snapshot = snapshot("1x1+2x4+1x2", PROJECTS, [job("gang", workers=6)])

    used = {place.split(":")[0] for place in places(decide(cluster_snapshot)).values()}

    assert used == {"n2", "n4"}


def test_gang_starts_with_all_its_workers_or_none() -> None:
    cluster_snapshot = snapshot("1x3", PROJECTS, [job("x", on="n1:0"), job("gang", workers=3)])

    plan = decide(cluster_snapshot)

    assert (started(plan), waits(plan)) == (set(), {"gang": "gang_incomplete"})


def test_gang_of_unequal_workers_starts_together() -> None:
    launcher = job("mpi", 0, workers=1)
    gang = Workload(
        name="mpi", project="a", workers=(*launcher.workers, *job("mpi-w", 2, workers=2).workers)
    )

    assert started(decide(snapshot("1x4", PROJECTS, [gang]))) == {"mpi-0", "mpi-w-0", "mpi-w-1"}


def test_gang_is_reserved_whole_while_a_worker_stops() -> None:
    cluster_snapshot = snapshot(
        "1x2", PROJECTS, [job("old", on="n1:0", state="stopping"), job("gang", workers=2)]
    )

    plan = decide(cluster_snapshot)

    assert (started(plan), reserved(plan)) == (set(), {"gang-0", "gang-1"})


# ---- P5


def test_jobs_start_only_on_allowed_nodes() -> None:
    nodes = [
        Node(name="n1", devices=4, gpu_type="t4", labels={"zone": "x"}),
        Node(name="n2", devices=4, gpu_type="a100", labels={"zone": "x"}),
        Node(name="n3", devices=4, gpu_type="a100", labels={"zone": "y"}, schedulable=False),
        Node(name="n4", devices=4, gpu_type="a100", labels={"zone": "y"}),
    ]
    jobs = [
        job("by-type", gpu_types=("a100",)),
        job("by-label", node_selector={"zone": "y"}),
        job("by-name", nodes=("n1", "n3")),
        job("by-nothing", gpu_types=("h100",)),
    ]

    plan = decide(snapshot(nodes, PROJECTS, jobs))

    assert places(plan) == {"by-type-0": "n2:0", "by-label-0": "n4:0", "by-name-0": "n1:0"}
    assert waits(plan) == {"by-nothing": "no_such_node"}


def test_workers_do_not_exceed_the_cpu_of_their_node() -> None:
    nodes = cluster("1x4", cpu_milli=4000)

    plan = decide(snapshot(nodes, PROJECTS, [job(f"j{i}", 0.5, cpu_milli=1500) for i in range(3)]))

    assert started(plan) == {"j0-0", "j1-0"}


def test_sessions_and_jobs_use_the_node_types_of_their_project() -> None:
    nodes = [
        Node(name="dgx", devices=2, labels={"runai/node-type": "dgx"}),
        Node(name="ws", devices=2, labels={"runai/node-type": "workstation"}),
        Node(name="other", devices=2),
    ]
    vision = [project("a", 4, node_types=NodeTypes(build=("workstation",), train=("dgx",)))]

    plan = decide(snapshot(nodes, vision, [session("ana-1"), job("j")]))

    assert places(plan) == {"ana-1-0": "ws:0", "j-0": "dgx:0"}


def test_child_project_uses_only_the_node_types_of_its_parent() -> None:
    nodes = [
        Node(name="n1", devices=2, labels={"runai/node-type": "x"}),
        Node(name="n2", devices=2, labels={"runai/node-type": "y"}),
    ]
    owners = [
        project("p", 4, node_types=NodeTypes(train=("y",))),
        project("a", 4, parent="p", node_types=NodeTypes(train=("x", "y"))),
    ]

    assert place_of(snapshot(nodes, owners, [job("j")]), "j-0") == "n2:0"


# ---- Q


CAPS = {
    "Q1: default build quota": (
        [project("a", 1)],
        [session("ana-1", 1, on="n1:0"), session("bo-1", 0.5)],
        {"bo-1": "over_build_quota"},
    ),
    "Q1: build quota below the quota": (
        [project("a", 3, build=1)],
        [session("ana-1", 1, on="n1:0"), session("bo-1", 0.5)],
        {"bo-1": "over_build_quota"},
    ),
    "Q1: build quota above the quota": (
        [project("a", 1, build=3)],
        [session("ana-1", 1, on="n1:0"), session("bo-1", 0.5)],
        {"bo-1": "over_build_quota"},
    ),
    "Q1: jobs do not count": (
        [project("a", 1)],
        [job("j", 2, on="n1:0,1"), session("bo-1", 1)],
        {},
    ),
    "Q1: build quota of the parent": (
        [project("p", 1), project("a", 1, parent="p"), project("b", 1, parent="p")],
        [session("ana-1", 1, on="n1:0"), session("bo-1", 1, "b")],
        {"bo-1": "over_build_quota"},
    ),
    "Q3: limit for jobs": (
        [project("a", 1, limit=2)],
        [job("j", 2, on="n1:0,1"), job("k", 0.5)],
        {"k": "over_limit"},
    ),
    "Q3: limit of the parent": (
        [project("p", 1, limit=2), project("a", 2, parent="p"), project("b", 0, parent="p")],
        [job("j", 2, on="n1:0,1"), job("k", 1, "b")],
        {"k": "over_limit"},
    ),
    "Q3: job without a GPU": (
        [project("a", 0, limit=0)],
        [job("k", 0)],
        {},
    ),
    "Q5: preemptible session over quota": (
        [project("a", 0)],
        [session("ana-1", 1, preemptible=True)],
        {},
    ),
}


@pytest.mark.parametrize(("projects", "workloads", "expected"), CAPS.values(), ids=CAPS)
def test_workload_over_its_build_quota_or_limit_waits(
    projects: list[Project], workloads: list[Workload], expected: dict[str, str]
) -> None:
    assert waits(decide(snapshot("1x4", projects, workloads))) == expected


def test_never_lent_gpus_stay_idle_for_their_owner() -> None:
    owners = [project("a", 2, never_lent=2), project("b", 0)]
    cluster_snapshot = snapshot("1x4", owners, [job(f"b{i}", 1, "b") for i in range(4)])

    plan = decide(cluster_snapshot)
    assert started(plan) == {"b0-0", "b1-0"}
    assert waits(plan) == {"b2": "held_for", "b3": "held_for"}

    with_login = with_workloads(cluster_snapshot, session("ana-1", 1))
    assert started(decide(with_login)) == {"ana-1-0", "b0-0", "b1-0"}


def test_gpus_that_a_parent_project_never_lends_go_to_its_children() -> None:
    owners = [
        project("p", 2, never_lent=2),
        project("a", 1, parent="p", never_lent=1),
        project("b", 1, parent="p"),
        project("c", 0),
    ]
    cluster_snapshot = snapshot(
        "1x2", owners, [job(f"{n}{i}", 1, n) for n in "cb" for i in range(2)]
    )

    assert started(decide(cluster_snapshot)) == {"b0-0"}


@pytest.mark.parametrize(
    "requested",
    [{"cpu_milli": 8000}, {"memory_mib": 1000}],
    ids=["all the CPU", "all the memory"],
)
def test_worker_may_request_all_cpu_or_memory_of_a_node(requested):
    node = Node(
        name="n1", devices=1, device_memory_mib=Mib(1000), cpu_milli=8000, memory_mib=Mib(1000)
    )

    assert started(decide(snapshot([node], PROJECTS, [job("j", **requested)]))) == {"j-0"}
