"""An elastic training in pods, grown, shrunk for an owner, paused, its service killed: all real.

Its workers train with `runai.elastic.torch` as processes of the node's kubelet, exchange messages
with the service's API with their pods' tokens, and the core decides. Nothing is timed: the training
may make as many updates as the test allows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from allowed_training import AllowedTraining
from control_plane.lab import allow_jobs
from control_plane.objects import pod
from control_plane.process_kubelet import NODE, ProcessKubelet
from runai.elastic.checkpoint import latest
from runai.hub_service.wire.schemas import ScaleRequest
from runai.hub_service.wire.workload_request import SubmitRequest
from service_process import kubernetes_service
from waiting import eventually

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.usefixtures("witness"),
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.timeout(600),
]

PATIENCE_S = 200
PROJECTS = "projects: {vision: {quota: 1, members: [ana]}, nlp: {quota: 2, members: [pat]}}"
HOME = "/home/jovyan"


class ElasticJobScenario:
    """A node of three GPUs, a service, and ana's training, which runs as far as allowed."""

    def __init__(
        self, lab, kubeconfig: Path, kubelet: ProcessKubelet, port: int, place: Path
    ) -> None:
        self.lab, self.kubelet, self.place = lab, kubelet, place
        self._rights, self._port = kubeconfig, port
        self.job = AllowedTraining("vision/e", place / "training", lambda: self.service.client)
        self.services = 0
        self.start_service()

    def start_service(self) -> None:
        """Start the service, or another one at the same address."""
        projects = self.place / "projects.yaml"
        projects.write_text(PROJECTS)
        self.services += 1
        self.service = kubernetes_service(
            self.place / f"service-{self.services}",
            self._rights,
            self.lab.namespace.name,
            self._port,
            RUNAI_API_URL=f"http://127.0.0.1:{self._port}/services/runai/",
            RUNAI_ELASTIC_GROW_EVERY="0",
            RUNAI_ELASTIC_PAYS_FROM="off",
            RUNAI_PROJECTS=str(projects),
        )

    def start_notebook(self) -> None:
        """Start ana's notebook; her jobs store their checkpoints in its home."""
        self.lab.namespace.claim("home")
        server = pod("jupyter", 0, annotations={"hub.jupyter.org/username": "ana"})
        home = {"name": "home", "persistentVolumeClaim": {"claimName": "home"}}
        server["spec"] |= {"nodeName": NODE, "volumes": [home]}
        mount = {"name": "home", "mountPath": HOME}
        server["spec"]["containers"][0]["volumeMounts"] = [mount]
        self.lab.namespace.create(server)
        states = {"running", "ended"}
        eventually(lambda: any(w.state in states for w in self.service.client.workloads()))

    def submit(self) -> None:
        tests = str(Path(__file__).parents[2])
        program = self.job.command(sys.executable, str(self.job.directory))
        self.service.client.submit(
            SubmitRequest(
                name="e",
                project="vision",
                owner="ana",
                command=program,
                workers=3,
                elastic=True,
                env={"OMP_NUM_THREADS": "1", "PYTHONPATH": tests},
            )
        )

    def submit_rival_job(self, name: str, gpus: int) -> None:
        """Submit a job of pat's for so many GPUs."""
        command = ["sleep", "1000000"]
        request = SubmitRequest(name=name, project="nlp", owner="pat", command=command, gpus=gpus)
        self.service.client.submit(request)

    def wait_until_runs(self, name: str) -> None:
        client = self.service.client
        eventually(lambda: client.workload(f"nlp/{name}").state == "running", within=PATIENCE_S)

    def has_saved(self) -> bool:
        checkpoints = Path(self.job.job().checkpoint_dir).relative_to(HOME)
        return latest(self.kubelet.volume("home") / checkpoints) is not None


@pytest.fixture
def scenario(lab, kubeconfig, free_port, tmp_path) -> Iterator[ElasticJobScenario]:
    allow_jobs(lab.plane, lab.namespace.name)
    (tmp_path / "node").mkdir()
    with ProcessKubelet(lab.plane, tmp_path / "node", gpus=3) as kubelet:
        lab.node(NODE, gpus=3, status=kubelet.status)
        scenario = ElasticJobScenario(lab, kubeconfig, kubelet, free_port(), tmp_path)
        yield scenario
        scenario.service.end()


def test_elastic_training_in_pods_survives_resizes_pause_and_service_kill(scenario):
    """The node has three GPUs; ana's project is entitled to one, pat's to two."""
    scenario.start_notebook()
    scenario.submit_rival_job("other", gpus=2)
    scenario.wait_until_runs("other")
    scenario.submit()
    scenario.job.trains_on(1)

    scenario.service.client.delete("nlp/other")
    scenario.job.trains_on(3)

    scenario.service.client.scale("vision/e", ScaleRequest(workers=2))
    scenario.job.trains_on(2)
    scenario.service.client.scale("vision/e", ScaleRequest(workers=3))
    scenario.job.trains_on(3)

    scenario.submit_rival_job("owner", gpus=1)
    scenario.job.trains_on(2)
    scenario.wait_until_runs("owner")
    assert not scenario.has_saved(), "a resize waits for no checkpoint"

    scenario.service.end()  # kill -9
    scenario.start_service()
    scenario.job.trains_on(2)

    scenario.service.client.suspend("vision/e")
    scenario.job.wait_until("suspended")
    assert scenario.has_saved()
    scenario.service.client.resume("vision/e")
    scenario.job.trains_on(2)
    done = scenario.job.run_to_end()

    assert (done.failures, done.pauses, done.exit_code) == (0, 0, 0)
    assert scenario.job.has_lost_nothing()
    assert scenario.job.sizes() == {1, 2, 3}
