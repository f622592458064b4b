"""Reasons of waits and stops: codes, sentences with numbers, queue positions (X)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import cluster, job, project, sentence, session, snapshot, waits
from runai.hub_service.scheduler import Node, Policy, Project, Stop, Wait, Workload, decide
from runai.hub_service.scheduler.model.quantity import Mib


def test_wait_reason_code_has_its_sentence() -> None:
    nodes, snapshots = "1x4", {}
    expected = {}

    def case(
        workload: str, code: str, text: str, projects: list[Project], *workloads: Workload
    ) -> None:
        snapshots[workload] = snapshot(nodes, projects, workloads)
        expected[workload] = (code, text)

    vision = [project("vision", 2, limit=3)]
    case(
        "cy-1",
        "over_build_quota",
        "the build quota of vision is 2 GPUs, and its notebooks hold 2: ana 1, bo 1",
        vision,
        session("ana-1", 1, "vision", on="n1:0"),
        session("bo-1", 1, "vision", on="n1:1"),
        session("cy-1", 1, "vision"),
    )
    case(
        "vision/exp-2",
        "over_limit",
        "vision may hold at most 3 GPUs and holds 2; this asks for 2",
        vision,
        job("vision/exp-1", 2, "vision", on="n1:0,1"),
        job("vision/exp-2", 2, "vision"),
    )
    case(
        "huge",
        "no_such_node",
        "no node has 8 GPUs; the largest has 4: ask for more workers instead",
        [project("a", 8)],
        job("huge", 8),
    )
    case(
        "old",
        "no_such_node",
        "no node has a GPU of type k40 or k80; no node says which it has",
        [project("a", 8)],
        job("old", 1, gpu_types=("k40", "k80")),
    )
    case(
        "crowd",
        "no_such_node",
        "only 4 of its 5 workers fit on all nodes that it may use",
        [project("a", 8)],
        job("crowd", 1, workers=5),
    )
    case(
        "lost",
        "unknown_project",
        "there is no project nobody",
        [project("a", 8)],
        job("lost", 1, "nobody"),
    )
    case(
        "late",
        "behind",
        "first came first in the queue and took the free GPUs",
        [project("a", 4)],
        job("first", 4),
        job("late", 1),
    )
    case(
        "poor",
        "over_share",
        "b holds 1 of its fair share of 1 GPU; this asks for 1, and 4 of 4 GPUs are in use",
        [project("a", 3), project("b", 1)],
        job("rich", 3, on="n1:0,1,2"),
        job("own", 1, "b", on="n1:3"),
        job("poor", 1, "b"),
    )
    case(
        "greedy",
        "over_share",
        "b holds 0 of its fair share of 0 GPUs; this asks for 1, and 4 of 4 GPUs are in use",
        [project("a", 4), project("b", 0)],
        job("owner", 4),
        job("greedy", 1, "b"),
    )
    case(
        "passed",
        "behind",
        "swift came first in the queue and took the free GPUs",
        [project("a", 3), project("b", 2)],
        job("at-home", 2, on="n1:0,1"),
        job("passed", 1),
        job("swift", 2, "b"),
    )
    case(
        "equal",
        "no_room",
        "4 of 4 GPUs are in use: a 4",
        [project("a", 4)],
        job("first", 4, on="n1:0,1,2,3"),
        job("equal", 0.5),
    )
    case(
        "spread",
        "fragmented",
        "2 GPUs are free, but only in parts",
        [project("a", 2)],
        *[job(f"h{d}", 0.5, on=f"n1:{d}") for d in range(4)],
        job("spread", 1),
    )
    case(
        "gang",
        "gang_incomplete",
        "1 of its 2 workers would fit now; it needs all of them at once",
        [project("a", 2)],
        job("h0", 0.5, on="n1:0"),
        job("h1", 0.5, on="n1:1"),
        job("w2", 1, on="n1:2"),
        job("gang", 1, workers=2, priority=50),
    )
    case(
        "eager",
        "protected",
        "the jobs that may be paused for it are in their minimum run time, for 40 seconds more",
        [project("a", 0, min_runtime=60), project("b", 4)],
        job("young", 4, on="n1:0,1,2,3", started=980),
        job("eager", 1, "b"),
    )
    case(
        "other",
        "held_for",
        "the free GPUs are kept for a (4)",
        [project("a", 4, never_lent=4), project("b", 0)],
        job("other", 1, "b"),
    )

    actual = {}
    for workload, cluster_snapshot in snapshots.items():
        plan = decide(cluster_snapshot)
        actual[workload] = (waits(plan)[workload], sentence(plan, workload))
    assert actual == expected


LOSS = "node n1 offers 0 of 4 GPUs since 14:02 (device plugin or driver)"
LOSSES = {
    "only node": (1, "lost_devices", LOSS),
    "one of two nodes": (2, "no_room", f"1 of 1 GPU is in use: a 1; {LOSS}"),
    "two of three": (3, "no_room", f"1 of 1 GPU is in use: a 1; {LOSS}, and 1 more offers fewer"),
}


@pytest.mark.parametrize(("node_count", "code", "text"), LOSSES.values(), ids=LOSSES)
def test_wait_reason_names_the_node_that_offers_fewer_gpus_than_it_has(
    node_count: int, code: str, text: str
) -> None:
    nodes_with_loss = [
        Node(name=name, devices=4, broken_devices=(0, 1, 2, 3), loss=LOSS.replace("n1", name))
        for name in ("n1", "n2")[: max(1, node_count - 1)]
    ]
    healthy_nodes = [Node(name="n3", devices=1)][: node_count - 1]
    jobs = [job("old", on="n3:0")][: node_count - 1]

    nodes = [*nodes_with_loss, *healthy_nodes]
    plan = decide(snapshot(nodes, [project("a", 9)], [*jobs, job("new")]))

    assert (waits(plan)["new"], sentence(plan, "new")) == (code, text)


def test_wait_reason_names_no_node_that_the_workload_may_not_use() -> None:
    nodes = [
        Node(name="n1", devices=1, gpu_type="v100", broken_devices=(0,), loss=LOSS),
        Node(name="n2", devices=1, gpu_type="h100"),
    ]
    jobs = [job("old", on="n2:0"), job("new", gpu_types=("h100",)), job("cpu", 0, cpu_milli=1)]

    plan = decide(snapshot(nodes, [project("a", 9)], jobs))

    assert "offers" not in sentence(plan, "new")


GRACE = {
    "known deadline": ([1012], ", 12 s at most"),
    "deadline in one second": ([1001], ", 1 s at most"),
    "deadline now": ([1000], ""),
    "unknown deadline": ([None], ""),
    "two deadlines": ([1012, 1030], ", 30 s at most"),
    "known and unknown deadline": ([1012, None], ""),
}


@pytest.mark.parametrize(("deadlines", "grace_text"), GRACE.values(), ids=GRACE)
def test_reservation_reason_states_the_longest_grace_period_of_the_stopping_jobs(
    deadlines: list[int | None], grace_text: str
) -> None:
    projects = [project("a", 0), project("b", 2)]
    stopping_jobs = [
        job(f"old-{i}", on=f"n1:{i}", state="stopping", gone_by=deadline)
        for i, deadline in enumerate(deadlines)
    ]
    devices = ",".join(str(i) for i in range(len(deadlines)))
    new = job("new", len(deadlines), "b", on=f"n1:{devices}", state="reserved")

    plan = decide(snapshot(f"1x{len(deadlines)}", projects, [*stopping_jobs, new]))

    names = " and ".join(f"old-{i}" for i in range(len(deadlines)))
    assert (
        sentence(plan, "new")
        == f"its place on n1 is reserved; waiting for {names} to stop{grace_text}"
    )


def test_wait_reason_lists_projects_of_equal_usage_by_name() -> None:
    jobs = [job("b-1", 2, "b", on="n1:0,1"), job("a-1", 2, "a", on="n1:2,3"), job("new", 1, "c")]

    plan = decide(snapshot("1x4", [project(name, 2) for name in "abc"], jobs))

    assert sentence(plan, "new") == "4 of 4 GPUs are in use: a 2, b 2"


def test_wait_reason_uses_the_singular_for_one_gpu() -> None:
    plan = decide(snapshot("1x1", [project("a", 2)], [job("old", on="n1:0"), job("new")]))

    assert sentence(plan, "new") == "1 of 1 GPU is in use: a 1"


def test_wait_reason_names_device_memory_only_if_no_device_has_enough() -> None:
    nodes = [*cluster("1x1", memory_mib=100), *cluster("2x1", memory_mib=50)[1:]]
    claims = {
        "more than any device": job("new", gpu_memory_mib=101),
        "memory of a device that it may not use": job("new", gpu_memory_mib=80, nodes=("n2",)),
    }

    sentences = {
        case: sentence(decide(snapshot(nodes, [project("a", 2)], [claim])), "new")
        for case, claim in claims.items()
    }

    assert sentences == {
        "more than any device": "no device has 101 MiB of memory",
        "memory of a device that it may not use": "no node that it may use has what it asks for",
    }


def test_queue_positions_are_numbered_within_each_project() -> None:
    cluster_snapshot = snapshot(
        "1x1",
        [project("a", 1), project("b", 0)],
        [
            job("first", on="n1:0"),
            job("low", priority=25),
            job("high", priority=75),
            job("other", project="b"),
        ],
    )

    positions = {
        d.workload: d.position for d in decide(cluster_snapshot).decisions if isinstance(d, Wait)
    }

    assert positions == {"high": 1, "low": 2, "other": 1}


def test_stop_reason_names_the_claimant_and_the_rule() -> None:
    cluster_snapshot = snapshot(
        "1x2",
        [project("eve", 1), project("vision", 1)],
        [
            job("eve/exp-6", project="eve", on="n1:0"),
            job("eve/exp-7", project="eve", on="n1:1"),
            session("ana-1", 1, "vision"),
        ],
    )

    stop = next(d for d in decide(cluster_snapshot).decisions if isinstance(d, Stop))

    assert stop.worker == "eve/exp-7-0"
    assert (stop.reason.code, stop.reason.rule, stop.reason.for_) == ("reclaimed", "R2", "ana-1")
    assert stop.reason.text == "eve is over its quota of 1 GPU: 1 GPU goes to the session of ana"


def test_project_shares_describe_the_cluster_after_the_plan() -> None:
    cluster_snapshot = snapshot(
        "1x4",
        [project("a", 1), project("b", 3)],
        [job(f"a-{i}", on=f"n1:{i}") for i in range(4)] + [job("b-1", 2, "b")],
    )

    shares = decide(cluster_snapshot).projects

    assert (shares["a"].allocated, shares["a"].over_quota) == (2000, 1000)
    assert (shares["b"].allocated, shares["b"].over_quota) == (2000, 0)


@pytest.mark.parametrize(
    ("existing", "fields", "code", "text"),
    [
        pytest.param(
            [job("long", 0, on="n1:", cpu_milli=5000), job("short", 0, on="n1:", cpu_milli=9000)],
            {"gpus": 0, "cpu_milli": 4000},
            "no_room",
            "needs 4 CPUs on one node; n1 has 2 of 16 CPUs free, held by short and long",
            id="CPU",
        ),
        pytest.param(
            [job("big", 0, on="n1:", memory_mib=60 * 1024)],
            {"gpus": 0, "memory_mib": 16 * 1024, "cpu_milli": 1000},
            "no_room",
            "needs 16 GiB of memory on one node; n1 has 4 GiB of 64 GiB of memory free,"
            " held by big",
            id="memory",
        ),
        pytest.param(
            [job("busy", 0, on="n1:", cpu_milli=15_500)],
            {"gpus": 1, "cpu_milli": 1000},
            "fragmented",
            "needs 1 CPU on one node; n1 has 0.5 of 16 CPUs free, held by busy; 2 GPUs are free",
            id="with free GPUs",
        ),
    ],
)
def test_wait_reason_for_cpu_or_memory_names_the_amounts_and_the_holders(
    existing, fields, code, text
) -> None:
    nodes = [replace(node, memory_mib=Mib(64 * 1024)) for node in cluster("1x2", cpu_milli=16_000)]
    fields = dict(fields)
    claim = job("new", fields.pop("gpus"), **fields)
    plan = decide(snapshot(nodes, [project("a", 0)], [*existing, claim]))

    assert (waits(plan), sentence(plan, "new")) == ({"new": code}, text)


@pytest.mark.parametrize(
    ("nodes", "existing", "fields", "code", "text"),
    [
        pytest.param(
            "1x1",
            [job(f"m{n}", on="n1:0", gpu_memory_mib=2000) for n in range(23)],
            {"gpu_memory_mib": 2000},
            "no_room",
            "needs 2000 MiB on one GPU; n1 has at most 68 of 46068 MiB free, held by"
            " m0, m1, m2, m3 and 19 more",
            id="a GPU filled by memory requests",
        ),
        pytest.param(
            "1x1",
            [job("big", on="n1:0", gpu_memory_mib=40_000)],
            {"gpus": 0.5},
            "no_room",
            "needs 23034 MiB on one GPU; n1 has at most 6068 of 46068 MiB free, held by big",
            id="a half beside a memory request",
        ),
        pytest.param(
            "1x2",
            [job(f"m{n}", on=f"n1:{n}", gpu_memory_mib=30_000) for n in range(2)],
            {"gpus": 0.5},
            "fragmented",
            "needs 23034 MiB on one GPU; n1 has at most 16068 of 46068 MiB free, held by m0 and m1",
            id="a half that two GPUs have together",
        ),
        pytest.param(
            "1x2",
            [job("one", on="n1:0", gpu_memory_mib=30_000)],
            {"gpu_memory_mib": 20_000, "devices_wanted": 2},
            "fragmented",
            "needs 20000 MiB on each of 2 GPUs of one node; n1 has at most 16068 of 46068 MiB"
            " free, held by one",
            id="memory of two GPUs",
        ),
        pytest.param(
            "1x1",
            [job("bit", on="n1:0", gpu_memory_mib=100)],
            {"gpus": 1},
            "no_room",
            "0.003 of 1 GPU is in use: a 0.003",
            id="a whole GPU beside a memory request",
        ),
        pytest.param(
            "1x2",
            [job(f"h{n}", 0.5, on=f"n1:{n}") for n in range(2)],
            {"gpus": 1},
            "fragmented",
            "1 GPU is free, but only in parts",
            id="one GPU in two halves",
        ),
        pytest.param(
            "2x1",
            [],
            {"gpus": 0.5, "workers": 1, "devices_wanted": 3},
            "no_such_node",
            "no node has 3 GPUs; the largest has 1: ask for more workers instead",
            id="more GPUs than a node has",
        ),
        pytest.param(
            "2x2",
            [job("l", 1, on="n1:0"), job("r", 1, on="n2:0")],
            {"gpus": 2},
            "fragmented",
            "2 GPUs are free, but not on one node",
            id="GPUs on two nodes",
        ),
    ],
)
def test_wait_reason_counts_room_for_memory_requests_as_the_scheduler_books_it(
    nodes, existing, fields, code, text
) -> None:
    fields = dict(fields)
    claim = job("new", fields.pop("gpus", 0), **fields)
    existing = [replace(workload, submitted=0) for workload in existing]
    cluster_snapshot = snapshot(
        cluster(nodes, memory_mib=46_068), [project("a", 9)], [*existing, claim]
    )
    plan = decide(cluster_snapshot, Policy(phases=("allocate",)))

    assert (waits(plan), sentence(plan, "new")) == ({"new": code}, text)


def test_wait_reason_of_a_gang_counts_device_memory_on_the_nodes_of_its_first_worker() -> None:
    two_devices, one_device = (
        job("new", gpu_memory_mib=40_000, devices_wanted=count).workers[0] for count in (2, 1)
    )
    gang = replace(job("new"), workers=(two_devices, replace(one_device, name="new-1")))
    existing = [job(f"m{n}", on=f"n2:{n}", gpu_memory_mib=10_000, submitted=0) for n in range(2)]
    nodes = cluster("1x1+1x2", memory_mib=46_068)
    plan = decide(
        snapshot(nodes, [project("a", 9)], [*existing, gang]), Policy(phases=("allocate",))
    )

    assert sentence(plan, "new") == (
        "1 of its 2 workers would fit now; it needs all of them at once"
    )
    filled = [*existing, job("m2", on="n1:0", gpu_memory_mib=40_000, submitted=0)]
    plan = decide(snapshot(nodes, [project("a", 9)], [*filled, gang]), Policy(phases=("allocate",)))
    assert sentence(plan, "new") == (
        "needs 40000 MiB on each of 2 GPUs of one node; n2 has at most 36068 of 46068 MiB free,"
        " held by m0 and m1"
    )
