"""Small worlds made from a number, the same each time: nodes, projects, and who comes and goes.

What is decided in them is recorded (`stories`). Those of `wide_dice` have more in them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from builders import applied
from runai.hub_service.scheduler import Snapshot, WorkerState, Workload, decide
from runai.hub_service.scheduler.wire import snapshot_from_json

CYCLES = 4
PHASES = ["allocate", "reclaim", "preempt", "stop_stale_gangs"]

Json = dict[str, Any]


class Dice:
    """Draws the parts of a world."""

    def __init__(self, number: int) -> None:
        """Begin where this number begins."""
        self.random = random.Random(number)
        self.has_types = self.often(0.15)
        self.has_tree = self.often(0.3)
        self.is_elastic = self.often(0.2)

    def of(self, *choices: Any) -> Any:
        """Draw one of these."""
        return choices[self.random.randrange(len(choices))]

    def often(self, part: float) -> bool:
        """Draw whether something is so."""
        return self.random.random() < part

    def policy(self) -> Json:
        """Draw what an operator may choose; mostly the defaults."""
        chosen: Json = {"packing": self.of("binpack", "binpack", "spread", "frag")}
        if self.often(0.3):
            chosen["phases"] = [*PHASES, "consolidate"]
        elif self.often(0.1):
            chosen["phases"] = self.of(["allocate"], ["allocate", "preempt"], ["reclaim"])
        for field, other in (
            ("shrink_first", False),
            ("backfill", True),
            ("users_take_turns", True),
            ("max_evictions", self.of(0, 1, 2)),
            ("max_pauses_per_hour", self.of(0, 1, 2)),
            ("history_weight", self.of(1, 3)),
        ):
            if self.often(0.15):
                chosen[field] = other
        return chosen

    def nodes(self) -> list[Json]:
        """Draw some machines."""
        return [
            {
                "name": f"n{number}",
                "devices": self.of(1, 2, 2, 4),
                "device_memory_mib": self.of(1000, 1000, 1600),
                "gpu_type": self.of("big", "small") if self.has_types else "big",
                "cpu_milli": self.of(None, 8000, 4000),
                "memory_mib": self.of(None, None, 1000),
                "labels": {"rack": self.of("r1", "r2"), "runai/node-type": self.of("lab", "dc")},
                "schedulable": not self.often(0.05),
            }
            for number in range(self.of(1, 2, 3, 4))
        ]

    def projects(self) -> list[Json]:
        """Draw two to four projects, some with one above them."""
        drawn: list[Json] = []
        if self.has_tree:
            drawn.append({"name": "p", **self.of({}, {"quota": self.of(1, 3)}, {"limit": 4})})
        for name in "abcd"[: self.of(2, 3, 4)]:
            project: Json = {"name": name, "quota": self.of(0, 0.5, 1, 1, 2, 3)}
            if self.has_types and self.often(0.5):
                project["quota"] = {"big": self.of(0, 1, 2), "*": self.of(0, 1)}
            for field, value, part in (
                ("parent", "p", 0.6 if self.has_tree else 0),
                ("weight", self.of(0, 0, 1, 3), 0.3),
                ("limit", self.of(2, 3.5), 0.15),
                ("priority", 200, 0.15),
                ("created", self.of(1, 2), 0.3),
                ("min_runtime", self.of(15, 25), 0.15),
                ("never_lent", 1, 0.1),
                ("usage", self.of(1, 5, 40), 0.5),
                ("build_quota", self.of(0, 0.5), 0.2),
                ("node_types", {"build": ["lab"]}, 0.1),
            ):
                if self.often(part):
                    project[field] = value
            drawn.append(project)
        return drawn

    def asks(self) -> Json:
        """Draw what a worker asks for."""
        asked: Json = self.of(
            *[{"gpus": 1}] * 5,
            *[{"gpus": 2}] * 2,
            {"gpus": self.of(0.25, 0.3, 0.5, 0.7)},
            {"gpus": self.of(0.25, 0.5)},
            {"gpu_memory_mib": self.of(200, 400, 600)},
            {"gpus": self.of(0.3, 0.5), "devices_wanted": 2},
            {"gpus": 0},
        )
        if self.often(0.2):
            asked = {**asked, "cpu_milli": self.of(1000, 3000)}
        if self.often(0.1):
            asked = {**asked, "memory_mib": self.of(200, 600)}
        if self.often(0.05):
            asked = {**asked, "node_selector": {"rack": "r1"}}
        if self.has_types and self.often(0.3):
            asked = {**asked, "gpu_types": [self.of("big", "small")]}
        return asked

    def workload(self, name: str, owners: list[str], now: int) -> Json:
        """Draw who waits: a session, a job, a gang, or an elastic one."""
        count, asked = self.of(1, 1, 1, 2, 3), self.asks()
        drawn: Json = {"name": name, "project": self.of(*owners), "user": self.of("x", "y", "z")}
        drawn["submitted"] = now - self.of(0, 0, 1, 5)
        if self.is_elastic and self.often(0.5):
            count, asked = 1, {"gpus": self.of(2, 3)}
            drawn |= {"gpus_min": 1, "gpus_max": self.of(3, 4)}
            if self.often(0.5):
                drawn |= {"throughput": {"1": 10, "2": 19, "3": self.of(19, 24), "4": 30}}
            if self.often(0.3):
                drawn |= {"resize_cost": self.of(1, 50), "expected_runtime": 100}
        elif self.often(0.25):
            drawn |= {"kind": "session", **self.of({}, {}, {"preemptible": True})}
        for field, value, part in (
            ("priority", self.of(25, 75), 0.25),
            ("min_workers", self.random.randint(1, count), 0.4),
            ("expected_runtime", self.of(15, 50, 500), 0.4),
            ("checkpointed", now - self.of(1, 5), 0.2),
            ("pauses", [now - self.of(10, 1800, 4000), now - 5], 0.15),
            ("pack_by", "rack", 0.2 if count > 1 else 0),
        ):
            if self.often(part):
                drawn[field] = value
        return {**drawn, "workers": [{"name": f"{name}-{i}", **asked} for i in range(count)]}


def worlds(number: int) -> Iterator[Snapshot]:
    """Let a world live: each cycle some come, some end, and what was decided is carried out."""
    dice, now = Dice(number), 1000
    nodes, projects, policy = dice.nodes(), dice.projects(), dice.policy()
    owners = [project["name"] for project in projects if project["name"] != "p"]
    world = snapshot_from_json({"now": now, "policy": policy, "nodes": nodes, "projects": projects})
    for cycle in range(CYCLES):
        come = [
            dice.workload(f"{'wxyz'[cycle]}{i}", owners, world.now) for i in range(dice.of(1, 3, 5))
        ]
        fresh = snapshot_from_json({"projects": projects, "workloads": come})
        stay = tuple(w for w in world.workloads if not dice.often(0.12))
        stay = tuple(broken(w, world.now - dice.of(50, 70)) if dice.often(0.1) else w for w in stay)
        world = replace(world, workloads=(*stay, *fresh.workloads))
        yield world
        world = applied(world, decide(world), seconds=10, grace=dice.often(0.3))


def broken(workload: Workload, since: int) -> Workload:
    """Let a gang lose its first worker, some time ago; others stay as they are."""
    first, *others = workload.workers
    if first.state is not WorkerState.RUNNING or not others:
        return workload
    lost = replace(first, state=WorkerState.PENDING, node=None, devices=(), started=None)
    return replace(workload, workers=(lost, *others), below_min_since=since)
