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

from clusters.kubernetes.test_service import LEASE, Service
from control_plane.lab import allow_jobs
from control_plane.processes import NODE, ProcessKubelet
from runai.hub_service.wire.schemas import SubmitRequest, WorkloadDetail
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


class Story:
    """A node of two GPUs, a service, and a job of ana's that asks for both."""

    def __init__(self, lab, rights: Path, port: int, place: Path) -> None:
        self._lab, self._rights, self._port, self.place = lab, rights, port, place
        self._services = 0
        self.serve()

    def serve(self) -> None:
        """Start the service, or another one at the same address."""
        projects = self.place / "projects.yaml"
        projects.write_text(PROJECTS)
        self._services += 1
        self.service = Service(
            self.place / f"service-{self._services}",
            self._rights,
            self._lab.namespace.name,
            self._port,
            RUNAI_ELASTIC_RESIZE_COST="0",
            RUNAI_PROJECTS=str(projects),
        )

    def submit(self) -> None:
        program = [sys.executable, "-u", "-c", PROGRAM, str(self.place)]
        asked = {"name": "one", "project": "vision", "owner": "ana", "command": program}
        self.service.client.submit(SubmitRequest(**asked, gpus=2, elastic=True))

    def takes(self, name: str) -> None:
        """Submit a job of pat's for one GPU."""
        asked = {"name": name, "project": "nlp", "owner": "pat", "command": ["sleep", "1000000"]}
        self.service.client.submit(SubmitRequest(**asked, gpus=1))

    def until(self, workload: str, state: str) -> WorkloadDetail:
        client = self.service.client

        def there() -> bool:
            return client.workload(workload).state == state

        eventually(there, within=PATIENCE_S, what=f"{workload} is {state}")
        return client.workload(workload)

    def starts(self) -> list[dict]:
        """Return the output of each start of its program."""
        path = self.place / "starts"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def runs_on(self, *gpus: int) -> None:
        """Wait until its program has run on these numbers of GPUs, one start after the other."""

        def so_many() -> bool:
            found = self.service.client.workload("vision/one")
            if found.state in {"failed", "ended"}:
                raise RuntimeError(str(found.reason))
            return [len(start["devices"]) for start in self.starts()] == list(gpus)

        eventually(so_many, within=PATIENCE_S, what=f"it was started on {gpus}")


@pytest.fixture
def story(lab, rights, free_port, tmp_path) -> Iterator[Story]:
    allow_jobs(lab.plane, lab.namespace.name)
    (tmp_path / "node").mkdir()
    with ProcessKubelet(lab.plane, tmp_path / "node", gpus=2) as kubelet:
        lab.node(NODE, gpus=2, status=kubelet.status)
        told = Story(lab, rights, free_port(), tmp_path)
        yield told
        told.service.end()
        lab.forget_projects()
        lab.forget(LEASE)


def test_it_grows_shrinks_for_an_owner_outlives_its_service_pauses_and_loses_nothing(story):
    story.takes("other")
    story.until("nlp/other", "running")
    story.submit()
    story.runs_on(1)

    story.service.client.delete("nlp/other")
    story.runs_on(1, 2)

    story.takes("owner")
    story.runs_on(1, 2, 1)
    story.until("nlp/owner", "running")
    story.service.end()  # kill -9
    story.serve()
    assert story.until("vision/one", "running").allocated == 1

    story.service.client.suspend("vision/one")
    story.until("vision/one", "suspended")
    story.service.client.resume("vision/one")
    story.runs_on(1, 2, 1, 1)
    (story.place / "enough").touch()
    done = story.until("vision/one", "succeeded")

    assert (done.failures, done.pauses, done.elastic.resizes) == (0, 0, 2)
    starts = story.starts()
    assert [start["from"] for start in starts] == [0, 1, 2, 3]
    assert [start["resumed"] for start in starts] == ["", "1", "1", "1"]
    assert {start["samples"] for start in starts} == {256}
    assert starts[1]["devices"] == ["GPU-0", "GPU-1"]
