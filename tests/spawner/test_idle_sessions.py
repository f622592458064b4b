"""Idle GPUs end to end: a real JupyterHub, a real kernel, and a real jupyterhub-idle-culler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from hub_platform import TESTER_TOKEN, HubPlatform
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.client import Client

pytestmark = [pytest.mark.hub, pytest.mark.timeout(600)]

PRINT_DEVICES = "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"
KERNEL_CLIENT_PROGRAM = """
import sys
from jupyter_client.blocking.client import BlockingKernelClient

file, call, code = sys.argv[1:]
client = BlockingKernelClient(connection_file=file)
client.load_connection_file()
client.start_channels()
client.wait_for_ready(timeout=90)
if call == "execute_interactive":
    client.execute_interactive(code, timeout=90)
else:
    # Channels are closed without lingering: what the kernel has not taken by then is lost.
    message_id = client.execute(code)
    while (message := client.get_iopub_msg(timeout=90))["msg_type"] != "execute_input":
        pass
    assert message["parent_header"]["msg_id"] == message_id
client.stop_channels()
"""
CULLER_CONFIG = """
from runai.embedded.culler import cull_arbiter
c.IdleCuller.cull_arbiter_hook = cull_arbiter
"""


class Kernel:
    """A kernel of a user's notebook server, driven as JupyterLab drives it."""

    def __init__(self, platform: HubPlatform, user: str) -> None:
        token = platform.environment(user)["JUPYTERHUB_API_TOKEN"]
        self.http = httpx.Client(
            base_url=f"{platform.http.base_url}/user/{user}/api",
            headers={"Authorization": f"token {token}"},
            timeout=90,
        )
        home = DataDirectory(platform.data_dir).users / user
        self.id: str = self.http.post("/kernels").raise_for_status().json()["id"]
        self.file = home / ".local/share/jupyter/runtime" / f"kernel-{self.id}.json"

    def start_cell(self, code: str) -> None:
        """Start a cell that runs for long."""
        self._client("execute", code)

    def run_cell(self, code: str) -> str:
        """Return the output of a cell.

        Raises:
            AssertionError: the kernel ends, or is restarting.
        """
        return self._client("execute_interactive", code)

    def restart(self) -> None:
        self.http.post(f"/kernels/{self.id}/restart").raise_for_status()

    def _client(self, call: str, code: str) -> str:
        # In a process of its own: jupyter_client leaves sockets and loops to the garbage collector.
        command = [sys.executable, "-c", KERNEL_CLIENT_PROGRAM, str(self.file), call, code]
        process = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
        assert process.returncode == 0, process.stderr[-2000:]
        return process.stdout.strip()


@pytest.fixture
def kernel_of(platform: HubPlatform) -> Iterator[Callable[[str], Kernel]]:
    """Return a function that starts a kernel on a user's server; close its connections later."""
    started: list[Kernel] = []

    def start(user: str) -> Kernel:
        started.append(Kernel(platform, user))
        return started[-1]

    yield start
    for kernel in started:
        kernel.http.close()


@contextmanager
def culler(platform: HubPlatform, folder: Path) -> Iterator[None]:
    """Run a culler with an idle limit of one second, which culls every server."""
    config = folder / "culler.py"
    config.write_text(CULLER_CONFIG)
    environment = os.environ | {
        "JUPYTERHUB_API_TOKEN": TESTER_TOKEN,
        "RUNAI_API_URL": f"{platform.http.base_url}/services/runai/",
        "RUNAI_HUB_TOKEN": DataDirectory(platform.data_dir).hub_token(),
    }
    options = [f"--url={platform.http.base_url}/hub/api", "--timeout=1", "--cull-every=1"]
    command = [sys.executable, "-m", "jupyterhub_idle_culler", *options, f"--config={config}"]
    with (folder / "culler.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def test_notebook_server_is_not_culled_while_its_gpu_works_or_after_its_release(
    platform: HubPlatform,
    kernel_of: Callable[[str], Kernel],
    tmp_path: Path,
    eventually: Callable[..., Any],
):
    platform.start_server("ana", project="vision", gpus="0.5")
    platform.start_server("bo")
    server, kernel = platform.pid("ana"), kernel_of("ana")
    device = platform.environment("ana")["CUDA_VISIBLE_DEVICES"]
    assert eventually(lambda: kernel.run_cell(PRINT_DEVICES)) == repr(device)
    kernel.run_cell("open('work.txt', 'w').write('all my work')")
    kernel.start_cell("while True: pass")
    eventually(
        lambda: (platform.sessions()["ana"].measured.utilized or 0) > 0.1, what="ana's GPU works"
    )

    def is_culled(user: str) -> bool:
        # The culler's log explains a failure.
        assert not platform.server(user), (tmp_path / "culler.log").read_text()[-3000:]
        return True

    with culler(platform, tmp_path):
        eventually(lambda: is_culled("bo"), within=120, what="bo's server is culled")
    assert platform.holds() == {"ana": 0.5}

    token = DataDirectory(platform.data_dir).hub_token()
    with Client(f"{platform.http.base_url}/services/runai/", token) as hub:
        hub.release("vision/lab-ana")
        eventually(lambda: platform.holds() == {"ana": 0}, what="the GPU is given back")

        # The kernel's process died, the server did not: it restarted the kernel, without a GPU.
        assert eventually(lambda: kernel.run_cell(PRINT_DEVICES)) == "''"
        assert platform.pid("ana") == server
        assert platform.server("ana")["ready"]
        assert kernel.http.get("/contents/work.txt").json()["content"] == "all my work"

        hub.regain("vision/lab-ana")
        eventually(lambda: platform.holds() == {"ana": 0.5}, what="the GPU is back")
        kernel.restart()

        assert eventually(lambda: kernel.run_cell(PRINT_DEVICES)) == repr(device)
        assert psutil.Process(server).is_running()
        history = [event.kind for event in hub.workload("vision/lab-ana").history]
    assert "released" in history
