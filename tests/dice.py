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
        self._themes = {self.of(*THEMES) for _ in range(self.of(1, 2, 3, 4))}
        self.has_types = self.about("types") or self.often(0.05)
        self.has_tree = self.about("tree") or self.often(0.2)
        self.is_elastic = self.about("elastic") or self.often(0.15)

    def of(self, *choices: Any) -> Any:
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
            chosen["phases"] = self.of([*PHASES, "consolidate"], ["allocate", "consolidate"])
        elif self.often(0.1):
            chosen["phases"] = self.of(
                *(["allocate"], ["allocate", "preempt"], ["reclaim"], ["allocate", "reclaim"]),
                ["preempt", "stop_stale_gangs"],
            )
        for field, value, part in (
            ("shrink_first", False, 0.2),
            ("reservations", False, 0.05),
            ("backfill", True, 0.9 if self.about("backfill") else 0.03),
            ("users_take_turns", True, 0.9 if self.about("turns") else 0.03),
            ("max_evictions", self.of(0, 1, 2, 3), 0.1),
            ("max_pauses_per_hour", self.of(0, 1, 2), 0.6 if self.about("protected") else 0.05),
            ("history_weight", self.of(1, 2, 5), 0.9 if self.about("history") else 0.03),
        ):
            if self.often(part):
                chosen[field] = value
        return chosen

    def nodes(self) -> list[Json]:
        """Draw nodes, some of them almost without one of their resources."""
        most = self.of((2,), (1, 2, 4), (2, 4), (2, 3, 4), (4,), (4, 8))
        return [
            {
                "name": f"n{number}",
                "devices": self.of(*most),
                "device_memory_mib": self.of(1000, 1000, 999, 1600, 501),
                "gpu_type": self.of(*_TYPES) if self.has_types else "big",
                "cpu_milli": self.of(None, None, None, 8000, 4000, 3000),
                "memory_mib": self.of(None, None, None, None, 1000, 600),
                "labels": {
                    **self.of({}, {"rack": self.of("r1", "r2")}, {"rack": self.of("r1", "r2")}),
                    "runai/node-type": self.of("lab", "dc"),
                },
                "schedulable": not self.often(0.03),
                "broken_devices": [0] if self.if_about("changes", 0.15, 0.02) else [],
            }
            for number in range(self.of(4, 8) if self.about("crowd") else self.of(1, 2, 3, 4, 5))
        ]

    def projects(self) -> list[Json]:
        """Draw projects in a tree of up to three levels; parents may own work as well."""
        drawn: list[Json] = []
        above: list[str | None] = [None]
        if self.has_tree:
            drawn.append({"name": "p", **self._caps()})
            drawn.append({"name": "q", "parent": self.of("p", None), **self._caps()})
            above = ["p", "q", "q", None]
        for name in "abcde"[: self.of(1, 2, 2, 3, 4, 5)]:
            project: Json = {"name": name, "quota": self.of(0, 0, 0.5, 1, 1, 2, 3, 4)}
            if self.about("crumbs"):
                project["quota"] = self.of(0, 0.001, 0.999, 1, 1.001, 1.999, 2.001)
            if self.has_types and self.often(0.6):
                project["quota"] = {
                    t: self.of(0, 1, 2, 0.5, None) for t in (*_TYPES, "*") if self.often(0.5)
                }
            if (parent := self.of(*above)) is not None:
                project["parent"] = parent
            drawn.append({**project, **self._caps()})
        if self.often(0.05):
            drawn[0]["quota"] = None
        return drawn

    def _caps(self) -> Json:
        drawn: Json = {}
        for field, value, part in (
            ("weight", self.of(0, 0, 1, 3), 0.3),
            ("limit", self.of(1, 2, 3.5, 5, 2.001), 0.08),
            ("priority", self.of(50, 200), 0.15),
            ("created", self.of(1, 2), 0.3),
            ("min_runtime", self.of(10, 20, 30), 0.5 if self.about("protected") else 0.05),
            ("never_lent", self.of(1, 1, 2, 0.5, 0.001), 0.5 if self.about("lent") else 0.03),
            ("usage", self.of(0, 1, 5, 40), 0.7 if self.about("history") else 0.05),
            ("build_quota", self.of(0, 0.5, 1), 0.4 if self.about("sessions") else 0.1),
            ("node_types", self.of({"build": ["lab"]}, {"train": ["dc"]}), 0.04),
        ):
            if self.often(part):
                drawn[field] = value
        return drawn

    def asks(self) -> Json:
        """Draw a worker's requests."""
        asked: Json = self.of(
            *[{"gpus": 1}] * 7, *[{"gpus": 2}] * 5, {"gpus": 3}, {"gpus": 4}, {"gpus": 0}
        )
        if self.if_about("fractions", 0.8, 0.2):
            asked = self.of(
                {"gpus": self.of(0.2, 0.25, 0.3, 0.5, 0.7)},
                {"gpus": self.of(0.25, 0.5, 0.501)},
                {"gpu_memory_mib": self.of(200, 400, 500, 600, 1000)},
                {"gpus": self.of(0.3, 0.5), "devices_wanted": self.of(2, 3)},
                {"gpu_memory_mib": self.of(300, 500), "devices_wanted": self.of(2, 2, 4)},
            )
        if self.about("crumbs") and self.often(0.4):
            asked = {"gpus": self.of(0.001, 0.499, 0.501, 0.999)}
        for field, value, part in (
            ("cpu_milli", self.of(1, 500, 1000, 2000, 3000), 0.2),
            ("memory_mib", self.of(1, 200, 500, 600), 0.12),
            ("node_selector", {"rack": self.of("r1", "r2")}, 0.05),
            ("nodes", self.of(["n0"], ["n0", "n1"], ["n0", "n2"]), 0.05),
            ("gpu_types", [t for t in _TYPES if self.often(0.6)], 0.3 if self.has_types else 0),
        ):
            if self.often(part):
                asked = {**asked, field: value}
        return asked

    def workload(self, name: str, owners: list[str], now: int) -> Json:
        """Draw a workload."""
        most = (1, 2, 3, 4, 5) if self.about("gangs") else (1, 1, 1, 2, 3)
        count, asked = self.of(*most), self.asks()
        owner = "nobody" if self.often(0.01) else self.of(*owners)
        drawn: Json = {"name": name, "project": owner, "user": self.of("x", "y", "z")}
        drawn["submitted"] = now - self.of(0, 0, 0, 10, 20)
        elastic = self.is_elastic and self.often(0.6)
        if elastic:
            drawn |= self._elastic()
            count = 1 if "gpus_max" in drawn else max(count, 2)
            asked = {**asked, "gpus": min(self.of(1, 2, 2, 3), drawn.get("gpus_max", 1))}
            asked.pop("gpu_memory_mib", None)
            asked.pop("devices_wanted", None)
        elif self.if_about("sessions", 0.5, 0.08):
            drawn |= {"kind": "session", **self.of({}, {}, {"preemptible": True})}
        elif self.often(0.04):
            drawn |= {"preemptible": False}
        for field, value, part in (
            ("priority", self.of(25, 50, 75, 100), 0.25),
            ("min_workers", self.random.randint(1, count), 0.9 if elastic else 0.4),
            ("expected_runtime", self.of(10, 20, 30, 50, 500), 0.5),
            ("checkpointed", now - self.of(0, 10), 0.25),
            ("saves", True, 0.4),
            (
                "pauses",
                [now - self.of(0, 10, 3580, 3590, 3600), now - 5],
                0.5 if self.about("protected") else 0.03,
            ),
            ("pack_by", "rack", 0.5 if self.about("racks") and count > 1 else 0),
        ):
            if self.often(part):
                drawn[field] = value
        workers: list[Json] = [{"name": f"{name}-{i}", **asked} for i in range(count)]
        if count > 1 and self.if_about("gangs", 0.3, 0.05):
            workers[-1] = {"name": workers[-1]["name"], **self.asks()}
        return {**drawn, "workers": workers}

    def _elastic(self) -> Json:
        """Draw the sizes of an elastic worker, its throughput by size, and the cost of a resize."""
        drawn: Json = {}
        if self.often(0.6):
            drawn |= {"gpus_min": 1, "gpus_max": self.of(2, 3, 4, 6)}
        if self.often(0.5):
            drawn["throughput"] = self.of(
                {"1": 10, "2": 19, "3": 24, "4": 30},
                {"1": 10, "2": 20, "3": 20, "4": 18},
                {"1": 10, "4": 40},
                {"2": 20},
                {"1": 1000, "2": 1001, "3": 1001},
            )
        if self.often(0.4):
            drawn["resize_cost"] = self.of(1, 10, 50)
        return drawn


def worlds(number: int) -> Generator[Snapshot, Plan]:
    """Yield five snapshots, each after the plan sent for the one before."""
    dice = Dice(number)
    now = dice.of(1000, 1000, 0)
    nodes, projects, policy = dice.nodes(), dice.projects(), dice.policy()
    parents = {"p", "q"} if dice.often(0.7) else set[str]()
    owners = [project["name"] for project in projects if project["name"] not in parents]
    world = snapshot_from_json({"now": now, "policy": policy, "nodes": nodes, "projects": projects})
    # One project comes late, for devices that the earlier ones have taken.
    late, goes = dice.of(*owners), dice.of(0.05, 0.1, 0.25)
    for cycle in range(CYCLES):
        often = (3, 8, 14) if dice.about("crowd") else (0, 1, 2, 3, 5)
        names = [f"{'vwxyz'[cycle]}{i}" for i in range(dice.of(*often))]
        there = [late] if cycle > 1 and dice.often(0.5) else owners
        if cycle <= 1 and dice.often(0.8):
            there = [owner for owner in owners if owner != late] or owners
        come = [dice.workload(name, there, world.now) for name in names]
        fresh = snapshot_from_json({"projects": projects, "workloads": come})
        stay = [workload for workload in world.workloads if not dice.often(goes)]
        stay = [_meanwhile(dice, workload, world.now) for workload in stay]
        world = replace(world, workloads=(*stay, *fresh.workloads))
        if dice.if_about("changes", 0.5, 0.02):
            world = _changed(dice, world)
        plan = yield world
        world = applied(world, plan, seconds=10, grace=dice.often(0.3))


def _meanwhile(dice: Dice, workload: Workload, now: int) -> Workload:
    """Let a gang lose a worker, a job write a checkpoint, a stopping worker announce its end."""
    if dice.if_about("gangs", 0.15):
        workload = _broken(workload, now - dice.of(50, 60, 70))
    if dice.often(0.1):
        workload = replace(workload, checkpointed=now)
    if any(w.state is WorkerState.STOPPING for w in workload.workers) and dice.often(0.5):
        by = now + dice.of(0, 10, 30)
        workers = [
            replace(w, gone_by=by) if w.state is WorkerState.STOPPING else w
            for w in workload.workers
        ]
        workload = replace(workload, workers=tuple(workers))
    return workload


def _broken(workload: Workload, since: int) -> Workload:
    """Let a gang lose its first worker at `since`; its remaining workers stay as they are."""
    first, *others = workload.workers
    if first.state is not WorkerState.RUNNING or not others:
        return workload
    lost = replace(first, state=WorkerState.PENDING, node=None, devices=(), started=None)
    return replace(workload, workers=(lost, *others), below_min_since=since)


def _changed(dice: Dice, world: Snapshot) -> Snapshot:
    """Change the cluster under earlier decisions."""
    if not world.nodes:
        return world
    node = world.nodes[dice.random.randrange(len(world.nodes))]
    project = world.projects[dice.random.randrange(len(world.projects))]
    match dice.of("close", "break", "vanish", "limit", "quota"):
        case "close":
            return _with_node(world, replace(node, schedulable=not node.schedulable))
        case "break":
            return _with_node(world, replace(node, broken_devices=(node.devices - 1,)))
        case "vanish":
            return replace(world, nodes=tuple(n for n in world.nodes if n is not node))
        case "limit":
            return _with_project(world, replace(project, limit=milli_gpus(1)))
        case _:
            return _with_project(world, replace(project, quota=milli_gpus(0.5), quota_by_type=None))


def _with_node(world: Snapshot, changed: Node) -> Snapshot:
    nodes = tuple(changed if node.name == changed.name else node for node in world.nodes)
    return replace(world, nodes=nodes)


def _with_project(world: Snapshot, changed: Project) -> Snapshot:
    projects = tuple(changed if p.name == changed.name else p for p in world.projects)
    return replace(world, projects=projects)
