"""Libraries of a notebook go into the user's own environment, over the platform's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import requires
from importlib.metadata import version as installed
from pathlib import Path
from types import SimpleNamespace

import pytest
from jupyter_core.paths import jupyter_path

from runai.hub_service.processes.user_environment import FOLDER, Prepared, UserEnvironment
from runai.spawner.local import RunaiLocalSpawner, terminal_command
from user_environments import kernel, wheel

PIP_OPTIONS = "--no-index --no-deps --disable-pip-version-check -q"


@pytest.fixture
def spawner(tmp_path: Path) -> RunaiLocalSpawner:
    (tmp_path / "users/Ana M").mkdir(parents=True)
    return RunaiLocalSpawner(
        user=SimpleNamespace(name="Ana M"), users_directory=str(tmp_path / "users")
    )


@pytest.fixture
def root(spawner: RunaiLocalSpawner) -> Path:
    return spawner._home / FOLDER


@pytest.fixture
def serve(spawner, monkeypatch):
    """Take over the environment of the user's next server; return the sentence, if any."""
    hub_env = {**os.environ}
    monkeypatch.setattr("jupyterhub.spawner.LocalProcessSpawner.get_env", lambda _self: {**hub_env})

    def serve() -> str:
        spawner._python = spawner._prepare_python()
        server = spawner.get_env()
        for name in hub_env.keys() | os.environ.keys() | server.keys():
            if name in server:
                monkeypatch.setenv(name, server[name])
            else:
                monkeypatch.delenv(name, raising=False)
        return str(spawner._python.note)

    return serve


def platform_has(module: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return not subprocess.run([sys.executable, "-c", code], check=False).returncode


@pytest.mark.parametrize(
    "pip", [pytest.param("%pip", marks=pytest.mark.tier("test")), "!pip", "!python -m pip"]
)
def test_pip_installs_a_library_into_the_users_environment_only(pip, serve, root, tmp_path):
    package = wheel(tmp_path)
    serve()
    with kernel() as run:
        assert run("import sys; print(sys.executable)") == f"{root}/bin/python\n"
        run(f"{pip} install {PIP_OPTIONS} '{package}'")
        assert run("import tiny; print(tiny.version, tiny.__file__)").split()[0] == "1.0"
        assert run("!tiny") == "1.0\n"
        assert not platform_has("tiny")
        assert str(root / "share/jupyter/labextensions") in jupyter_path("labextensions")
        assert (root / "share/jupyter/labextensions/tiny").exists()

        run(f"{pip} uninstall -y -q tiny")
        assert "No module named 'tiny'" in run("!python -c 'import tiny'")


def test_user_version_of_a_platform_library_is_imported_until_removed(serve, tmp_path):
    import httpx

    package = wheel(tmp_path, "httpx", "0.1")
    serve()
    with kernel() as run:
        run(f"%pip install {PIP_OPTIONS} '{package}'")
        assert run("import httpx; print(httpx.version)") == "0.1\n"
        run("%pip uninstall -y -q httpx")
        output = run("!python -c 'import httpx; print(httpx.__version__)'")

    assert output == f"{httpx.__version__}\n"
    assert platform_has("httpx")


def test_platform_kernel_can_repair_a_broken_user_environment(serve, root, tmp_path):
    broken = wheel(tmp_path, "ipykernel_launcher", "1.0", "raise SystemExit")
    serve()
    with kernel("python3-platform") as run:
        assert run("import sys; print(sys.executable)") == f"{sys.executable}\n"
        run(f"%pip install {PIP_OPTIONS} '{broken}'")
        assert len([*root.glob("lib/*/site-packages/ipykernel_launcher.py")]) == 1
        with pytest.raises(RuntimeError, match="Kernel died"), kernel():
            pass
        run("%pip uninstall -y -q ipykernel_launcher")
        with kernel() as run_in_user_kernel:
            assert run_in_user_kernel("print(1)") == "1\n"


def test_kernelspec_installed_by_a_library_replaces_no_kernel(serve, root, tmp_path):
    serve()
    foreign_kernelspec = root / "share/jupyter/kernels/python3"  # as the wheel of ipykernel has it
    foreign_kernelspec.mkdir(parents=True)
    (foreign_kernelspec / "kernel.json").write_text(
        '{"argv": ["python"], "display_name": "Python 3"}'
    )
    with kernel() as run:
        assert run("import sys; print(sys.prefix)") == f"{root}\n"


def test_platform_programs_run_on_the_python_of_the_user_environment(serve, root, tmp_path):
    serve()
    (tmp_path / "where.py").write_text("import sys; print(sys.executable)")

    def output_of(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert output_of("ipython", str(tmp_path / "where.py")) == f"{root}/bin/python\n"
    assert output_of("python", str(tmp_path / "where.py")) == f"{root}/bin/python\n"
    platform_program = Path(sys.executable).with_name("runai")
    assert output_of("sh", "-c", "command -v runai") == f"{root}/runai/bin/runai\n"
    assert Path(root, "runai/bin/runai").samefile(platform_program)
    assert {path.name for path in root.glob("runai/bin/*")} == {"runai"}


@pytest.mark.parametrize(
    ("name", "version", "text", "sentence"),
    [
        ("pydantic", "1.10", "", "pydantic 1.10 is too old, {needed} is needed"),
        (
            "pydantic_core",
            "0.1",
            "raise SystemError('it does not fit pydantic')",
            "pydantic-core 0.1 is older than the platform's {platform}",
        ),
    ],
    ids=["direct dependency", "indirect dependency"],
)
def test_library_too_old_for_the_magics_is_named_with_its_uninstall_command(
    name, version, text, sentence, serve, tmp_path
):
    serve()
    with kernel() as run:
        run(f"%pip install {PIP_OPTIONS} '{wheel(tmp_path, name, version, text)}'")
    with kernel() as run:
        assert run("1 + 1; print('the kernel starts')") == "the kernel starts\n"
        output = run("%load_ext runai.widgets")

        needed = next(
            requirement
            for requirement in requires("jupyter-runai") or ()
            if requirement.startswith("pydantic>=")
        )
        problem = sentence.format(needed=needed.partition(">=")[2], platform=installed(name))
        command = f"%pip uninstall -y {name.replace('_', '-')}"
        remedy = f"Run {command} and restart the kernel."
        assert output == f"UsageError: runai.widgets cannot be loaded: {problem}. {remedy}\n"
        run(command)
    with kernel() as run:
        assert run("%load_ext runai.widgets") == ""


def test_ipython_profile_with_a_broken_startup_file_still_has_the_magics(
    serve, tmp_path, monkeypatch
):
    serve()
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    profile = tmp_path / "profile_default"
    (profile / "startup").mkdir(parents=True)
    (profile / "startup/00-broken.py").write_text("import no_such_module\n")
    extensions = "['autoreload', 'runai.widgets']"
    (profile / "ipython_config.py").write_text(
        f"c = get_config()\nc.InteractiveShellApp.extensions = {extensions}\n"
    )

    with kernel() as run:
        run("%autoreload 2")
        output = run("print('runai_submit' in get_ipython().magics_manager.magics['line'])")
        assert output == "True\n"


# -- an environment that cannot be used, or was made for something else ----------------------------


def remove_cfg(root: Path) -> None:
    (root / "pyvenv.cfg").unlink()


def break_link(root: Path) -> None:
    (root / "bin/python3").unlink()
    (root / "bin/python").unlink(missing_ok=True)
    (root / "bin/python").symlink_to("/no/python")


def remove_libraries(root: Path) -> None:
    shutil.rmtree(root / "lib")


def replace_by_file(root: Path) -> None:
    shutil.rmtree(root)
    root.write_text("")


def replace_by_link(root: Path) -> None:
    shutil.rmtree(root)
    root.symlink_to("/no/folder")


@pytest.mark.parametrize(
    "damage",
    [
        remove_cfg,
        break_link,
        remove_libraries,
        replace_by_file,
        replace_by_link,
    ],
)
def test_kernels_use_the_platforms_python_if_the_user_environment_is_damaged(
    damage, serve, root, tmp_path, spawner
):
    package = wheel(tmp_path)
    serve()
    damage(root)
    note = serve()

    assert note.startswith(f"Your Python environment {root} cannot be used: ")
    assert f"Begin a new one: mv '{root}' '{root}.broken', then start again." in note
    with kernel() as run:
        assert run("import sys; print(sys.executable)") == f"{note}\n{sys.executable}\n"
        assert run("1") == ""  # the note appears once
        for pip in ("%pip", "!pip", "!python -m pip"):
            run(f"{pip} install {PIP_OPTIONS} '{package}'")
    assert not platform_has("tiny")
    terminal = terminal_command("/bin/sh", UserEnvironment(spawner._home).path(usable=False))
    terminal_process = subprocess.run(
        terminal, input="command -v python", capture_output=True, text=True, check=True
    )
    assert terminal_process.stdout == f"{note}\n{Path(sys.executable).with_name('python')}\n"

    root.rename(f"{root}.broken")
    assert serve() == ""
    with kernel() as run:
        assert run("import sys; print(sys.prefix)") == f"{root}\n"


def test_kernels_use_the_platforms_python_if_the_user_environment_is_missing(serve, root):
    shutil.rmtree(root.parent)
    note = serve()

    assert note.startswith(f"Your Python environment {root} cannot be used: no such file")
    assert "Make room in your home, then start again." in note
    with kernel() as run:
        assert run("import sys; print(sys.executable)") == f"{note}\n{sys.executable}\n"


@pytest.mark.parametrize(
    ("key", "recorded", "reason"),
    [
        ("version", "3.9", "it was made for Python 3.9"),
        ("runai-platform", "/old", "it was made for the platform in /old"),
        ("runai-path", "/moved", "it was made as /moved"),
        ("home", "/old/bin", "it was made for the Python in /old/bin"),
    ],
)
def test_outdated_user_environment_is_renamed_and_replaced(
    key, recorded, reason, serve, root, tmp_path
):
    serve()
    with kernel() as run:
        run(f"%pip install {PIP_OPTIONS} '{wheel(tmp_path)}'")
    cfg = root / "pyvenv.cfg"
    current_cfg = cfg.read_text()
    cfg.write_text(re.sub(f"(?m)^{key} = .*", f"{key} = {recorded}", current_cfg))
    outdated_cfg = cfg.read_text()

    note = serve()

    earlier_root = root.with_name(f"{FOLDER}.1")
    assert cfg.read_text() == current_cfg
    assert (earlier_root / "pyvenv.cfg").read_text() == outdated_cfg
    assert f"made anew, empty: {reason}. The earlier one is {earlier_root};" in note
    with kernel() as run:
        assert run("import tiny") == f"{note}\nNo module named 'tiny'"
        command = note.rpartition(": ")[2]
        run(f"!{command} {PIP_OPTIONS} --find-links '{tmp_path}'")
        assert run("import tiny; print(tiny.version)") == "1.0\n"
    assert serve() == ""  # the libraries are back


def test_outdated_user_environment_is_not_replaced_if_the_disk_is_full(serve, root, spawner):
    serve()
    cfg = root / "pyvenv.cfg"
    cfg.write_text(cfg.read_text().replace("version = 3.", "version = 2."))
    command = ["prlimit", "--fsize=0", *UserEnvironment(spawner._home).command]
    process = subprocess.run(command, capture_output=True, text=True, check=False)

    assert process.returncode == 1
    assert f"Your Python environment {root} cannot be used: file too large." in process.stdout
    assert [path.name for path in root.parent.iterdir()] == [FOLDER]


def test_concurrent_server_starts_create_a_single_user_environment(root, spawner):
    def prepare_ten() -> set[Prepared]:
        with ThreadPoolExecutor(10) as pool:
            return {*pool.map(lambda _: spawner._prepare_python(), range(10))}

    assert prepare_ten() == {Prepared(usable=True)}
    (root / "pyvenv.cfg").write_text((root / "pyvenv.cfg").read_text().replace("= 3.", "= 2."))
    assert prepare_ten() == {Prepared(usable=True)}
    assert {path.name for path in root.parent.iterdir()} == {FOLDER, f"{FOLDER}.1"}
