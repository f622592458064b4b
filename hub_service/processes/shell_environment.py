"""Variables of an admin's shell that sessions and jobs inherit: proxies, certificates, CUDA, ….

The environments of hub and service also contain secrets, so no other variable is passed on.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

SHARE_PROXY_PASSWORD: Final = "RUNAI_SHARE_PROXY_PASSWORD"  # noqa: S105 - a setting's name
"""`1`: pass on proxy addresses with a user or password, too."""
PATHS: Final = (
    *("CUDA_HOME", "CUDA_PATH"),
    *("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"),
)
"""Variables that name a file or folder; left out for accounts that cannot read it."""
CPU_VARIABLES: Final = (
    *("RUNAI_WORKER_CPUS", "LOKY_MAX_CPU_COUNT", "PYTHON_CPU_COUNT"),
    "OMP_NUM_THREADS",
)
"""Variables that name the CPUs of one worker, the first always; another inherits none of them."""
TORCHRUN_VARIABLES: Final = {
    "PET_NNODES": "WORLD_SIZE",
    "PET_NODE_RANK": "RANK",
    "PET_MASTER_ADDR": "MASTER_ADDR",
    "PET_MASTER_PORT": "MASTER_PORT",
}
"""Variables from which torchrun takes its arguments, each by the one that has its value."""
RENDEZVOUS: Final = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *TORCHRUN_VARIABLES,
    "RUNAI_ELASTIC_DIR",
)
"""Variables by which a process joins the training of a gang or an elastic job."""
_PLAIN: Final = re.compile(r"LANG|LANGUAGE|LC_\w+|LD_LIBRARY_PATH|TZ")
_PROXIES: Final = re.compile(r"(?:all|ftp|https?)_proxy|(?:ALL|FTP|HTTPS?)_PROXY")
_NO_PROXY: Final = ("no_proxy", "NO_PROXY")  # programs differ in the one they prefer
_THIS_MACHINE: Final = ("127.0.0.1", "localhost", "::1")

_UNPARSED: Final = re.compile(r"\[|:.*/")
"""Entries of `no_proxy` that break httpx, and so JupyterLab: IPv6 networks and brackets."""
HAS_PASSWORD: Final = "has a user or password"  # noqa: S105 - a reason
UNUSABLE: Final = "is none that JupyterLab can use here"

Groups = Callable[[], Collection[int]]


def passed_on(environ: Mapping[str, str], *hosts: str) -> dict[str, str]:
    """Return the variables for sessions and jobs; with a proxy, `no_proxy` has `hosts`, too."""
    variables = {
        name: value
        for name, value in environ.items()
        if (name in PATHS and value) or name in _NO_PROXY or _PLAIN.fullmatch(name)
    }
    refused = refused_proxies(environ)
    proxies = {n: v for n, v in environ.items() if _PROXIES.fullmatch(n) and n not in refused}
    if any(proxies.values()):
        given = [variables.get(name, "") for name in _NO_PROXY]
        for name, own, other in zip(_NO_PROXY, given, reversed(given), strict=True):
            variables[name] = _extended(own or other, (*_THIS_MACHINE, *hosts))
    return variables | {name: value and _with_scheme(value) for name, value in proxies.items()}


def python_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that our own Python needs to start a program of ours."""
    return {name: value for name in ("LD_LIBRARY_PATH",) if (value := environ.get(name))}


def without_cpus(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the CPU variables that were set for this process's worker."""
    has_cpus = CPU_VARIABLES[0] in environ
    return {n: v for n, v in environ.items() if not (has_cpus and n in CPU_VARIABLES)}


def refused_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """Return why each proxy's address that is not passed on is left out, without the address."""
    shares_passwords = environ.get(SHARE_PROXY_PASSWORD) == "1"
    refused = {}
    for name, value in environ.items():
        if value and _PROXIES.fullmatch(name):
            if "@" in value and not shares_passwords:
                refused[name] = HAS_PASSWORD
            elif not _can_be_used(_with_scheme(value)):
                refused[name] = UNUSABLE
    return refused


def _with_scheme(address: str) -> str:
    """Return an address as JupyterLab needs it; curl and requests take one without a scheme."""
    return address.strip() if "://" in address else f"http://{address.strip()}"


def _can_be_used(address: str) -> bool:
    """Return True if httpx takes the address of a proxy: JupyterLab does not start with another."""
    try:
        parts = urlsplit(address)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:  # no number of a port
        return False
    socks = {"socks5", "socks5h"} if find_spec("socksio") else set()
    return is_whole and parts.scheme in {"http", "https"} | socks


def beneath(passed: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return `chosen`, completed by variables of the shell.

    A chosen proxy displaces both of its names, since most programs prefer the lower case.

    >>> beneath({"http_proxy": "http://a", "TZ": "UTC"}, {"HTTP_PROXY": "http://b"})
    {'TZ': 'UTC', 'HTTP_PROXY': 'http://b'}
    """
    proxies = {name.swapcase() for name in chosen if name.lower().endswith("_proxy")}
    replaced_names = proxies | chosen.keys()
    return {name: value for name, value in passed.items() if name not in replaced_names} | dict(
        chosen
    )


def readable(passed: Mapping[str, str], uid: int, groups: Groups) -> dict[str, str]:
    """Return the variables without the paths that this account cannot read."""
    return {
        name: value
        for name, value in passed.items()
        if name not in PATHS
        or all(
            _can_read(Path(path), uid, groups)
            for path in (value.split(":") if name == "SSL_CERT_DIR" else [value])
        )
    }


def _extended(no_proxy: str, hosts: Iterable[str]) -> str:
    """Return a `no_proxy` list with these hosts, without entries that break httpx."""
    entries = [entry.strip() for entry in no_proxy.split(",") if not _UNPARSED.search(entry)]
    if "*" in entries:  # no proxy for any host
        return no_proxy
    return ",".join(filter(None, dict.fromkeys([*entries, *hosts])))


def _can_read(path: Path, uid: int, groups: Groups) -> bool:
    """Return True if the file modes let an account read a file or folder."""
    if not path.is_absolute():  # relative to the admin's working directory
        return False
    try:
        resolved = path.resolve(strict=True)
        needed = os.R_OK | os.X_OK if resolved.is_dir() else os.R_OK
        folders = {*path.parents, *resolved.parents}
        return _grants(resolved.stat(), needed, uid, groups) and all(
            _grants(folder.stat(), os.X_OK, uid, groups) for folder in folders
        )
    except OSError:
        return False


def _grants(status: os.stat_result, needed: int, uid: int, groups: Groups) -> bool:
    """Return True if a file's mode grants an account the needed rights."""
    everyone, group, owner = (status.st_mode >> shift & needed == needed for shift in (0, 3, 6))
    if uid in {0, status.st_uid}:
        return owner or uid == 0
    # The account's groups come last: a directory service may have to be asked.
    return everyone or (group and status.st_gid in groups())
