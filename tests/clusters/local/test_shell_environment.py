"""Variables of an admin's shell: which of them sessions and jobs inherit, and for which account."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from runai.hub_service.processes.shell_environment import (
    beneath,
    passed_on,
    readable,
    refused_proxies,
)
from runai.hub_service.processes.user_account import UnixAccount
from runai.spawner.local import RunaiLocalSpawner
from unix_accounts import open_folder

HUB = "gpu.example.org"
LOCAL_HOSTS = "127.0.0.1,localhost,::1"
NO_PROXY = dict.fromkeys(("no_proxy", "NO_PROXY"), f"{LOCAL_HOSTS},{HUB}")
PROXY = "http://proxy:3128"
BAD_PROXIES = ("socks4://proxy:1", "ftp://proxy", "http://proxy:port", "http://", "://", "//proxy")
PROXIES_WITH_CREDENTIALS = ("http://ana:hunter2@proxy:3128", "ana@proxy", "https://ana@[::1]:1080")
OWNER, MEMBER, OTHER = 54_321, 54_322, 54_323
GROUP = 54_300
GROUPS: dict[int, list[int]] = {OWNER: [], MEMBER: [GROUP], OTHER: []}

SHELLS = {
    "no variable": ({}, {}),
    "secrets": ({"RUNAI_HUB_TOKEN": "s", "MY_PASSWORD": "s", "MY_HTTP_PROXY": PROXY}, {}),
    "own folders": ({"HOME": "/root", "TMPDIR": "/root/tmp", "VIRTUAL_ENV": "/v"}, {}),
    "time zone": ({"TZ": "UTC"}, {"TZ": "UTC"}),
    "locale": ({"LANG": "C", "LC_TIME": "C"}, {"LANG": "C", "LC_TIME": "C"}),
    "CUDA": (
        {"CUDA_HOME": "/c", "CUDA_PATH": "/c", "LD_LIBRARY_PATH": "/c"},
        {"CUDA_HOME": "/c", "CUDA_PATH": "/c", "LD_LIBRARY_PATH": "/c"},
    ),
    "certificates": (
        {"SSL_CERT_FILE": "/a", "REQUESTS_CA_BUNDLE": "/b", "SSL_CERT_DIR": ""},
        {"SSL_CERT_FILE": "/a", "REQUESTS_CA_BUNDLE": "/b"},
    ),
    "proxy": ({"http_proxy": PROXY}, {"http_proxy": PROXY, **NO_PROXY}),
    "proxy in capitals": ({"HTTPS_PROXY": PROXY}, {"HTTPS_PROXY": PROXY, **NO_PROXY}),
    "proxy for all": ({"ALL_PROXY": PROXY}, {"ALL_PROXY": PROXY, **NO_PROXY}),
    "empty proxy": ({"http_proxy": ""}, {"http_proxy": ""}),
    "no proxy": ({"no_proxy": "a.org"}, {"no_proxy": "a.org"}),
    "proxy and exceptions": (
        {"http_proxy": PROXY, "NO_PROXY": "a.org, ::1,"},
        {"http_proxy": PROXY} | dict.fromkeys(NO_PROXY, f"a.org,::1,127.0.0.1,localhost,{HUB}"),
    ),
    "exceptions that break JupyterLab": (
        {"http_proxy": PROXY, "no_proxy": "fd00::/8,[fd00::1],10.0.0.0/8"},
        {"http_proxy": PROXY} | dict.fromkeys(NO_PROXY, f"10.0.0.0/8,{LOCAL_HOSTS},{HUB}"),
    ),
    "proxy without a scheme": ({"http_proxy": "proxy:3128 "}, {"http_proxy": PROXY, **NO_PROXY}),
    "proxy for no host": (
        {"http_proxy": PROXY, "no_proxy": "*"},
        {"http_proxy": PROXY, **dict.fromkeys(NO_PROXY, "*")},
    ),
}


@pytest.mark.parametrize(("shell", "expected"), SHELLS.values(), ids=SHELLS)
def test_shell_variables_passed_on_are_proxies_certificates_time_zone_and_cuda(
    shell: dict[str, str], expected: dict[str, str]
):
    passed = passed_on(shell, HUB)

    assert passed == expected
    assert passed_on(passed, HUB) == passed


@pytest.mark.parametrize("address", PROXIES_WITH_CREDENTIALS)
@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "all_proxy"])
def test_proxy_with_credentials_is_passed_on_only_if_a_setting_allows_it(name: str, address: str):
    shell = {name: address, "TZ": "UTC"}

    assert passed_on(shell, HUB) == {"TZ": "UTC"}
    assert passed_on({**shell, "RUNAI_SHARE_PROXY_PASSWORD": ""}, HUB) == {"TZ": "UTC"}
    shared = passed_on({**shell, "RUNAI_SHARE_PROXY_PASSWORD": "1"}, HUB)
    assert shared.keys() == {*shell, *NO_PROXY}
    assert shared[name].endswith(address)


@pytest.mark.parametrize("address", BAD_PROXIES)
def test_proxy_that_jupyterlab_cannot_use_is_not_passed_on(address: str):
    assert passed_on({"ALL_PROXY": address}, HUB) == {}
    assert refused_proxies({"ALL_PROXY": address}).keys() == {"ALL_PROXY"}


@pytest.mark.tier("all")  # seconds of imports
def test_jupyterlab_loads_with_the_passed_variables_only():
    shell = {
        "http_proxy": "proxy:3128",
        "ALL_PROXY": "socks5://proxy:1080",
        "no_proxy": "fd00::/8,[::1]",
    }
    # The module of JupyterLab that reads proxies, and a client such as it makes.
    command = [sys.executable, "-c", "import jupyterlab.extensions.pypi, httpx; httpx.Client()"]

    def loads(env: dict[str, str]) -> bool:
        return subprocess.run(command, env=env, check=False, capture_output=True).returncode == 0

    assert not loads(shell)
    assert loads(passed_on(shell, HUB))


@pytest.mark.parametrize("is_installed", [True, False])
def test_socks_proxy_is_passed_on_where_its_package_is_installed(
    *, is_installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert importlib.util.find_spec("socksio") is None, "an installed socksio hides the case"
    if is_installed:
        (tmp_path / "socksio.py").touch()
        monkeypatch.syspath_prepend(tmp_path)

    assert ("ALL_PROXY" in passed_on({"ALL_PROXY": "socks5h://proxy:1080"})) == is_installed


def test_proxy_exceptions_are_understood_by_an_http_client(monkeypatch: pytest.MonkeyPatch):
    for name, value in passed_on({"ALL_PROXY": "http://127.0.0.1:9"}, HUB).items():
        monkeypatch.setenv(name, value)
    with httpx.Client() as client:
        proxied = client._transport_for_url(httpx.URL("http://other.example.org"))
        for host in ("127.0.0.1", "localhost", "[::1]", HUB):
            assert client._transport_for_url(httpx.URL(f"http://{host}:8000")) is client._transport

    assert proxied is not client._transport


@pytest.mark.parametrize(
    ("job_variables", "expected"),
    [
        pytest.param({}, {"https_proxy": "a", "TZ": "UTC"}, id="no variable"),
        pytest.param({"TZ": "x"}, {"https_proxy": "a", "TZ": "x"}, id="same name"),
        pytest.param({"tz": "x"}, {"https_proxy": "a", "TZ": "UTC", "tz": "x"}, id="other name"),
        pytest.param({"HTTPS_PROXY": "b"}, {"HTTPS_PROXY": "b", "TZ": "UTC"}, id="proxy"),
        pytest.param({"HTTPS_PROXY": ""}, {"HTTPS_PROXY": "", "TZ": "UTC"}, id="without proxy"),
    ],
)
def test_variable_of_a_job_request_overrides_that_of_the_admins_shell(
    job_variables: dict[str, str], expected: dict[str, str]
):
    assert beneath({"https_proxy": "a", "TZ": "UTC"}, job_variables) == expected


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as folder:
        (folder / "inner").mkdir()
        (folder / "inner/ca.pem").touch()
        yield folder


# Modes of the folder and of the file, and the accounts that can read the file.
FILES = {
    "readable by all": (0o755, 0o644, {OWNER, MEMBER, OTHER}),
    "readable by the owner": (0o755, 0o600, {OWNER}),
    "readable by the group": (0o755, 0o640, {OWNER, MEMBER}),
    "unreadable": (0o755, 0o000, set()),
    "folder open to the owner": (0o700, 0o644, {OWNER}),
    "folder open to the group": (0o710, 0o644, {OWNER, MEMBER}),
    "folder that cannot be listed": (0o711, 0o644, {OWNER, MEMBER, OTHER}),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to other accounts")
@pytest.mark.parametrize(("folder_mode", "file_mode", "readers"), FILES.values(), ids=FILES)
def test_certificate_file_variable_is_omitted_for_accounts_that_cannot_read_the_file(
    folder: Path, folder_mode: int, file_mode: int, readers: set[int]
):
    path = folder / "inner/ca.pem"
    for each_path, mode in ((path, file_mode), (path.parent, folder_mode)):
        os.chown(each_path, OWNER, GROUP)
        each_path.chmod(mode)

    passed = {"SSL_CERT_FILE": str(path), "TZ": "UTC"}
    passed_by_uid = {uid: readable(passed, uid, partial(GROUPS.__getitem__, uid)) for uid in GROUPS}

    assert {uid for uid in GROUPS if passed_by_uid[uid] == passed} == readers
    assert {uid for uid in GROUPS if passed_by_uid[uid] == {"TZ": "UTC"}} == GROUPS.keys() - readers
    assert readable(passed, 0, list) == passed


@pytest.mark.parametrize(
    ("variable", "is_read"),
    [
        pytest.param("REQUESTS_CA_BUNDLE={}/inner/ca.pem", True, id="file"),
        pytest.param("SSL_CERT_DIR={}:{}/inner", True, id="folders"),
        pytest.param("SSL_CERT_DIR={}:{}/none", False, id="one folder is missing"),
        pytest.param("CUDA_HOME={}/none", False, id="folder is missing"),
        pytest.param("CURL_CA_BUNDLE=inner/ca.pem", False, id="relative path"),
        pytest.param("SSL_CERT_FILE={}/private/link", False, id="link in a private folder"),
        pytest.param("LD_LIBRARY_PATH=/none", True, id="search path"),
    ],
)
def test_shell_variable_with_a_path_is_passed_on_if_the_account_can_read_the_path(
    folder: Path, variable: str, *, is_read: bool
):
    (folder / "private").mkdir(mode=0o700)
    (folder / "private/link").symlink_to(folder / "inner/ca.pem")
    name, _, value = variable.replace("{}", str(folder)).partition("=")

    assert (name in readable({name: value}, OTHER, list)) == is_read


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_session_and_job_get_certificate_variables_of_files_their_account_can_read(
    folder: Path, mode: int, monkeypatch: pytest.MonkeyPatch
):
    bundle = folder / "inner/ca.pem"
    bundle.chmod(mode)
    shell = {"SSL_CERT_FILE": str(bundle), "TZ": "UTC"}
    account = UnixAccount("pat", folder, OTHER, OTHER, groups=(OTHER,))
    for name, value in shell.items():
        monkeypatch.setenv(name, value)
    spawner = RunaiLocalSpawner(
        user=SimpleNamespace(name="pat"), system_users=True, shell_environment=shell
    )

    spawner._start_account = account

    job = account.environment()
    session = spawner.inherited_environment()

    assert session == (shell if mode == 0o644 else {"TZ": "UTC"})
    assert {name: value for name, value in job.items() if name in shell} == session
