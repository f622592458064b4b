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
from hub_configurations import JUPYTERLAB_SETTINGS
from hub_platform import PASSWORD
from kubernetes_hub import KubernetesHub, running_kubernetes_hub
from waiting import eventually

pytestmark = [
    pytest.mark.hub,
    pytest.mark.browser,
    pytest.mark.kubernetes,
    pytest.mark.timeout(900),
]

TIMEOUT_MS = 120_000

TRAINING = """
import pathlib, time
print("epoch 1", flush=True)
while not pathlib.Path("end-training").exists():
    time.sleep(0.1)
print("trained", flush=True)
"""
NOTEBOOK_CELLS = [
    "%load_ext runai.widgets\nfrom runai.widgets import panel",
    "%runai_submit train.py --gpus 1 --name exp",
    "panel()",
]


@pytest.fixture(scope="module")
def hub(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesHub]:
    place = tmp_path_factory.mktemp("hub")
    with (
        ClusterLab(plane) as cluster_lab,
        running_kubernetes_hub(cluster_lab, place, gpus=2, config=JUPYTERLAB_SETTINGS) as running,
    ):
        yield running


@pytest.fixture
def page_of(browser: Browser, hub: KubernetesHub) -> Iterator[Callable[[str], Page]]:
    def sign_in(page: Page, user: str) -> None:
        lab.sign_in(page, base_url(hub), user, PASSWORD)

    with lab.user_pages(browser, sign_in) as open_page:
        yield open_page


def base_url(hub: KubernetesHub) -> str:
    return str(hub.http.base_url).rstrip("/")


def test_notebook_users_choose_wait_for_and_share_a_gpu_and_submit_a_job(
    hub: KubernetesHub, page_of: Callable[[str], Page]
) -> None:
    # Ana and Cy take half a GPU each: the limit of vision's sessions.
    ana_page, bo_page, cy_page = page_of("ana"), page_of("bo"), page_of("cy")
    lab.start_session(ana_page, base_url(hub), "½ GPU")
    lab.wait_for_lab(ana_page)
    lab.start_session(cy_page, base_url(hub), "½ GPU")
    lab.wait_for_lab(cy_page)

    # Bo's form shows that he would wait, and why; so does the page while he waits.
    bo_page.goto(f"{base_url(hub)}/hub/spawn")
    lab.choose_fraction(bo_page, "½ GPU")
    expect(bo_page.get_by_text("would wait").first).to_be_visible()
    lab.save_picture(bo_page, "kubernetes-form")
    lab.submit_spawn_form(bo_page)
    reason = bo_page.get_by_text(
        "Waiting: the build quota of vision is 1 GPU, and its notebooks hold 1: ana 0.5, cy 0.5"
    )
    expect(reason.first).to_be_visible(timeout=TIMEOUT_MS)
    lab.save_picture(bo_page, "kubernetes-waiting")

    # Ana submits a job from a notebook; jobs may use the other GPU, and its pod runs beside hers.
    home = hub.kubelet.volume("claim-ana")
    (home / "train.py").write_text(TRAINING)
    cells = [nbformat.v4.new_code_cell(cell) for cell in NOTEBOOK_CELLS]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), home / "story.ipynb")
    lab.open_notebook(ana_page, base_url(hub), "ana", "story.ipynb")
    lab.run_all_cells(ana_page)
    panel = ana_page.locator(".jp-OutputArea .runai-panel").last
    row = panel.get_by_role("row").filter(has_text="exp")
    expect(row).to_contain_text("running", timeout=TIMEOUT_MS)
    lab.save_picture(ana_page, "kubernetes-lab")

    # Ana stops her server; Bo gets her half, shares the device with Cy, and opens JupyterLab.
    lab.stop_server(ana_page, base_url(hub))
    lab.wait_for_lab(bo_page)
    visible_devices = [hub.environment(user)["NVIDIA_VISIBLE_DEVICES"] for user in ("bo", "cy")]
    assert visible_devices == ["GPU-0", "GPU-0"]

    # Ana's job goes on without her notebook.
    with hub.service() as client:
        assert {w.name: w.allocated for w in client.workloads() if w.kind == "job"} == {"exp": 1}
        (home / "end-training").touch()
        eventually(lambda: client.workload("vision/exp").state == "succeeded")
        assert [line.text for line in client.logs("vision/exp")] == ["epoch 1", "trained"]
        client.delete("vision/exp")
