"""The units of examples/systemd start the platform, and the pages show and explain them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from control_plane.certificates import Authority
from runai.embedded.up import up

FOLDER = Path(__file__).parents[2] / "examples/systemd"
UNITS = sorted(FOLDER.glob("*.service"))
DROP_IN = FOLDER / "one-account.conf"
NGINX = FOLDER / "nginx.conf"
PROGRAM = "/opt/runai/bin/runai"


def settings(file: Path) -> list[tuple[str, str, str]]:
    """Return section, name and value of each line."""
    found, section = [], ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.append((section, name, value))
    return found


def command(file: Path) -> list[str]:
    """Return the words of the start command: the last `ExecStart`, as systemd takes it."""
    return shlex.split([value for _, name, value in settings(file) if name == "ExecStart"][-1])


@pytest.mark.parametrize("file", [*UNITS, DROP_IN], ids=lambda file: file.name)
def test_start_command_of_each_systemd_unit_parses_with_its_options(file: Path):
    program, name, *arguments = command(file)

    options = up.make_context("runai up", arguments).params

    assert program == PROGRAM
    assert name == "up"
    assert options["system_users"] is (file != DROP_IN)


def test_systemd_units_differ_only_in_their_start_commands():
    first, *other_settings = [
        [line for line in settings(unit) if line[1] != "ExecStart"] for unit in UNITS
    ]

    assert len(other_settings) == 2
    assert other_settings == [first, first]


def test_systemd_unit_stop_leaves_jobs_running_and_a_next_start_possible():
    unit_settings = {name: value for _, name, value in settings(UNITS[0])}

    assert unit_settings["KillMode"] == "process"
    assert unit_settings["OOMPolicy"] == "continue"
    # systemd puts no process into a group that has controllers for groups below it (EBUSY).
    assert f'"-{" -".join(unit_settings["Delegate"].split())}"' in unit_settings["ExecStopPost"]


@pytest.mark.parametrize("file", [*UNITS, DROP_IN, NGINX], ids=lambda file: file.name)
def test_systemd_example_is_included_in_the_page_that_explains_its_paths(
    file: Path, checkout: Path
):
    page = (checkout / "docs/operations.md").read_text(encoding="utf-8")
    tutorial = (checkout / "docs/tutorials/admin.md").read_text(encoding="utf-8")
    lines = "\n".join(re.sub("#.*", "", line) for line in file.read_text().splitlines())
    paths = {path.rstrip(";") for path in re.findall(r"(?<=[ =])/[a-z][\w./]+", lines)}

    assert f"```{{literalinclude}} ../examples/systemd/{file.name}\n" in page
    admin_paths = {path for path in paths if not path.startswith(("/bin/", "/sys/"))}
    assert {path for path in admin_paths if path not in page + tutorial} == set()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze here")
@pytest.mark.parametrize("drop_in", [False, True], ids=["root", "one account"])
@pytest.mark.parametrize("unit", UNITS, ids=lambda file: file.stem)
def test_systemd_example_units_pass_systemd_analyze(unit: Path, drop_in: bool, tmp_path: Path):
    drop_in_folder = tmp_path / "runai.service.d"
    drop_in_folder.mkdir()
    drop_in_copy = drop_in_folder / DROP_IN.name
    for file, copy in ((unit, tmp_path / "runai.service"), (DROP_IN, drop_in_copy)):
        if drop_in or file is unit:
            # systemd-analyze checks that the program and the account exist.
            text = file.read_text().replace(PROGRAM, "/bin/true").replace("=runai", "=root")
            copy.write_text(text)

    completed = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "runai.service"],
        capture_output=True,
        text=True,
        check=False,
    )

    # systemd ignores a setting that it does not know: this one came with 254.
    lines = [line for line in completed.stderr.splitlines() if "'DelegateSubgroup'" not in line]
    assert lines == []
    assert completed.returncode == 0


@pytest.mark.skipif(not shutil.which("nginx"), reason="no nginx here")
def test_nginx_example_configuration_passes_the_nginx_check(tmp_path: Path):
    Authority().server(["gpu.example.org"], []).write(tmp_path, "gpu")
    text = NGINX.read_text().replace("/etc/ssl/gpu", f"{tmp_path}/gpu")
    main_config = tmp_path / "nginx.conf"
    main_config.write_text(f"pid {tmp_path}/pid; events {{}} http {{ {text} }}")

    completed = subprocess.run(
        ["nginx", "-t", "-q", "-c", main_config, "-e", "stderr"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert completed.stderr == ""
    assert completed.returncode == 0
