"""Jobs run in their user's Python environment, also those of a user without a notebook."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labs import LocalLab, local_lab, plan, start
from runai import hub_service
from runai.hub_service.processes.user_environment import FOLDER
from unix_accounts import UIDS, accounts, as_user
from user_environments import wheel

PIP_INSTALL = "-m pip install --no-index --no-deps --disable-pip-version-check -q"
PLATFORM_PYTHON = Path(sys.executable).with_name("python")


@pytest.fixture
def env_dir(tmp_path: Path) -> Path:
    return tmp_path / "data/users/ana" / FOLDER


async def _run(lab: LocalLab, name: str, script: str, **fields) -> str:
    """Run a shell script as a job; return its output."""
    spec = lab.job(name, command=("sh", "-c", script), **fields)
    await lab.cluster.submit([spec])
    starts = (start(spec.id, i, worker=i) for i in range(spec.workers))
    assert await lab.cluster.apply(plan(*starts)) == []
    record = await lab.until(spec.id, "succeeded", "failed")
    chunks = lab.cluster.logs(spec.id, worker=None, tail=None, follow=False)
    printed = b"".join([chunk.lines async for chunk in chunks]).decode()
    assert record.state == "succeeded", printed
    return printed


async def test_library_installed_by_a_job_is_available_to_its_users_jobs_only(
    lab, env_dir, tmp_path
):
    package = wheel(tmp_path)
    await _run(lab, "first", f"python {PIP_INSTALL} {package}")

    own_output = await _run(
        lab, "second", "for p in python pip tiny runai; do command -v $p; done; tiny"
    )
    other_output = await _run(lab, "other", "python -c 'import tiny' || echo none", user="bo")

    names = ("bin/python", "bin/pip", "bin/tiny", "runai/bin/runai")
    assert own_output.splitlines() == [*(f"{env_dir}/{name}" for name in names), "1.0"]
    assert other_output.splitlines()[-1] == "none"
    assert importlib.util.find_spec("tiny") is None


async def test_job_of_a_notebook_runs_on_the_python_that_its_request_names(lab, env_dir, tmp_path):
    await _run(lab, "first", f"python {PIP_INSTALL} {wheel(tmp_path)}")
    spec = lab.job(command=(str(env_dir / "bin/python"), "-c", "import tiny"))
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0)))

    assert (await lab.until(spec.id, "succeeded", "failed")).state == "succeeded"


async def test_concurrently_starting_workers_create_one_python_environment(lab, env_dir):
    printed = await _run(lab, "gang", "command -v python", workers=4, min_workers=4)

    assert printed.splitlines() == [f"{env_dir}/bin/python"] * 4
    assert [path.name for path in env_dir.parent.iterdir() if "runai-env" in path.name] == [FOLDER]


async def test_job_with_a_damaged_environment_runs_on_the_platforms_python(lab, env_dir, tmp_path):
    env_dir.mkdir(parents=True)
    package = wheel(tmp_path)
    script = f"command -v python; pip install {package} --no-index || echo cannot"

    printed = (await _run(lab, "exp", script)).splitlines()

    assert printed[0].startswith(f"Your Python environment {env_dir} cannot be used: ")
    assert printed[1] == str(PLATFORM_PYTHON)
    assert printed[-1] == "cannot"
    assert importlib.util.find_spec("tiny") is None


@pytest.mark.parametrize("damaged", [False, True], ids=["intact", "damaged"])
async def test_path_variable_of_a_job_request_reaches_the_job_unchanged(damaged, lab, env_dir):
    if damaged:
        env_dir.mkdir(parents=True)
    printed = await _run(lab, "exp", "echo $PATH", env={"PATH": "/usr/bin:/bin"})

    assert printed.splitlines()[-1] == "/usr/bin:/bin"


PREPARE_AS_ROOT = """
import sys
from pathlib import Path
from runai.hub_service.processes.user_environment import UserEnvironment
prepared = UserEnvironment(Path(sys.argv[1])).prepare_as(int(sys.argv[2]), int(sys.argv[2]))
sys.exit(prepared.note or not prepared.usable)
"""
SESSION_OF_ANA = """
import os, sys
from pathlib import Path
from runai.hub_service.processes.user_environment import UserEnvironment
from user_environments import kernel
environment = UserEnvironment(Path.home())
os.environ.update(environment.variables(os.environ))
os.environ["JUPYTER_PATH"] = environment.jupyter_path("", usable=True)
with kernel() as run:
    run(f"!python {sys.argv[1]} {sys.argv[2]}")
    print(run("import sys, tiny; print(sys.executable, tiny.version)"))
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run programs as users")


@needs_root
async def test_job_of_a_system_user_installs_into_the_users_home(tmp_path):
    if as_user("ana", f"{sys.executable} -c 'import runai.hub_service'").returncode:
        pytest.skip("needs a Python that every account may run")
    with accounts() as unix:
        package, env_dir = wheel(unix.folder), unix.folder / "ana" / FOLDER
        async with local_lab(tmp_path, accounts=unix.directory(tmp_path / "data")) as lab:
            await _run(lab, "first", f"python {PIP_INSTALL} {package}")
            printed = await _run(lab, "second", "command -v python; tiny")

        assert printed.splitlines() == [f"{env_dir}/bin/python", "1.0"]
        assert {path.lstat().st_uid for path in env_dir.rglob("*")} == {UIDS["ana"]}


@needs_root
def test_kernel_of_a_system_user_installs_into_the_users_home():
    with accounts() as unix:
        folder = unix.folder
        platform, home = folder / "platform", folder / "ana"
        subprocess.run([_python_for_all(), "-m", "venv", "--without-pip", platform], check=True)
        (site,) = platform.glob("lib/python*/site-packages")
        paths = [path for path in sys.path if "site-packages" in path]
        (site / "packages.pth").write_text("\n".join([*paths, ""]))
        (site / "runai").symlink_to(Path(hub_service.__file__).parents[1])
        (folder / "session.py").write_text(SESSION_OF_ANA)
        package, python = wheel(folder), platform / "bin/python"

        subprocess.run([python, "-c", PREPARE_AS_ROOT, home, str(UIDS["ana"])], check=True)
        env_dir = home / FOLDER
        owners = {path.lstat().st_uid for path in [env_dir, *env_dir.rglob("*")]}
        variables = f"HOME={home} PYTHONPATH={Path(__file__).parents[2]}"
        result = as_user(
            "ana", f"cd; export {variables}; {python} {folder}/session.py '{PIP_INSTALL}' {package}"
        )

        assert owners == {UIDS["ana"]}
        assert result.stdout == f"{env_dir}/bin/python 1.0\n\n", result.stderr
        assert not [*site.rglob("tiny*")]


def _python_for_all() -> str:
    """Return a Python of this version that every account may run."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (f"{sys.base_prefix}/bin/{name}", f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        if Path(python).exists() and not as_user("ana", f"{python} -c 'import venv'").returncode:
            return python
    pytest.skip(f"no {name} that every account may run")
