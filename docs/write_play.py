"""Write docs/_static/play_data.js: one story under several rules, as the scheduler decides it.

`make docs` runs it; `tests/meta/test_docs.py` compares the file with the code. The platform's own
controller plays the story on a simulated cluster in virtual time; docs/_static/play.js shows it.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from runai.hub_service.clusters.simulated import SimulatedCluster, simulated_cluster
from runai.hub_service.controller.controller import Controller
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import HistoryEvent, ProjectSpec, WorkloadRecord, WorkloadSpec
from runai.hub_service.scheduler import Plan, Snapshot, decide
from runai.hub_service.scheduler.model.quantity import milli_gpus

WRITTEN = Path(__file__).parent / "_static" / "play_data.js"
GPUS, STEP_S, MINUTE = 5, 30, 60
LAST_MINUTE = 120


@dataclass(frozen=True)
class Submission:
    """One submission of the story, and how long it runs."""

    minute: int
    spec: WorkloadSpec
    minutes: int


@dataclass(frozen=True)
class Moment:
    """The state from one minute on, and its news."""

    minute: float
    devices: list[list[tuple[str, float]]]
    """Names and shares of the workloads on each GPU."""
    jobs: list[tuple[str, str, str]]
    """Name, state and reason of a wait."""
    news: list[str]


def session(user: str, project: str, minute: int) -> Submission:
    """Return half a GPU for a notebook, for the whole time."""
    spec = WorkloadSpec(
        project, f"notebook-{user}", user, "session", ("lab",), gpus=milli_gpus(0.5),
        preemptible=False, priority=100,
    )  # fmt: skip
    return Submission(minute, spec, 10 * LAST_MINUTE)


def job(name: str, user: str, project: str, minute: int, minutes: int) -> Submission:
    """Return a training of one GPU."""
    return Submission(
        minute, WorkloadSpec(project, name, user, "job", ("train",), gpus=milli_gpus(1)), minutes
    )


STORY = [
    session("bob", "vision", 0),
    *(job(f"bob-{n}", "bob", "vision", 2, 25) for n in range(1, 7)),
    session("patty", "nlp", 8),
    *(job(f"patty-{n}", "patty", "nlp", 14, 20) for n in range(1, 3)),
    job("patty-3", "patty", "nlp", 40, 15),
]
EVEN = (
    ProjectSpec("vision", quota=milli_gpus(2.5), members=("bob",)),
    ProjectSpec("nlp", quota=milli_gpus(2.5), members=("patty",)),
)
RULES: dict[str, tuple[ProjectSpec, ...]] = {
    "guaranteed quotas: 2.5 and 2.5": EVEN,
    "private parts: no project lends": tuple(replace(p, limit=p.quota) for p in EVEN),
    "a larger quota for vision: 4 and 1": (
        replace(EVEN[0], quota=milli_gpus(4)), replace(EVEN[1], quota=milli_gpus(1)),
    ),
    "no job is paused in its first 20 minutes": tuple(
        replace(p, min_runtime=20 * MINUTE) for p in EVEN
    ),
}  # fmt: skip


class InProcessScheduler:
    """The scheduler in this process."""

    async def decide(self, snapshot: Snapshot) -> Plan:
        """Return the plan of a snapshot."""
        return decide(snapshot)


async def played(projects: tuple[ProjectSpec, ...]) -> list[Moment]:
    """Play the story until all jobs have ended; a moment for each change."""
    now = [0.0]
    devices = [Device(n, f"SIM-{n}", "GPU", 16_000, simulated=True) for n in range(GPUS)]
    cluster = simulated_cluster({"machine": devices}, clock=lambda: now[0])
    controller = Controller(cluster, InProcessScheduler())
    for project in projects:
        await cluster.put_project(project)
    left = {s.spec.id: s.minutes * MINUTE for s in STORY}
    reported_counts: dict[str, int] = {}
    moments: list[Moment] = []
    for at in range(0, LAST_MINUTE * MINUTE, STEP_S):
        now[0] = float(at)
        await cluster.submit([s.spec for s in STORY if s.minute * MINUTE == at])
        for record in await cluster.workloads():
            if record.state == "stopping":
                cluster.executor.complete(record.id, 143)
            elif record.state == "running":
                left[record.id] -= STEP_S
                if left[record.id] <= 0:
                    cluster.executor.complete(record.id)
        for _ in range(3):  # freed GPUs are assigned at the same instant
            await controller.cycle()
        moment = await _moment(cluster, at / MINUTE, reported_counts)
        if moment.news or not moments:
            moments.append(moment)
        if at > 40 * MINUTE and all(r.state.finished for r in await _jobs(cluster)):
            break
    return moments


async def _jobs(cluster: SimulatedCluster) -> list[WorkloadRecord]:
    return [record for record in await cluster.workloads() if record.spec.kind == "job"]


STATE_PHRASES = {"queued": "waits", "starting": "", "stopping": "is paused", "succeeded": "is done"}


async def _moment(
    cluster: SimulatedCluster, minute: float, reported_counts: dict[str, int]
) -> Moment:
    shares_by_gpu: list[list[tuple[str, float]]] = [[] for _ in range(GPUS)]
    jobs: list[tuple[str, str, str]] = []
    news: list[str] = []
    for record in await cluster.workloads():
        for worker in record.workers:
            # Reserved devices still belong to the stopping workload.
            for share in () if worker.state == "reserved" else worker.devices:
                shares_by_gpu[share.device].append((record.spec.name, share.gpus / 1000))
        waits = record.state in {"queued", "paused"}
        jobs.append(
            (
                record.spec.name,
                record.state.value,
                record.reason.text if waits and record.reason else "",
            )
        )
        lines = await cluster.history(record.id)
        fresh = lines[reported_counts.get(record.id, 0) :]
        reported_counts[record.id] = len(lines)
        starts = any(line.kind == "starting" for line in fresh)
        news += [
            _news_line(record.spec.name, line)
            for line in fresh
            if line.kind in STATE_PHRASES and not (starts and line.kind == "queued")
        ]
    return Moment(minute, shares_by_gpu, jobs, news)


def _news_line(name: str, line: HistoryEvent) -> str:
    if line.kind == "starting":
        return f"{name} {line.text.replace(' on machine', ' on')}"
    return f"{name} {STATE_PHRASES[line.kind]}{f': {line.text}' if line.kind == 'stopping' else ''}"


def text() -> str:
    """Return the file's text."""
    stories = {name: asyncio.run(played(projects)) for name, projects in RULES.items()}
    data = {
        "projects": {s.spec.name: s.spec.project for s in STORY},
        "rules": {name: [asdict(moment) for moment in story] for name, story in stories.items()},
    }
    written = json.dumps(data, separators=(",", ":"))
    return f"// Made by docs/write_play.py: do not edit.\nwindow.runaiPlay = {written};\n"


if __name__ == "__main__":
    WRITTEN.write_text(text(), encoding="utf-8")
