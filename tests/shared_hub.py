"""Hubs that several test files share: each is started once in a run.

| fixture | hub |
|---|---|
| `real_hub` | JupyterHub and the service it manages, two simulated GPUs (`users_hub`) |
| `one_gpu` | `runai up` with one simulated GPU, no JupyterLab extensions (`running_hub`) |
| `five_gpus` | `runai up` with five simulated GPUs, JupyterLab complete (`runai_up`) |

A test leaves them as it found them, or uses users and projects of its own. These need their own:
embedded/test_liveness_probe (the service must answer within 8 s), e2e/test_idle_gpu_buttons (a
driver that makes the devices look real), spawner/test_inherited_environment (a shell with proxies),
e2e/test_readme (only a new home is given the examples), e2e/test_backup_and_restore and
e2e/test_elastic_jobs (slow).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hub_platform import HubPlatform

GROWS_AT_ONCE = {
    "RUNAI_ELASTIC_GROW_EVERY": "0",
    "RUNAI_ELASTIC_RESIZE_COST": "0",
    "RUNAI_ELASTIC_PAYS_FROM": "off",
    "OMP_NUM_THREADS": "1",
}
"""Elastic jobs grow at once, whatever their speed on this machine."""


@pytest.fixture(scope="session")
def real_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubPlatform]:
    from users_hub import users_hub

    with users_hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture(scope="session")
def one_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubPlatform]:
    from hub_platform import running_hub

    with running_hub(tmp_path_factory.mktemp("one-gpu")) as platform:
        yield platform


@pytest.fixture(scope="session")
def five_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubPlatform]:
    from hub_platform import TESTER_CONFIG, runai_up

    data_dir = tmp_path_factory.mktemp("five-gpus")
    (data_dir / "jupyterhub_config.py").write_text(TESTER_CONFIG)
    platform = runai_up(data_dir, shell=GROWS_AT_ONCE)
    platform.start()
    yield platform
    platform.stop()
