"""`runai up`: prepare a data directory, then become JupyterHub.

It parses the options, creates directory, secrets and first accounts, prints where they are, and
executes the hub in its own process: no supervisor, and Ctrl-C reaches the hub. It does not import
JupyterHub, which takes 2.4 s of CPU: usage errors must appear at once.
"""

import importlib.util
import os
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import click

from runai.embedded.accounts.accounts import Accounts
from runai.embedded.backup.earlier_queue import set_queue_aside
from runai.embedded.data_directory import DataDirectory
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
from runai.hub_service.clusters.local.data_dir_checks import check_place, check_version
from runai.hub_service.clusters.local.store.cluster_lock import check_is_whole
from runai.hub_service.processes.accounts.home_folder import expanded
from runai.hub_service.processes.requirements import in_words, install_command, unmet
from runai.hub_service.wire.errors import Forbidden, InvalidRequest, RunaiError, Unavailable

DEFAULT_DATA_DIR = Path("~/.local/share/runai")
MOST_GPUS = 1024
MOST_SECONDS = 86_400
NEEDED = ("jupyterhub", "jupyterlab", "uvicorn")  # a few of the extra `hub`


_SECURE: Final = ("domain", "tls_cert", "tls_internal")
"""Options that exclude one another."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--gpus",
    default="auto",
    show_default=True,
    metavar="N|auto",
    help="Use the first N GPUs of this machine (auto: all, or simulated ones without any).",
)
@click.option("--simulate", metavar="N", help="Simulate this many GPUs instead of using real ones.")
@click.option(
    "--port",
    metavar="N",
    help=f"Listen on this port. Default: {DEFAULT_PORT}, with --domain {HTTPS_PORT}.",
)
@click.option(
    "--ip",
    metavar="ADDRESS",
    help="Listen on this address. Default: 127.0.0.1, with --domain every address (0.0.0.0).",
)
@click.option(
    "--base-url",
    default="/",
    show_default=True,
    metavar="PATH",
    help="Serve everything below this path.",
)
@click.option(
    "--domain",
    metavar="NAME",
    help="Serve https at this public name, with a certificate from Let's Encrypt (ACME), on ports"
    f" {HTTPS_PORT} and {HTTP_PORT}.",
)
@click.option(
    "--tls-cert", metavar="FILE", help="Serve https with this certificate (PEM). Needs --tls-key."
)
@click.option(
    "--tls-internal",
    is_flag=True,
    help="Serve https with the platform's own authority, for localhost and this machine.",
)
@click.option("--tls-key", metavar="FILE", help="Use this key of the certificate (PEM).")
@click.option(
    "--data-dir",
    default=str(DEFAULT_DATA_DIR),
    show_default=True,
    metavar="DIR",
    help="Keep accounts, homes, jobs and history in this directory.",
)
@click.option(
    "--projects",
    metavar="FILE",
    help="Read the projects from this projects.yaml at each start of the service.",
)
@click.option("--policy", metavar="FILE", help="Use this policy of the scheduler (docs/policy.md).")
@click.option(
    "--system-users",
    is_flag=True,
    help="Log in with Unix accounts (PAM), and run sessions and jobs as them. Needs root.",
)
@click.option(
    "--gpu-sharing",
    type=click.Choice(["timeslice", "mps"]),
    default="timeslice",
    show_default=True,
    help="Share a GPU by time slices, or by NVIDIA's MPS: faster for small work, but one fault ends"
    " all workloads on the GPU.",
)
@click.option(
    "--new-queue",
    is_flag=True,
    help="Start with an empty queue if an earlier version wrote this one; it is renamed with the"
    " folder of its jobs, not deleted.",
)
@click.option(
    "--share-proxy-password",
    is_flag=True,
    help="Pass a proxy's address on to sessions and jobs even if it has a user or password.",
)
def up(*, new_queue: bool, **options: object) -> None:
    """Start the whole platform on this machine.

    It starts JupyterHub, the GPU service and its agent on 127.0.0.1. Ctrl-C stops them; jobs
    continue.

    \b
    runai up --simulate 8                        without a GPU
    runai up --domain gpu.example.org --projects projects.yaml
    """  # noqa: D301 - \b is click's mark of a block
    _start(_settings(**options), new_queue=new_queue)


def parse(arguments: Sequence[str]) -> Settings:
    """Parse the options.

    Raises:
        InvalidRequest: a value is not valid.
        click.UsageError: an option is unknown, or excludes another one.
    """
    return _settings(**up.make_context("runai up", [*arguments]).params)


def _settings(**given: object) -> Settings:
    """Check the options, and fill in defaults that depend on other options."""
    secure = [f"--{name.replace('_', '-')}" for name in _SECURE if given[name]]
    if len(secure) > 1:
        raise click.UsageError(f"{secure[1]} is not allowed with {secure[0]}.")
    options = SimpleNamespace(**given)
    projects = _existing_file("--projects", options.projects, "a projects.yaml")
    policy = _existing_file("--policy", options.policy, "a file with the scheduler's policy")
    cert = _existing_file("--tls-cert", options.tls_cert, "a certificate in PEM form")
    key = _existing_file("--tls-key", options.tls_key, "the certificate's key in PEM form")
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
        port=_whole_number("--port", port, 1, 65535),
        base_url=base_url("--base-url", options.base_url),
        domain=domain("--domain", options.domain) if options.domain else "",
        tls_cert=cert,
        tls_key=key,
        tls_internal=options.tls_internal,
        gpus=None if gpus == "auto" else _whole_number("--gpus", gpus, 0, MOST_GPUS),
        simulate=None
        if options.simulate is None
        else _whole_number("--simulate", options.simulate, 0, MOST_GPUS),
        projects=projects,
        policy=policy,
        system_users=options.system_users,
        gpu_sharing=options.gpu_sharing,
        share_proxy_password=options.share_proxy_password,
        answers_within=_whole_number(
            "RUNAI_ANSWERS_WITHIN",
            os.environ.get("RUNAI_ANSWERS_WITHIN") or str(ANSWERS_WITHIN_S),
            0,
            MOST_SECONDS,
        ),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the platform; return the exit status only on failure."""
    try:
        up.main(arguments, prog_name="runai up")
    except RunaiError as error:
        sys.stderr.write(f"runai up: {error}\n")
    return 1


def _start(settings: Settings, *, new_queue: bool) -> None:
    """Check and prepare the data directory, then become the hub.

    Raises:
        RunaiError: the platform cannot start with these settings.
    """
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
    if lacking := unmet() + unmet("hub"):
        raise Unavailable(
            f"The platform's libraries do not fit: {in_words(lacking)}.",
            hint=f"Install them: {install_command(lacking)}",
            code="not_installed",
        )
    directory = DataDirectory(settings.data_dir)
    for path in directory.restrict_permissions():
        print(f"{path} could be written by others; it is closed to them now.")
    _check_files(settings, directory)
    check_is_whole(directory.root)  # before creating files in it
    if not new_queue:
        check_version(directory.root)
    address = public_address(settings, {})
    directory.lock(f"{address.url} (process {os.getpid()})")
    for path, aside in set_queue_aside(directory.root).items() if new_queue else ():
        print(f"{path} is {aside} now.")
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
        print_accounts(directory)
    sys.stdout.flush()
    _become_hub(settings, directory)


def _check_files(settings: Settings, directory: DataDirectory) -> None:
    """Parse the admin's files, which hub, proxy and service read only after half a minute.

    Raises:
        InvalidRequest: a file cannot be read, or has an invalid value.
    """
    # Needs the extra `hub`, and half a second.
    from runai.hub_service.model.admin_files import read_policy, read_projects  # noqa: PLC0415

    read_policy(settings.policy)
    if settings.projects is not None:
        read_projects(settings.projects)
    if settings.tls_cert is not None and settings.tls_key is not None:
        _check_certificate(settings.tls_cert, settings.tls_key)
    own = directory.own_config
    if own.exists():
        try:
            compile(own.read_bytes(), own, "exec")
        except (SyntaxError, ValueError) as wrong:  # ValueError: a null byte
            line = getattr(wrong, "lineno", None) or 1
            raise InvalidRequest(
                f"{own}, line {line}: this is no Python: {getattr(wrong, 'msg', wrong)}.",
                hint="Correct the line, or move the file away.",
            ) from wrong


def _check_certificate(certificate: Path, key: Path) -> None:
    """Check that a certificate and its key can be read, and belong together.

    Raises:
        InvalidRequest: they cannot, or do not.
    """
    try:
        # Without a password OpenSSL would ask for it on the terminal; Caddy decrypts no key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as wrong:
        differ = "KEY_VALUES_MISMATCH" in str(wrong)
        raise InvalidRequest(
            f"{key} is not the key of the certificate {certificate}."
            if differ
            else f"{certificate} and {key} are no certificate and key that can be read.",
            hint="--tls-cert and --tls-key name two PEM files, the key without a password.",
        ) from wrong
    except OSError as unreadable:
        raise InvalidRequest(
            f"{certificate} or {key} cannot be read: {unreadable.strerror}.",
            hint="Start it as an account that may read both.",
        ) from unreadable


def print_accounts(directory: DataDirectory) -> None:
    """Make the first accounts; print them, with their passwords only on a terminal."""
    made = Accounts(directory).make_first()
    if not made:
        known = directory.passwords
        print(f"Accounts: the generated passwords are in {known}." if known.exists() else "")
        return
    if not sys.stdout.isatty():  # a log, systemd's journal for one, is no place for passwords
        print(f"Accounts, made just now: {', '.join(made)}.")
    else:
        print("Accounts, made just now:\n")
        for name, password in made.items():
            print(f"    {name:<8}{password}")
        print()
    print(f"The passwords are kept in {directory.passwords}; `runai user` changes them.")


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
        # Programs of this installation; in sessions the user's own come first.
        "PATH": os.pathsep.join(
            dict.fromkeys([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        ),
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "runai.embedded.hub"]
    os.execve(sys.executable, command, environment)  # noqa: S606 - our own interpreter, no shell


def _existing_file(option: str, text: str | None, what: str) -> Path | None:
    path = expanded(text).absolute() if text else None
    if path is not None and not path.is_file():
        raise InvalidRequest(f"There is no file {path}.", hint=f"{option} names {what}.")
    return path


def _whole_number(option: str, text: str, minimum: int, maximum: int) -> int:
    if not (text.isascii() and text.isdecimal() and minimum <= int(text) <= maximum):
        raise InvalidRequest(
            f"{option} {text} is not possible.",
            hint=f"Use a whole number from {minimum} to {maximum}.",
        )
    return int(text)
