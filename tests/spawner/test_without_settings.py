"""A start without settings reads nothing of the home's, and writes nothing there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runai.spawner.without_settings import SettingsFolder

PLACES = """
import json, os, site
import jupyter_core.paths as paths
from IPython.paths import get_ipython_dir
from jupyter_core.application import JupyterApp
from jupyterlab.commands import get_user_settings_dir, get_workspaces_dir
print(json.dumps([
    *JupyterApp().config_file_paths, *paths.jupyter_path(), *paths.jupyter_config_path(),
    paths.jupyter_runtime_dir(), get_ipython_dir(), get_user_settings_dir(), get_workspaces_dir(),
    site.getusersitepackages() if site.ENABLE_USER_SITE else "", os.getcwd(),
]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / ".local/share/jupyter/kernels").mkdir(parents=True)
    (home / ".jupyter").mkdir()
    return home


def _places(home: Path, folder: SettingsFolder | None) -> list[str]:
    """Return where a server looks for settings and writes its own."""
    given = {k: v for k, v in os.environ.items() if "JUPYTER" not in k} | {"HOME": str(home)}
    ran = subprocess.run(
        [sys.executable, "-c", PLACES],
        env=given if folder is None else given | folder.variables(given, home),
        cwd=home,
        preexec_fn=folder.make if folder is not None else None,
        stdout=subprocess.PIPE,
        check=True,
    )
    places: list[str] = json.loads(ran.stdout)
    return [place for place in places if Path(place).is_relative_to(home)]


def test_no_place_of_settings_lies_in_the_home(home):
    folder = SettingsFolder()

    assert _places(home, None)
    assert _places(home, folder) == []
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_server_shows_the_home_or_what_the_admin_chose(home):
    folder = SettingsFolder()

    assert folder.variables({}, home)["JUPYTERHUB_ROOT_DIR"] == str(home)
    chosen = folder.variables({"JUPYTERHUB_ROOT_DIR": "/data"}, home)
    assert chosen["JUPYTERHUB_ROOT_DIR"] == "/data"


def test_folder_that_is_there_is_not_entered(home):
    folder = SettingsFolder()
    folder.path.mkdir()

    with pytest.raises(FileExistsError):
        folder.make()
