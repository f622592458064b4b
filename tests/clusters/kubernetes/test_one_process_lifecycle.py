"""An elastic job of one pod grows onto idle GPUs and shrinks for an owner.

Its program is a process of the node's kubelet and sees its devices as any pod does; between two
sizes it is stopped and started again, with the same global batch. No sample is lost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.lab import allow_jobs
from control_plane.process_kubelet import NODE, ProcessKubelet
from runai.hub_service.wire.schemas import WorkloadDetail
from runai.hub_service.wire.workload_request import SubmitRequest
from service_process import kubernetes_service
from waiting import eventually

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("witness"), pytest.mark.timeout(600)]

PATIENCE_S = 120
PROJECTS = "projects: {vision: {quota: 1, members: [ana]}, nlp: {quota: 1, members: [pat]}}"
PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import runai.elastic as elastic

place = Path(sys.argv[1])
updates = place / "updates"
devices = os.environ["NVIDIA_VISIBLE_DEVICES"].split(",")
elastic._init(256, 64, len(devices))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
done = int(updates.read_text()) if updates.exists() else 0
start = {
    "devices": sorted(devices),
    "resumed": os.environ["RUNAI_RESUMED"],
    "from": done,
    "samples": elastic.steps * elastic.batch_size * elastic.gpus,
}
with (place / "starts").open("a") as starts:
    print(json.dumps(start), file=starts, flush=True)
while not (place / "enough").exists():
    if signal.sigtimedwait({signal.SIGTERM}, 0.05):
        updates.write_text(str(done + 1))
        sys.exit(143)
"""


class OneProcessScenario:
    """A node of two GPUs, a service, and a job of ana's that asks for both."""

    def __init__(self, lab, kubeconfig: Path, port: int, place: Path) -> None:
        self._lab, self._rights, self._port, self.place = lab, kubeconfig, port, place
        self._services = 0
        self.start_service()

    def start_service(self) -> None:
        """Start the service, or another one at the same address."""
        projects = self.place / "projects.yaml"
        projects.write_text(PROJECTS)
        self._services += 1
        self.service = kubernetes_service(
            self.place / f"service-{self._services}",
            self._rights,
            self._lab.namespace.name,
            self._port,
            RUNAI_ELASTIC_RESIZE_COST="0",
            RUNAI_PROJECTS=str(projects),
        )

    def submit(self) -> None:
        program = [sys.executable, "-u", "-c", PROGRAM, str(self.place)]
        fields = {"name": "one", "project": "vision", "owner": "ana", "command": program}
        self.service.client.submit(SubmitRequest(**fields, gpus=2, elastic=True))

    def submit_rival_job(self, name: str) -> None:
        """Submit a job of pat's for one GPU."""
        fields = {"name": name, "project": "nlp", "owner": "pat", "command": ["sleep", "1000000"]}
        self.service.client.submit(SubmitRequest(**fields, gpus=1))

    def wait_for_state(self, workload: str, state: str) -> WorkloadDetail:
        client = self.service.client

        def is_reached() -> bool:
            return client.workload(workload).state == state

        eventually(is_reached, within=PATIENCE_S, what=f"{workload} is {state}")
        return client.workload(workload)

    def starts(self) -> list[dict]:
        """Return the output of each start of its program."""
        path = self.place / "starts"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_starts_on(self, *gpus: int) -> None:
        """Wait until its program has run on these numbers of GPUs, one start after the other."""

        def has_run_on_all() -> bool:
            found = self.service.client.workload("vision/one")
            if found.state in {"failed", "ended"}:
                raise RuntimeError(str(found.reason))
            return [len(start["devices"]) for start in self.starts()] == list(gpus)

        eventually(has_run_on_all, within=PATIENCE_S, what=f"it was started on {gpus}")


@pytest.fixture
def scenario(lab, kubeconfig, free_port, tmp_path) -> Iterator[OneProcessScenario]:
    allow_jobs(lab.plane, lab.namespace.name)
    (tmp_path / "node").mkdir()
    with ProcessKubelet(lab.plane, tmp_path / "node", gpus=2) as kubelet:
        lab.node(NODE, gpus=2, status=kubelet.status)
        scenario = OneProcessScenario(lab, kubeconfig, free_port(), tmp_path)
        yield scenario
        scenario.service.end()


def test_elastic_job_in_one_pod_survives_resizes_pause_and_service_kill(scenario):
    """The node has two GPUs; the projects of ana and pat are entitled to one each."""
    scenario.submit_rival_job("other")
    scenario.wait_for_state("nlp/other", "running")
    scenario.submit()
    scenario.wait_for_starts_on(1)

    scenario.service.client.delete("nlp/other")
    scenario.wait_for_starts_on(1, 2)

    scenario.submit_rival_job("owner")
    scenario.wait_for_starts_on(1, 2, 1)
    scenario.wait_for_state("nlp/owner", "running")
    scenario.service.end()  # kill -9
    scenario.start_service()
    assert scenario.wait_for_state("vision/one", "running").allocated == 1

    scenario.service.client.suspend("vision/one")
    scenario.wait_for_state("vision/one", "suspended")
    scenario.service.client.resume("vision/one")
    scenario.wait_for_starts_on(1, 2, 1, 1)
    (scenario.place / "enough").touch()
    done = scenario.wait_for_state("vision/one", "succeeded")

    assert (done.failures, done.pauses, done.elastic.resizes) == (0, 0, 2)
    starts = scenario.starts()
    assert [start["from"] for start in starts] == [0, 1, 2, 3]
    assert [start["resumed"] for start in starts] == ["", "1", "1", "1"]
    assert {start["samples"] for start in starts} == {256}  # the global batch at each size
    assert starts[1]["devices"] == ["GPU-0", "GPU-1"]
