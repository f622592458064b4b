"""Notebooks on Kubernetes in a real browser: choose a GPU, wait with a reason, work, submit a job.

JupyterHub, API server, scheduler and JupyterLab are real; the node runs pods as processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import nbformat
import pytest
from playwright.sync_api import Browser, Page, expect

from control_plane.lab import ClusterLab
from control_plane.plane import ControlPlane
from e2e import lab
from e2e.lab import PICTURES
from hub_configurations import LAB
from hub_platform import PASSWORD
from kubernetes_hub import KubernetesHub, running_kubernetes_hub
from waiting import eventually

pytestmark = [
    pytest.mark.hub,
    pytest.mark.browser,
    pytest.mark.kubernetes,
    pytest.mark.timeout(900),
]

SECONDS = 120_000

TRAINING = """
import pathlib, time
print("epoch 1", flush=True)
while not pathlib.Path("enough").exists():
    time.sleep(0.1)
print("trained", flush=True)
"""
CELLS = [
    "%load_ext runai.widgets\nfrom runai.widgets import panel",
    "%runai_submit train.py --gpus 1 --name exp",
    "panel()",
]


@pytest.fixture(scope="module")
def hub(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesHub]:
    cluster_lab = ClusterLab(plane)
    place = tmp_path_factory.mktemp("hub")
    with running_kubernetes_hub(cluster_lab, place, gpus=2, config=LAB) as running:
        yield running
    cluster_lab.remove()


@pytest.fixture
def page_of(browser: Browser, hub: KubernetesHub) -> Iterator[Callable[[str], Page]]:
    def arrive(page: Page, user: str) -> None:
        lab.sign_in(page, url(hub), user, PASSWORD)

    with lab.pages(browser, arrive) as open_page:
        yield open_page


def url(hub: KubernetesHub) -> str:
    return str(hub.http.base_url).rstrip("/")


def test_notebook_users_choose_wait_for_and_share_a_gpu_and_submit_a_job(
    hub: KubernetesHub, page_of: Callable[[str], Page]
) -> None:
    # Ana and Cy take half a GPU each: the limit of vision's sessions.
    ana, bo, cy = page_of("ana"), page_of("bo"), page_of("cy")
    lab.take(ana, url(hub), "½ GPU")
    lab.wait_for_lab(ana)
    lab.take(cy, url(hub), "½ GPU")
    lab.wait_for_lab(cy)

    # Bo's form shows that he would wait, and why; so does the page while he waits.
    bo.goto(f"{url(hub)}/hub/spawn")
    lab.choose(bo, "½ GPU")
    expect(bo.get_by_text("would wait").first).to_be_visible()
    lab.picture(bo, PICTURES, "kubernetes-form")
    lab.start(bo)
    reason = bo.get_by_text(
        "Waiting: the build quota of vision is 1 GPU, and its notebooks hold 1: ana 0.5, cy 0.5"
    )
    expect(reason.first).to_be_visible(timeout=SECONDS)
    lab.picture(bo, PICTURES, "kubernetes-waiting")

    # Ana submits a job from a notebook; jobs may use the other GPU, and its pod runs beside hers.
    home = hub.kubelet.volume("claim-ana")
    (home / "train.py").write_text(TRAINING)
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), home / "story.ipynb")
    lab.open_notebook(ana, url(hub), "ana", "story.ipynb")
    lab.run_all(ana)
    panel = ana.locator(".runai-panel").last
    row = panel.get_by_role("row").filter(has_text="exp")
    expect(row).to_contain_text("running", timeout=SECONDS)
    lab.picture(ana, PICTURES, "kubernetes-lab")

    # She stops her server; Bo gets her half, shares the device with Cy, and opens JupyterLab.
    lab.stop_server(ana, url(hub))
    lab.wait_for_lab(bo)
    visible_devices = [hub.environment(user)["NVIDIA_VISIBLE_DEVICES"] for user in ("bo", "cy")]
    assert visible_devices == ["GPU-0", "GPU-0"]

    # Her job goes on without her notebook.
    with hub.client() as client:
        assert {w.name: w.allocated for w in client.workloads() if w.kind == "job"} == {"exp": 1}
        (home / "enough").touch()
        eventually(lambda: client.workload("vision/exp").state == "succeeded")
        assert [line.text for line in client.logs("vision/exp")] == ["epoch 1", "trained"]
        client.delete("vision/exp")
