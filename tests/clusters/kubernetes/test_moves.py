"""A job that saves moves to make room: the whole move, on the service with the shipped policy.

kwok plays the kubelets; every other part is the real one. The Job keeps its last move, so the next
service tells it, too.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import pytest

from clusters.kubernetes.gpu_sharing import events_of
from control_plane.lab import allow_jobs
from kubernetes_lab import kubernetes_lab
from labs import plan, start
from runai.hub_service.wire.workload_request import SubmitRequest
from service_process import kubernetes_service

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness")]

PROJECTS = "projects: {vision: {quota: 2, members: [ana]}, nlp: {quota: 2, members: [patty]}}"
OWNERS = {"vision": "ana", "nlp": "patty"}
MOVE_REASON = "moved to n1 to make room for nlp/big"


class MoveScenario:
    """Two nodes of two GPUs, and a service that can be restarted."""

    def __init__(self, lab, kubeconfig, free_port, place) -> None:
        self._lab, self._rights, self._free_port, self._place = lab, kubeconfig, free_port, place
        self._services = 0
        self.start_service()

    def start_service(self) -> None:
        """Start the service, or the next one."""
        projects = self._place / "projects.yaml"
        projects.write_text(PROJECTS)
        self._services += 1
        self.service = kubernetes_service(
            self._place / f"service-{self._services}",
            self._rights,
            self._lab.namespace.name,
            self._free_port(),
            RUNAI_PROJECTS=str(projects),
        )

    def submit(self, project: str, name: str, gpus: int = 1, *, saves: bool = False) -> None:
        fields = {"name": name, "project": project, "owner": OWNERS[project]}
        command = ["python", "train.py"]
        self.service.client.submit(SubmitRequest(**fields, command=command, gpus=gpus, saves=saves))

    def node_of(self, project: str, name: str) -> str:
        """Return the node of a running job; "" before that."""
        found = self.service.client.workload(f"{project}/{name}")
        return found.workers[0].node if found.state == "running" else ""

    def allocated(self, project: str) -> float:
        """Return the GPUs that a project holds."""
        return next(p.allocated for p in self.service.client.projects() if p.name == project)

    def moves(self) -> dict[str, str]:
        """Return the last moves in the list, by workload."""
        listed = self.service.client.workloads()
        return {found.id: found.moved for found in listed if found.moved}


@pytest.fixture
def scenario(lab, kubeconfig, free_port, tmp_path) -> Iterator[MoveScenario]:
    allow_jobs(lab.plane, lab.namespace.name)
    for name in ("n1", "n2"):
        lab.node(name, gpus=2)
    scenario = MoveScenario(lab, kubeconfig, free_port, tmp_path)
    yield scenario
    scenario.service.end()


def test_checkpointing_job_moves_for_a_bigger_claimant_and_reports_it_after_restart(
    scenario, lab, eventually
):
    work = lab.namespace
    for name, saves in (("stays", False), ("filler", False), ("saver", True)):
        scenario.submit("vision", name, saves=saves)
        eventually(lambda name=name: scenario.node_of("vision", name), what=f"{name} runs")
    before = {name: scenario.node_of("vision", name) for name in ("stays", "filler", "saver")}
    [evicted] = work.pods("vision-saver")
    scenario.service.client.delete("vision/filler")
    assert before == {"stays": "n1", "filler": "n1", "saver": "n2"}
    # While the project is beyond its quota, the claim stops the job instead (R2).
    eventually(lambda: scenario.allocated("vision") == 2, what="the filler's GPU is free")

    scenario.submit("nlp", "big", gpus=2)
    eventually(lambda: scenario.node_of("nlp", "big") == "n2", what="the claimant has both of n2")
    eventually(lambda: scenario.node_of("vision", "saver") == "n1", what="the job goes on on n1")

    [pod] = work.pods("vision-saver")
    job = work.job("vision-saver")
    assert pod["metadata"]["uid"] != evicted["metadata"]["uid"]
    assert job["status"].get("failed", 0) == 0
    resumed = eventually(lambda: events_of(work, job, "Resumed"), what="the move has ended")
    assert [re.sub(r"\d+ s", "N s", text) for text in resumed] == [f"{MOVE_REASON}, N s"]
    assert events_of(work, job, "Moved") == [MOVE_REASON]
    workload = scenario.service.client.workload("vision/saver")
    assert re.fullmatch(rf"{MOVE_REASON}, \d+ s", workload.moved)
    assert (workload.pauses, workload.attempts, workload.failures) == (1, 2, 0)
    assert scenario.moves() == {"vision/saver": MOVE_REASON}

    assert scenario.service.stop(signal.SIGTERM) == 0
    scenario.service.end()
    lab.plane.request("DELETE", f"/api/v1/namespaces/{work.name}/events")  # kept for an hour
    scenario.start_service()

    assert scenario.moves() == {"vision/saver": MOVE_REASON}
    assert scenario.service.client.workload("vision/saver").moved == MOVE_REASON


async def test_checkpoint_support_reported_by_elastic_worker_survives_scheduler_restart(plane):
    async with kubernetes_lab(plane) as lab:
        saving, silent = (lab.job(name, elastic=True, workers=2, min_workers=1) for name in "ab")
        await lab.cluster.submit([saving, silent])
        await lab.cluster.apply(plan(start(saving.id, 0), start(silent.id, 1)))
        for spec in (saving, silent):
            await lab.until(spec.id, "running")
        await lab.report_status(saving, "running", 0)

        async with lab.restarted() as cluster:
            saves_in_snapshot = {
                workload.name: workload.saves for workload in (await cluster.observe()).workloads
            }
            records = {record.id: record.saves for record in await cluster.workloads()}

    assert saves_in_snapshot == records == {saving.id: True, silent.id: False}
