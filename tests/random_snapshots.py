"""Random scheduler snapshots, reproducible from a number.

Each world has a few themes; it draws their fields often and all remaining fields seldom. Times are
multiples of a cycle's ten seconds, so that off-by-one comparisons with "now" are found; amounts may
differ by one milli-GPU. Between two cycles the cluster changes under earlier decisions: a limit
falls, a node is cordoned, a device breaks. `digests` records the decisions.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from builders import applied
from runai.hub_service.scheduler import (
    Node,
    Plan,
    Project,
    Snapshot,
    WorkerState,
    Workload,
    milli_gpus,
)
from runai.hub_service.scheduler.model.snapshot_json import snapshot_from_json

CYCLES = 5
PHASES = ["allocate", "reclaim", "preempt", "stop_stale_gangs"]
THEMES = (
    *("elastic", "fractions", "types", "tree", "lent", "consolidate", "backfill", "turns"),
    *("racks", "frag", "sessions", "protected", "history", "changes", "spread", "gangs"),
    *("crumbs", "crowd"),
)
_TYPES = ("big", "small", "odd")

Json = dict[str, Any]


class Dice:
    """A random generator for the parts of one world, weighted by its themes."""

    def __init__(self, number: int) -> None:
        """Seed the generator with `number` and draw the themes."""
        self.random = random.Random(number)
        self._themes = {self.choice(*THEMES) for _ in range(self.choice(1, 2, 3, 4))}
        self.has_types = self.about("types") or self.often(0.05)
        self.has_tree = self.about("tree") or self.often(0.2)
        self.is_elastic = self.about("elastic") or self.often(0.15)

    def choice(self, *choices: Any) -> Any:
        """Return one of the choices."""
        return choices[self.random.randrange(len(choices))]

    def often(self, part: float) -> bool:
        """Return True with probability `part`."""
        return self.random.random() < part

    def about(self, theme: str) -> bool:
        """Return True if the world has this theme."""
        return theme in self._themes

    def if_about(self, theme: str, often: float, seldom: float = 0.05) -> bool:
        """Return True with probability `often` if the world has the theme, else `seldom`."""
        return self.often(often if self.about(theme) else seldom)

    def policy(self) -> Json:
        """Draw the operator's policy."""
        chosen: Json = {"packing": "binpack"}
        for packing in ("spread", "frag"):
            if self.about(packing) or self.often(0.05):
                chosen["packing"] = packing
        if self.if_about("consolidate", 0.9):
            chosen["phases"] = self.choice([*PHASES, "consolidate"], ["allocate", "consolidate"])
        elif self.often(0.1):
            chosen["phases"] = self.choice(
                *(["allocate"], ["allocate", "preempt"], ["reclaim"], ["allocate", "reclaim"]),
                ["preempt", "stop_stale_gangs"],
            )
        for field, value, part in (
            ("shrink_first", False, 0.2),
            ("reservations", False, 0.05),
            ("backfill", True, 0.9 if self.about("backfill") else 0.03),
            ("users_take_turns", True, 0.9 if self.about("turns") else 0.03),
            ("max_evictions", self.choice(0, 1, 2, 3), 0.1),
            ("max_pauses_per_hour", self.choice(0, 1, 2), 0.6 if self.about("protected") else 0.05),
            ("history_weight", self.choice(1, 2, 5), 0.9 if self.about("history") else 0.03),
        ):
            if self.often(part):
                chosen[field] = value
        return chosen

    def nodes(self) -> list[Json]:
        """Draw nodes, some of them almost without one of their resources."""
        device_counts = self.choice((2,), (1, 2, 4), (2, 4), (2, 3, 4), (4,), (4, 8))
        return [
            {
                "name": f"n{number}",
                "devices": self.choice(*device_counts),
                "device_memory_mib": self.choice(1000, 1000, 999, 1600, 501),
                "gpu_type": self.choice(*_TYPES) if self.has_types else "big",
                "cpu_milli": self.choice(None, None, None, 8000, 4000, 3000),
                "memory_mib": self.choice(None, None, None, None, 1000, 600),
                "labels": {
                    **self.choice(
                        {}, {"rack": self.choice("r1", "r2")}, {"rack": self.choice("r1", "r2")}
                    ),
                    "runai/node-type": self.choice("lab", "dc"),
                },
                "schedulable": not self.often(0.03),
                "broken_devices": [0] if self.if_about("changes", 0.15, 0.02) else [],
            }
            for number in range(
                self.choice(4, 8) if self.about("crowd") else self.choice(1, 2, 3, 4, 5)
            )
        ]

    def projects(self) -> list[Json]:
        """Draw projects in a tree of up to three levels; parents may own work as well."""
        projects: list[Json] = []
        parents: list[str | None] = [None]
        if self.has_tree:
            projects.append({"name": "p", **self._project_fields()})
            projects.append(
                {"name": "q", "parent": self.choice("p", None), **self._project_fields()}
            )
            parents = ["p", "q", "q", None]
        for name in "abcde"[: self.choice(1, 2, 2, 3, 4, 5)]:
            project: Json = {"name": name, "quota": self.choice(0, 0, 0.5, 1, 1, 2, 3, 4)}
            if self.about("crumbs"):
                project["quota"] = self.choice(0, 0.001, 0.999, 1, 1.001, 1.999, 2.001)
            if self.has_types and self.often(0.6):
                project["quota"] = {
                    t: self.choice(0, 1, 2, 0.5, None) for t in (*_TYPES, "*") if self.often(0.5)
                }
            if (parent := self.choice(*parents)) is not None:
                project["parent"] = parent
            projects.append({**project, **self._project_fields()})
        if self.often(0.05):
            projects[0]["quota"] = None
        return projects

    def _project_fields(self) -> Json:
        fields: Json = {}
        for field, value, part in (
            ("weight", self.choice(0, 0, 1, 3), 0.3),
            ("limit", self.choice(1, 2, 3.5, 5, 2.001), 0.08),
            ("priority", self.choice(50, 200), 0.15),
            ("created", self.choice(1, 2), 0.3),
            ("min_runtime", self.choice(10, 20, 30), 0.5 if self.about("protected") else 0.05),
            ("never_lent", self.choice(1, 1, 2, 0.5, 0.001), 0.5 if self.about("lent") else 0.03),
            ("usage", self.choice(0, 1, 5, 40), 0.7 if self.about("history") else 0.05),
            ("build_quota", self.choice(0, 0.5, 1), 0.4 if self.about("sessions") else 0.1),
            ("node_types", self.choice({"build": ["lab"]}, {"train": ["dc"]}), 0.04),
        ):
            if self.often(part):
                fields[field] = value
        return fields

    def worker_request(self) -> Json:
        """Draw a worker's requests."""
        request: Json = self.choice(
            *[{"gpus": 1}] * 7, *[{"gpus": 2}] * 5, {"gpus": 3}, {"gpus": 4}, {"gpus": 0}
        )
        if self.if_about("fractions", 0.8, 0.2):
            request = self.choice(
                {"gpus": self.choice(0.2, 0.25, 0.3, 0.5, 0.7)},
                {"gpus": self.choice(0.25, 0.5, 0.501)},
                {"gpu_memory_mib": self.choice(200, 400, 500, 600, 1000)},
                {"gpus": self.choice(0.3, 0.5), "devices_wanted": self.choice(2, 3)},
                {"gpu_memory_mib": self.choice(300, 500), "devices_wanted": self.choice(2, 2, 4)},
            )
        if self.about("crumbs") and self.often(0.4):
            request = {"gpus": self.choice(0.001, 0.499, 0.501, 0.999)}
        for field, value, part in (
            ("cpu_milli", self.choice(1, 500, 1000, 2000, 3000), 0.2),
            ("memory_mib", self.choice(1, 200, 500, 600), 0.12),
            ("node_selector", {"rack": self.choice("r1", "r2")}, 0.05),
            ("nodes", self.choice(["n0"], ["n0", "n1"], ["n0", "n2"]), 0.05),
            ("gpu_types", [t for t in _TYPES if self.often(0.6)], 0.3 if self.has_types else 0),
        ):
            if self.often(part):
                request = {**request, field: value}
        return request

    def workload(self, name: str, owners: list[str], now: int) -> Json:
        """Draw a workload."""
        worker_counts = (1, 2, 3, 4, 5) if self.about("gangs") else (1, 1, 1, 2, 3)
        count, request = self.choice(*worker_counts), self.worker_request()
        owner = "nobody" if self.often(0.01) else self.choice(*owners)
        workload: Json = {"name": name, "project": owner, "user": self.choice("x", "y", "z")}
        workload["submitted"] = now - self.choice(0, 0, 0, 10, 20)
        elastic = self.is_elastic and self.often(0.6)
        if elastic:
            workload |= self._elastic()
            count = 1 if "gpus_max" in workload else max(count, 2)
            request = {**request, "gpus": min(self.choice(1, 2, 2, 3), workload.get("gpus_max", 1))}
            request.pop("gpu_memory_mib", None)
            request.pop("devices_wanted", None)
        elif self.if_about("sessions", 0.5, 0.08):
            workload |= {"kind": "session", **self.choice({}, {}, {"preemptible": True})}
        elif self.often(0.04):
            workload |= {"preemptible": False}
        for field, value, part in (
            ("priority", self.choice(25, 50, 75, 100), 0.25),
            ("min_workers", self.random.randint(1, count), 0.9 if elastic else 0.4),
            ("expected_runtime", self.choice(10, 20, 30, 50, 500), 0.5),
            ("checkpointed", now - self.choice(0, 10), 0.25),
            ("saves", True, 0.4),
            (
                "pauses",
                [now - self.choice(0, 10, 3580, 3590, 3600), now - 5],
                0.5 if self.about("protected") else 0.03,
            ),
            ("pack_by", "rack", 0.5 if self.about("racks") and count > 1 else 0),
        ):
            if self.often(part):
                workload[field] = value
        workers: list[Json] = [{"name": f"{name}-{i}", **request} for i in range(count)]
        if count > 1 and self.if_about("gangs", 0.3, 0.05):
            workers[-1] = {"name": workers[-1]["name"], **self.worker_request()}
        return {**workload, "workers": workers}

    def _elastic(self) -> Json:
        """Draw the sizes of an elastic worker, its throughput by size, and the cost of a resize."""
        fields: Json = {}
        if self.often(0.6):
            fields |= {"gpus_min": 1, "gpus_max": self.choice(2, 3, 4, 6)}
        if self.often(0.5):
            fields["throughput"] = self.choice(
                {"1": 10, "2": 19, "3": 24, "4": 30},
                {"1": 10, "2": 20, "3": 20, "4": 18},
                {"1": 10, "4": 40},
                {"2": 20},
                {"1": 1000, "2": 1001, "3": 1001},
            )
        if self.often(0.4):
            fields["resize_cost"] = self.choice(1, 10, 50)
        return fields


def random_snapshots(number: int) -> Generator[Snapshot, Plan]:
    """Yield five snapshots, each after the plan sent for the one before."""
    dice = Dice(number)
    now = dice.choice(1000, 1000, 0)
    nodes, projects, policy = dice.nodes(), dice.projects(), dice.policy()
    parents = {"p", "q"} if dice.often(0.7) else set[str]()
    owners = [project["name"] for project in projects if project["name"] not in parents]
    snapshot = snapshot_from_json(
        {"now": now, "policy": policy, "nodes": nodes, "projects": projects}
    )
    # One project comes late, for devices that the earlier ones have taken.
    late_project, removal_chance = dice.choice(*owners), dice.choice(0.05, 0.1, 0.25)
    for cycle in range(CYCLES):
        often = (3, 8, 14) if dice.about("crowd") else (0, 1, 2, 3, 5)
        names = [f"{'vwxyz'[cycle]}{i}" for i in range(dice.choice(*often))]
        project_names = [late_project] if cycle > 1 and dice.often(0.5) else owners
        if cycle <= 1 and dice.often(0.8):
            project_names = [owner for owner in owners if owner != late_project] or owners
        submitted = [dice.workload(name, project_names, snapshot.now) for name in names]
        submission = snapshot_from_json({"projects": projects, "workloads": submitted})
        remaining = [workload for workload in snapshot.workloads if not dice.often(removal_chance)]
        remaining = [_between_cycles(dice, workload, snapshot.now) for workload in remaining]
        snapshot = replace(snapshot, workloads=(*remaining, *submission.workloads))
        if dice.if_about("changes", 0.5, 0.02):
            snapshot = _change_cluster(dice, snapshot)
        plan = yield snapshot
        snapshot = applied(snapshot, plan, seconds=10, grace=dice.often(0.3))


def _between_cycles(dice: Dice, workload: Workload, now: int) -> Workload:
    """Let a gang lose a worker, a job write a checkpoint, a stopping worker announce its end."""
    if dice.if_about("gangs", 0.15):
        workload = _with_lost_worker(workload, now - dice.choice(50, 60, 70))
    if dice.often(0.1):
        workload = replace(workload, checkpointed=now)
    if any(w.state is WorkerState.STOPPING for w in workload.workers) and dice.often(0.5):
        by = now + dice.choice(0, 10, 30)
        workers = [
            replace(w, gone_by=by) if w.state is WorkerState.STOPPING else w
            for w in workload.workers
        ]
        workload = replace(workload, workers=tuple(workers))
    return workload


def _with_lost_worker(workload: Workload, since: int) -> Workload:
    """Let a gang lose its first worker at `since`; its remaining workers stay as they are."""
    first, *rest = workload.workers
    if first.state is not WorkerState.RUNNING or not rest:
        return workload
    lost = replace(first, state=WorkerState.PENDING, node=None, devices=(), started=None)
    return replace(workload, workers=(lost, *rest), below_min_since=since)


def _change_cluster(dice: Dice, snapshot: Snapshot) -> Snapshot:
    """Change the cluster under earlier decisions."""
    if not snapshot.nodes:
        return snapshot
    node = snapshot.nodes[dice.random.randrange(len(snapshot.nodes))]
    project = snapshot.projects[dice.random.randrange(len(snapshot.projects))]
    match dice.choice("close", "break", "vanish", "limit", "quota"):
        case "close":
            return _with_node(snapshot, replace(node, schedulable=not node.schedulable))
        case "break":
            return _with_node(snapshot, replace(node, broken_devices=(node.devices - 1,)))
        case "vanish":
            return replace(snapshot, nodes=tuple(n for n in snapshot.nodes if n is not node))
        case "limit":
            return _with_project(snapshot, replace(project, limit=milli_gpus(1)))
        case _:
            return _with_project(
                snapshot, replace(project, quota=milli_gpus(0.5), quota_by_type=None)
            )


def _with_node(snapshot: Snapshot, changed: Node) -> Snapshot:
    nodes = tuple(changed if node.name == changed.name else node for node in snapshot.nodes)
    return replace(snapshot, nodes=nodes)


def _with_project(snapshot: Snapshot, changed: Project) -> Snapshot:
    projects = tuple(changed if p.name == changed.name else p for p in snapshot.projects)
    return replace(snapshot, projects=projects)
