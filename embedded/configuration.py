"""JupyterHub's configuration on one machine, with every path and port explicit.

`hub` applies `configuration`, then the admin's own file (`jupyterhub_config.py` in the data
directory, which may change anything), then `at_address`: settings derived from the public address.
"""

import grp
import hmac
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.services.service import Service
from traitlets.config import Config

from runai.embedded.accounts.account_removal import REMOVAL_SCOPES
from runai.embedded.accounts.accounts import Accounts
from runai.embedded.accounts.authenticator import AccountsAuthenticator
from runai.embedded.accounts.unix_authenticator import pam_service
from runai.embedded.data_directory import DataDirectory
from runai.embedded.proxy.caddy_config import LIMITS
from runai.embedded.proxy.caddy_process import caddy_program, caddy_version
from runai.embedded.proxy.public_address import PublicAddress
from runai.embedded.settings import Settings
from runai.hub_service.processes.own_process import MODULE
from runai.hub_service.processes.shell_environment import beneath, passed_on
from runai.hub_service.wire.errors import RunaiError

SERVICE = "runai"
REMOVALS = "runai-removals"
CADDY = "runai-caddy"
"""Entry point of our proxy (pyproject.toml)."""
STARTS_WITHIN_S = 180
"""JupyterHub's 30 s are too short. Imports alone take half a minute on a busy machine."""
PASSED_ON = (
    "RUNAI_AGENT_METRICS",
    "RUNAI_AGENT_TOKEN",
    "RUNAI_CPUS",
    "RUNAI_ELASTIC_GROW_EVERY",
    "RUNAI_ELASTIC_PAYS_FROM",
    "RUNAI_ELASTIC_RESIZE_COST",
    "RUNAI_JOBS_KEPT",
    "RUNAI_JOBS_TTL",
    "RUNAI_JOB_FILES",
    "RUNAI_LEDGER",
    "RUNAI_LOG_FORMAT",
    "RUNAI_LOG_LEVEL",
    "RUNAI_MEMORY",
    "RUNAI_NOTIFY_FROM",
    "RUNAI_NOTIFY_SMTP",
    "RUNAI_NOTIFY_TO",
    "RUNAI_NOTIFY_WEBHOOK",
    "RUNAI_NOTIFY_WEBHOOK_SECRET",
    "RUNAI_SUBMISSIONS_AT_ONCE",
    "RUNAI_USER_CALLS",
    "RUNAI_USER_JOBS",
    "RUNAI_USER_OPEN",
    "TMPDIR",
)
"""Variables of the service that are passed on from the environment of `runai up`."""
# Scopes of project members at the service, from the browser, a notebook or the terminal.
MEMBER_SCOPES = (f"access:services!service={SERVICE}", "custom:runai:submit")
ADMIN_SCOPE = "custom:runai:admin"
WITH_LIMIT = ("/bin/sh", "-c", 'ulimit -Sn "$0"; exec "$@"')
EXAMPLES = Path(__file__).parent.parent / "examples"  # beside us, in a checkout as in a wheel
LAB = Path(__file__).parent.parent / "lab"
ADMIN_GROUPS = {"sudo", "wheel"}


def configuration(settings: Settings, directory: DataDirectory, *, open_files: int = 0) -> Config:
    """Return the configuration, with free ports and secrets of the data directory.

    Service and servers start with a soft limit of `open_files` descriptors; 0: the hub's.
    """
    c: Any = Config()
    service_url = f"http://127.0.0.1:{directory.stable_port('service')}"
    hub_token = directory.hub_token()
    _hub(c, settings, directory)
    _accounts(c, settings, directory)
    _service(c, settings, service_url, hub_token, open_files)
    _removals(c, directory)
    _sessions(c, settings, directory)
    c.RunaiLocalSpawner.open_files = open_files
    c.RunaiLocalSpawner.service_token = hub_token
    made: Config = c
    return made


def at_address(address: PublicAddress, chosen: Config) -> Config:
    """Return the settings derived from the public address and the settings chosen so far.

    Sessions and jobs inherit the same variables of the shell; the admin's own file overrides them.
    Local programs use the service's own address and prefix, so the proxy's certificate, name and
    subdomains do not affect them.
    """
    c: Any = Config()
    # All four: JupyterHub derives unset ones from the set ones.
    c.JupyterHub.ip, c.JupyterHub.port = address.ip, address.port
    c.JupyterHub.base_url, c.JupyterHub.bind_url = address.base_url, address.bind_url
    if address.name:
        c.JupyterHub.public_url = address.url
    passed = passed_on(os.environ, urlsplit(address.url).hostname or "")
    c.RunaiLocalSpawner.shell_environment = passed
    pam = c.RunaiLocalSpawner.login_service = pam_service(chosen)
    services = [dict(service) for service in chosen.JupyterHub.get("services", [])]
    for service in services:
        if service.get("name") == SERVICE and service.get("url"):
            url = f"{service['url']}{address.base_url}services/{SERVICE}/"
            c.RunaiLocalSpawner.service_url = url
            proxy = _proxy_in_words(chosen.JupyterHub.get("proxy_class", ""))
            derived = {"RUNAI_PROXY": proxy, "RUNAI_PAM_SERVICE": pam}
            service["environment"] = beneath(passed, service.get("environment", {})) | derived
    c.JupyterHub.services = services
    made: Config = c
    return made


def _proxy_in_words(proxy: object) -> str:
    """Return the proxy's name; for Caddy also its version and limits."""
    if proxy != CADDY:
        return str(proxy)
    with suppress(RunaiError):  # reported at the proxy's start
        return f"Caddy {'.'.join(map(str, caddy_version(caddy_program())))}: {LIMITS}"
    return "Caddy"


def _hub(c: Any, settings: Settings, directory: DataDirectory) -> None:  # noqa: ANN401
    """Set the hub's address, database, log, proxy, certificate and spawner."""
    c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{directory.stable_port('hub')}"
    # Relative to the data directory, the hub's working directory: of a path in a URL, SQLAlchemy
    # ends the name at `?`, some versions decode `%20`, and JupyterHub does not.
    c.JupyterHub.db_url = "sqlite:///jupyterhub.sqlite"
    c.JupyterHub.cookie_secret_file = str(directory.cookie_secret)
    c.JupyterHub.pid_file = ""
    # Other libraries' warnings and asyncio's errors get the hub's line format.
    c.JupyterHub.logging_config = {"root": {"level": "WARNING", "handlers": ["console"]}}
    c.JupyterHub.proxy_class = CADDY
    c.CaddyProxy.folder = str(directory.proxy)
    c.CaddyProxy.certificates = str(directory.certificates)
    c.CaddyProxy.domain = settings.domain
    c.CaddyProxy.internal_authority = settings.tls_internal
    if settings.tls_cert and settings.tls_key:
        c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = str(settings.tls_cert), str(settings.tls_key)
    c.JupyterHub.spawner_class = "runai-local"
    c.JupyterHub.concurrent_spawn_limit = 0  # no limit: waiting for a GPU is part of a spawn
    # Ctrl-C ends sessions. After a kill they keep running, and the next hub adopts them.
    c.JupyterHub.cleanup_servers = True


def _accounts(c: Any, settings: Settings, directory: DataDirectory) -> None:  # noqa: ANN401
    """Set the authenticator, and the roles of users, admins and the service."""
    admins: list[str] = []
    if settings.system_users:
        existing = {group.gr_name for group in grp.getgrall()}
        c.JupyterHub.authenticator_class = "pam"
        c.PAMAuthenticator.allow_all = True  # every account of this machine
        c.PAMAuthenticator.admin_groups = ADMIN_GROUPS & existing
        c.PAMAuthenticator.open_sessions = False  # often impossible in containers; not needed here
        c.Authenticator.blocked_users = {"root"}
    else:
        c.JupyterHub.authenticator_class = AccountsAuthenticator
        c.AccountsAuthenticator.data_dir = str(settings.data_dir)
        admins = [name for name, account in Accounts(directory).all().items() if account.admin]
    c.JupyterHub.custom_scopes = {
        "custom:runai:submit": {"description": "Submit, pause, resume and stop workloads."},
        ADMIN_SCOPE: {"description": "Make projects and set their quotas."},
    }
    c.JupyterHub.load_roles = [
        # JupyterHub 6 could add to the role (extra_user_scopes); 5 must repeat "self".
        {"name": "user", "scopes": ["self", *MEMBER_SCOPES]},
        {"name": "runai-admin", "scopes": [ADMIN_SCOPE], "users": admins},
        {
            "name": "runai-service",
            "description": "Know who is who, in which group, which servers run; stop servers.",
            "services": [SERVICE],
            "scopes": [
                "list:users",
                "read:users:groups",
                "read:roles:users",
                "read:servers",
                "read:groups",
                "delete:servers",
            ],
        },
    ]


def _service(
    c: Any,  # noqa: ANN401
    settings: Settings,
    url: str,
    hub_token: str,
    open_files: int,
) -> None:
    """Add the GPU service, as a process of the hub."""
    limited = [*WITH_LIMIT, str(open_files)] if open_files else []
    c.JupyterHub.services = [
        {
            "name": SERVICE,
            "url": url,
            "command": [*limited, *MODULE, "runai.hub_service"],
            "oauth_no_confirm": True,
            "oauth_client_allowed_scopes": [*MEMBER_SCOPES, ADMIN_SCOPE],
            "display": True,
            **_start_timeout(),
            "environment": {
                **settings.environment(),
                **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
                "RUNAI_HUB_TOKEN": hub_token,
                "RUNAI_HUB_PID": str(os.getpid()),
                "PATH": os.environ.get("PATH", os.defpath),
            },
        }
    ]


def _removals(c: Any, directory: DataDirectory) -> None:  # noqa: ANN401
    """Add the internal service that ends tokens, servers and users of removed accounts."""
    # The same token at each start, since JupyterHub never deletes old ones. It grants nothing
    # beyond the cookie secret, from which it is derived.
    token = hmac.digest(directory.cookie_secret.read_bytes(), REMOVALS.encode(), "sha256").hex()
    c.JupyterHub.services.append({"name": REMOVALS, "api_token": token})
    c.JupyterHub.load_roles.append(
        {"name": REMOVALS, "services": [REMOVALS], "scopes": [*REMOVAL_SCOPES]}
    )


def _start_timeout() -> dict[str, int]:
    """Return the start timeout of the service; JupyterHub 5 has no such setting."""
    return {"timeout": STARTS_WITHIN_S} if "timeout" in Service.class_trait_names() else {}


def _sessions(c: Any, settings: Settings, directory: DataDirectory) -> None:  # noqa: ANN401
    """Set the command, scopes and folders of notebook servers."""
    c.Spawner.cmd = [*MODULE, "jupyterhub.singleuser"]
    c.Spawner.default_url = "/lab"
    c.Spawner.http_timeout = STARTS_WITHIN_S
    c.Spawner.server_token_scopes = [
        "users:activity!user",
        "access:servers!server",
        *MEMBER_SCOPES,
    ]
    c.Spawner.environment = {
        # Defaults of JupyterLab that users can change: no question about news at the first start.
        # The extension, too: an editable installation has no data files.
        "JUPYTER_CONFIG_PATH": f"{Path(__file__).with_name('lab')}{os.pathsep}{LAB / 'etc'}",
        "JUPYTER_PATH": str(LAB / "share"),
    }
    c.RunaiLocalSpawner.system_users = settings.system_users
    c.RunaiLocalSpawner.users_directory = str(directory.users)
    c.RunaiLocalSpawner.data_directory = str(directory.root)
    c.RunaiLocalSpawner.examples_directory = str(EXAMPLES)
