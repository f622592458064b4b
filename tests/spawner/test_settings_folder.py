"""A start without settings reads nothing of the home's, and writes nothing there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runai.spawner.settings_folder import SettingsFolder

PRINT_SETTINGS_PATHS = """
import json, os, site
import jupyter_core.paths as paths
from IPython.paths import get_ipython_dir
from jupyter_server.serverapp import ServerApp
from jupyterhub.singleuser._disable_user_config import _disable_user_config
from jupyterlab.commands import get_user_settings_dir, get_workspaces_dir
server = ServerApp()
if os.environ.get("JUPYTERHUB_DISABLE_USER_CONFIG"):
    _disable_user_config(server)
print(json.dumps([
    *server.config_file_paths, *paths.jupyter_path(), *paths.jupyter_config_path(),
    paths.jupyter_runtime_dir(), get_ipython_dir(), get_user_settings_dir(), get_workspaces_dir(),
    site.getusersitepackages() if site.ENABLE_USER_SITE else "",
]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / ".local/share/jupyter/kernels").mkdir(parents=True)
    (home / ".jupyter").mkdir()
    return home


def _settings_paths(home: Path, folder: SettingsFolder | None) -> list[str]:
    """Return where a server looks for settings and writes its own."""
    environment = {k: v for k, v in os.environ.items() if "JUPYTER" not in k} | {"HOME": str(home)}
    process = subprocess.run(
        [sys.executable, "-c", PRINT_SETTINGS_PATHS],
        env=environment if folder is None else environment | folder.variables(home),
        cwd=home,
        preexec_fn=folder.make if folder is not None else None,
        stdout=subprocess.PIPE,
        check=True,
    )
    paths: list[str] = json.loads(process.stdout)
    return [path for path in paths if Path(path).is_relative_to(home)]


def test_server_without_settings_uses_no_path_in_the_home(home):
    folder = SettingsFolder()

    assert _settings_paths(home, None)
    assert _settings_paths(home, folder) == []
    assert folder.path.stat().st_mode & 0o777 == 0o700

    folder.remove()
    assert not folder.path.exists()


def test_settings_folder_refuses_an_existing_folder():
    folder = SettingsFolder()
    folder.path.mkdir()

    with pytest.raises(FileExistsError):
        folder.make()
    folder.remove()
