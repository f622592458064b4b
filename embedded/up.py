"""`runai up`: prepare a data directory, then become JupyterHub.

It parses the options, creates directory, secrets and first accounts, prints where they are, and
executes the hub in its own process: no supervisor, and Ctrl-C reaches the hub. It does not import
JupyterHub, which takes 2.4 s of CPU: usage errors must appear at once.
"""

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from runai.embedded.accounts.accounts import Accounts
from runai.embedded.directory import DataDirectory
from runai.embedded.proxy.caddy_process import CaddyProcess
from runai.embedded.proxy.public_address import (
    HTTP_PORT,
    HTTPS_PORT,
    base_url,
    check_can_listen,
    domain,
    public_address,
)
from runai.embedded.settings import ANSWERS_WITHIN_S, DEFAULT_PORT, Settings
from runai.hub_service.clusters.local.place import check_place
from runai.hub_service.clusters.local.store.cluster_lock import check_is_whole
from runai.hub_service.processes.user_account import expanded
from runai.hub_service.wire.errors import Forbidden, InvalidRequest, RunaiError, Unavailable

DEFAULT_DATA_DIR = Path("~/.local/share/runai")
MOST_GPUS = 1024
MOST_SECONDS = 86_400
NEEDED = ("jupyterhub", "jupyterlab", "uvicorn")  # a few of the extra `hub`


def parse(arguments: Sequence[str]) -> Settings:
    """Parse the options.

    Raises:
        InvalidRequest: a value is not valid.
        SystemExit: an option is unknown, or `--help` was given.
    """
    parser = argparse.ArgumentParser(
        prog="runai up",
        description="Start the GPU platform on this machine: JupyterHub, scheduler, accounts.",
    )
    parser.add_argument(
        "--gpus",
        default="auto",
        metavar="auto|N",
        help="use the machine's GPUs (auto, the default; simulated ones when there are none),"
        " or only the first N",
    )
    parser.add_argument("--simulate", metavar="N", help="N simulated GPUs instead of real ones")
    parser.add_argument(
        "--port", help=f"port to listen on (default {DEFAULT_PORT}; with --domain {HTTPS_PORT})"
    )
    parser.add_argument(
        "--ip",
        metavar="ADDRESS",
        help="address to listen on (default 127.0.0.1; with --domain every address, 0.0.0.0)",
    )
    parser.add_argument(
        "--base-url", default="/", metavar="PATH", help="path of everything (default /)"
    )
    secure = parser.add_mutually_exclusive_group()
    secure.add_argument(
        "--domain",
        metavar="NAME",
        help="public name of this machine: gets and renews a certificate for it (ACME, from Let's"
        f" Encrypt), on ports {HTTPS_PORT} and {HTTP_PORT}",
    )
    secure.add_argument(
        "--tls-cert", metavar="FILE", help="certificate of this machine (PEM); needs --tls-key"
    )
    secure.add_argument(
        "--tls-internal",
        action="store_true",
        help="https by an authority of its own, for localhost and this machine",
    )
    parser.add_argument("--tls-key", metavar="FILE", help="key of --tls-cert (PEM)")
    parser.add_argument(
        "--data-dir",
        default=str(DEFAULT_DATA_DIR),
        metavar="DIR",
        help=f"accounts, homes, jobs and history (default {DEFAULT_DATA_DIR})",
    )
    parser.add_argument(
        "--projects", metavar="FILE", help="projects.yaml to read at each start of the service"
    )
    parser.add_argument("--policy", metavar="FILE", help="the scheduler's policy (docs/policy.md)")
    parser.add_argument(
        "--system-users",
        action="store_true",
        help="log in with Unix accounts (PAM); sessions and jobs run as them. Needs root",
    )
    parser.add_argument(
        "--gpu-sharing",
        default="timeslice",
        choices=("timeslice", "mps"),
        help="how workloads on one GPU take turns: time-sliced (the default), or by NVIDIA's MPS,"
        " which is faster for small work and lets one fault end all of them",
    )
    options = parser.parse_args(arguments)
    projects = _file("--projects", options.projects, "a projects.yaml")
    policy = _file("--policy", options.policy, "a file with the scheduler's policy")
    cert = _file("--tls-cert", options.tls_cert, "a certificate in PEM form")
    key = _file("--tls-key", options.tls_key, "the certificate's key in PEM form")
    if (cert is None) != (key is None):
        raise InvalidRequest(
            f"{'--tls-key' if key else '--tls-cert'} is not enough.",
            hint="A certificate and its key belong together: --tls-cert FILE --tls-key FILE.",
        )
    port = options.port or str(HTTPS_PORT if options.domain else DEFAULT_PORT)
    ip = ("" if options.domain else "127.0.0.1") if options.ip is None else options.ip
    gpus = options.gpus
    return Settings(
        data_dir=expanded(options.data_dir).absolute(),
        ip=ip,
        port=_number("--port", port, 1, 65535),
        base_url=base_url("--base-url", options.base_url),
        domain=domain("--domain", options.domain) if options.domain else "",
        tls_cert=cert,
        tls_key=key,
        tls_internal=options.tls_internal,
        gpus=None if gpus == "auto" else _number("--gpus", gpus, 0, MOST_GPUS),
        simulate=None
        if options.simulate is None
        else _number("--simulate", options.simulate, 0, MOST_GPUS),
        projects=projects,
        policy=policy,
        system_users=options.system_users,
        gpu_sharing=options.gpu_sharing,
        answers_within=_number(
            "RUNAI_ANSWERS_WITHIN",
            os.environ.get("RUNAI_ANSWERS_WITHIN") or str(ANSWERS_WITHIN_S),
            0,
            MOST_SECONDS,
        ),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the platform; return the exit status only on failure."""
    try:
        settings = parse(sys.argv[1:] if arguments is None else arguments)
        _start(settings)
    except RunaiError as error:
        sys.stderr.write(f"runai up: {error}\n")
    return 1


def _start(settings: Settings) -> None:
    if settings.system_users and os.geteuid() != 0:
        raise Forbidden(
            "--system-users needs root: sessions run as their users' Unix accounts.",
            hint="Start it as root, or leave the option out.",
        )
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise Unavailable(
            f"The platform needs {' and '.join(missing)} beside the client.",
            hint="Install it: pip install 'jupyter-runai[hub]'",
            code="not_installed",
        )
    directory = DataDirectory(settings.data_dir)
    for path in directory.close_to_others():
        print(f"{path} could be written by others; it is closed to them now.")
    address = public_address(settings, {})
    directory.lock(f"{address.url} (process {os.getpid()})")
    check_is_whole(directory.root)  # before creating files in it
    check_place(directory.root)  # before a hub that would end the original's sessions
    directory.prepare(system_users=settings.system_users)
    # The admin's own file may set another port, which the hub checks.
    if not directory.own_config.exists():
        proxy = CaddyProcess(directory.proxy)
        for port in (address.port, *([HTTP_PORT] if settings.domain else [])):
            if not proxy.listens_on(port):
                check_can_listen(address.ip, port)
    print(f"Starting the platform in {settings.data_dir} …")
    if settings.system_users:
        print("Log in with a Unix account of this machine.")
    else:
        _print_accounts(directory)
    sys.stdout.flush()
    _become_hub(settings, directory)


def _print_accounts(directory: DataDirectory) -> None:
    made = Accounts(directory).make_first()
    if not made:
        known = directory.passwords
        print(f"Accounts: the generated passwords are in {known}." if known.exists() else "")
        return
    print("Accounts, made just now:\n")
    for name, password in made.items():
        print(f"    {name:<8}{password}")
    print(f"\nThe passwords are kept in {directory.passwords}; `runai user` changes them.")


def _become_hub(settings: Settings, directory: DataDirectory) -> None:
    """Exec the hub with output to the log, and the terminal on an extra descriptor."""
    terminal = os.dup(1)
    os.set_inheritable(terminal, True)  # the hub writes there
    log = directory.open_log()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.umask(0o077)  # private files of hub and service; sessions reset it
    os.chdir(settings.data_dir)  # JupyterHub looks for a jupyterhub_config.py here
    environment = {
        **os.environ,
        **settings.environment(),
        "RUNAI_TERMINAL": str(terminal),
        # `jupyter`, `pip` and `runai` of this installation, in sessions too.
        "PATH": os.pathsep.join(
            dict.fromkeys([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        ),
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "runai.embedded.hub"]
    os.execve(sys.executable, command, environment)  # noqa: S606 - our own interpreter, no shell


def _file(option: str, text: str | None, what: str) -> Path | None:
    path = expanded(text).absolute() if text else None
    if path is not None and not path.is_file():
        raise InvalidRequest(f"There is no file {path}.", hint=f"{option} names {what}.")
    return path


def _number(option: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise InvalidRequest(
            f"{option} {text} is not possible.", hint=f"Use a whole number from {least} to {most}."
        )
    return int(text)
