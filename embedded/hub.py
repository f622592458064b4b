"""JupyterHub of the embedded platform: `python -m runai.embedded.hub`, executed by `runai up`.

Its log goes to a file; the terminal gets the address, the stop, and errors at the start. It adds
the identity endpoint, account removal and a liveness probe of the service.
"""

import asyncio
import json
import math
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn

import httpx
from jupyterhub import app, orm
from jupyterhub.apihandlers.users import SelfAPIHandler
from jupyterhub.handlers.base import BaseHandler
from jupyterhub.services.service import Service
from jupyterhub.spawner import Spawner
from sqlalchemy.exc import SQLAlchemyError
from tornado import web
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.web import HTTPError
from traitlets.config import Config

from runai.embedded.accounts.account_forgetting import (
    AccountForgetting,
    ForgottenAccounts,
    files_naming,
)
from runai.embedded.accounts.account_removal import AccountRemoval
from runai.embedded.accounts.accounts import Accounts
from runai.embedded.accounts.authenticator import AccountsAuthenticator
from runai.embedded.accounts.compared_callers import compared, record_uids
from runai.embedded.accounts.unix_authenticator import pam_service, with_checked_accounts
from runai.embedded.configuration import REMOVALS, SERVICE, at_address, configuration
from runai.embedded.data_directory import DataDirectory, write_private
from runai.embedded.hub_log import HubLogFormatter, bound_anonymous_lines, start_rotation
from runai.embedded.hub_server import BoundedServer
from runai.embedded.liveness_probe import probe_liveness
from runai.embedded.proxy.caddy import CaddyProxy
from runai.embedded.proxy.caddy_config import authority_file
from runai.embedded.proxy.public_address import PublicAddress, public_address
from runai.embedded.settings import Settings
from runai.embedded.settings_completion import check_file, completed
from runai.hub_service.client import AsyncClient
from runai.hub_service.processes.accounts.account_directory import AccountDirectory, directory_of
from runai.hub_service.processes.log_lines import bound_shortage_lines
from runai.hub_service.processes.own_process import raise_descriptor_limit
from runai.hub_service.wire.errors import InvalidRequest, RunaiError
from runai.spawner.local import RunaiLocalSpawner


class CurrentUserHandler(SelfAPIHandler):
    """JupyterHub's `/api/user`, with 503 instead of 403 while its database fails."""

    _database_failed = False

    async def get_current_user(self) -> object:
        """Return the token's user; record a failure of the database."""
        try:
            return await super().get_current_user()
        except SQLAlchemyError:
            self._database_failed = True
            raise  # JupyterHub rolls back

    async def get(self) -> None:
        """Return the token's user.

        Raises:
            HTTPError: 503, the database has failed; 403, the token is not known.
        """
        if self._database_failed:
            raise web.HTTPError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "The hub's database has failed, so nobody can be identified now.",
            )
        await super().get()


TERMINAL_VARIABLE = "RUNAI_TERMINAL"
SERVICE_POLL_SECONDS = 1  # JupyterHub's 30 s would delay the restart of a killed service
MOST_RESTART_SECONDS = 32  # of a service that cannot start, as for a broken projects.yaml
FAILS_WITHIN_S = 120  # a start takes half a minute on a busy machine, its delay the same at most
LOG_TAIL_LINES = 15
CANNOT_START = "The GPU service cannot start. "  # begins the last line of a service that cannot
UNREAD = "The last start ended while it read jupyterhub_config.py."
ANSWER_WITHIN_S = 60  # the hub waits for a server that stops slowly
INTERRUPTED = 130  # exit status of Ctrl-C in shells


class EmbeddedHub(app.JupyterHub):
    """The hub of the embedded platform."""

    name = "jupyterhub"  # reads `c.JupyterHub` settings, also in subclasses
    _own_config: Config | None = None
    """The platform's settings, from before the admin's file is read."""
    _additions: Sequence[str] = ()
    """What the admin's file left out of the platform's settings."""
    log_begin = 0
    """Size of the log in bytes before this start."""
    open_files = 0
    """Soft limit of descriptors that this process was started with; 0: unchanged."""
    address: PublicAddress
    _log_formatter_cls = HubLogFormatter

    @property
    def settings_of_up(self) -> Settings:
        """Return the settings of `runai up`."""
        return Settings.from_environment(os.environ)

    @property
    def _unix_accounts(self) -> AccountDirectory | None:
        """Return the machine's account directory; None if all share one account."""
        settings = self.settings_of_up
        return directory_of(settings.data_dir) if settings.system_users else None

    def init_logging(self) -> None:
        """Bound the lines about requests without a login."""
        super().init_logging()
        bound_anonymous_lines(self.log)
        for each in self._additions:
            self.log.warning(
                "jupyterhub_config.py leaves out what the platform needs: added %s", each
            )

    def load_config_file(self, filename: str, path: str | None = None) -> None:
        """Apply our configuration, then the admin's own file if it exists."""
        settings = self.settings_of_up
        directory = DataDirectory(settings.data_dir)
        self._record_start(refused=UNREAD, hint=f"The end of {directory.hub_log} has the error.")
        ours = self._own_config = configuration(settings, directory, open_files=self.open_files)
        self.update_config(deepcopy(ours))
        try:
            super().load_config_file(filename, path)
        except SystemExit as ended:
            self._refuse_exit(ended)
            raise
        try:
            completion = completed(ours, self.config, self.spawner_class.section_names())
            completion.config.JupyterHub.authenticator_class = with_checked_accounts(
                self.authenticator_class
            )
            self.update_config(completion.config)
            self._additions = completion.added
            self._record_start(
                added=[*completion.added],
                without_gpu=self._without_gpu(),
                pam_service=pam_service(self.config),
            )
            self.address = public_address(settings, self.config.JupyterHub)
        except RunaiError as refused:
            self._refuse_start(refused)
        self.update_config(at_address(self.address, self.config))

    def update_config(self, config: Config) -> None:
        """Apply settings; refuse a form of the admin's file that cannot be completed."""
        try:
            if self._own_config is not None:
                check_file(self._own_config, config)
        except InvalidRequest as refused:
            self._refuse_start(refused)
        super().update_config(config)

    def _without_gpu(self) -> str:
        """Return the sentence about a spawner that is none of ours, else an empty one."""
        if issubclass(self.spawner_class, RunaiLocalSpawner):
            return ""
        return (
            f"Servers get no GPU: c.JupyterHub.spawner_class is {self.spawner_class.__name__},"
            " none of the platform's. Jobs run as usual."
        )

    def _record_start(self, **found: object) -> None:
        """Write for `runai doctor` what this start found in the admin's file."""
        with suppress(OSError):  # a full disk, which stops the start where it matters
            path = DataDirectory(self.settings_of_up.data_dir).last_start
            write_private(path, json.dumps(found))

    def init_tornado_settings(self) -> None:
        """Add a banner for admins that lists accounts under a password attack."""
        # An announcement in the admin's own file wins; the log has the note, too.
        self.template_vars.setdefault("announcement", self._note_for_admins)
        super().init_tornado_settings()

    def _note_for_admins(self, user: Any) -> str:  # noqa: ANN401 - JupyterHub's user, or None
        """Return the note about attacked accounts, "" for other users."""
        has_accounts = isinstance(self.authenticator, AccountsAuthenticator)
        is_admin = user is not None and bool(user.admin)
        return str(self.authenticator.note_for_admins()) if has_accounts and is_admin else ""

    def init_handlers(self) -> None:
        """Add our handlers: the identity endpoint, and redirects to services' hosts.

        With Unix accounts, all handlers compare their callers.
        """
        super().init_handlers()
        handlers = [(r"/api/user", CurrentUserHandler)]
        self.handlers[:0] = self.add_url_prefix(self.hub_prefix, handlers)
        if self.subdomain_host:
            pattern = rf"{self.base_url}services/([^/]+)/.*"
            self.handlers.insert(
                0, (pattern, ServiceRedirectHandler, {"services": self._service_map})
            )
        if self._unix_accounts is not None:
            self.handlers[:] = compared(self.handlers, self._unix_accounts)

    async def start(self) -> None:
        """Start proxy, hub and probes; print the address."""
        if isinstance(self.proxy, CaddyProxy):
            try:
                await self.proxy.start()  # before JupyterHub, which would show a traceback
            except RunaiError as refused:
                self._refuse_start(refused)
        await super().start()
        for service in self._service_map.values():
            _poll_often(service.spawner)
            service.observe(RestartDelay().on_start, "spawner")
        gpu_service = self._service_map.get(SERVICE)
        answers_within = self.settings_of_up.answers_within
        if gpu_service is not None and gpu_service.managed and answers_within:
            self._probe_task = asyncio.ensure_future(
                probe_liveness(gpu_service, answers_within, self.log)
            )
        self._start_removals()
        if self._unix_accounts is not None:
            names = [name for (name,) in self.db.query(orm.User.name)]
            self._uid_task = asyncio.ensure_future(record_uids(names, self._unix_accounts))
        self._print_address()
        if without_gpu := self._without_gpu():
            _print_to_terminal(without_gpu)

    def _print_address(self) -> None:
        """Print the address, the own authority's certificate, and a warning."""
        _print_to_terminal(f"\nOpen {self.address.url} and log in. Stop with Ctrl-C.")
        if self.config.CaddyProxy.get("internal_authority"):
            directory = DataDirectory(self.settings_of_up.data_dir)
            shutil.copyfile(authority_file(directory.certificates), directory.authority)
            directory.authority.chmod(0o644)
            _print_to_terminal(
                f"Its certificate is signed by {directory.authority}: import that into the browser;"
                f" for the command line, runai login {self.address.url} --ca FILE."
            )
        behind_proxy = bool(self.config.CaddyProxy.get("trusted_proxies"))
        if warning := self.address.warning(behind_proxy=behind_proxy):
            _print_to_terminal(warning)

    def _refuse_exit(self, ended: SystemExit) -> None:
        """Refuse the start with a sentence if the admin's file ended it, which logs nothing."""
        *_, (frame, line) = traceback.walk_tb(ended.__traceback__)
        if Path(frame.f_code.co_filename).name != "jupyterhub_config.py":
            return  # JupyterHub's own exit, after an error in the log
        why = f": {ended.code}" if isinstance(ended.code, str) else ""
        self._refuse_start(
            InvalidRequest(
                f"jupyterhub_config.py ends the start in line {line}{why}.",
                hint="Remove the exit, or mend its cause.",
            )
        )

    def _refuse_start(self, error: RunaiError) -> NoReturn:
        """Record and print the error, and exit."""
        self._record_start(refused=error.message, hint=error.hint)
        _print_to_terminal(f"\nrunai up: {error}")
        sys.exit(1)

    def _start_removals(self) -> None:
        """Start the removal task, if accounts are the data directory's or the machine's."""
        gpu_service = self._service_map.get(SERVICE)
        removals_service = self._service_map.get(REMOVALS)
        accounts, settings = getattr(self.authenticator, "accounts", None), self.settings_of_up
        if gpu_service is None or removals_service is None:
            return
        hub = httpx.AsyncClient(
            base_url=self.hub.api_url,
            headers={"Authorization": f"token {removals_service.api_token}"},
            timeout=ANSWER_WITHIN_S,
            trust_env=False,
        )
        token = DataDirectory(settings.data_dir).hub_token()
        service = AsyncClient(f"{gpu_service.url}{gpu_service.prefix}", token)
        removal: AccountRemoval
        if settings.system_users:
            forgotten = ForgottenAccounts(directory_of(settings.data_dir).known_accounts)
            removal = AccountForgetting(forgotten, hub, service, self.log)
            removal.files_naming = partial(files_naming, hub=self, projects=settings.projects)
        elif isinstance(accounts, Accounts):
            removal = AccountRemoval(accounts, hub, service, self.log)
        else:
            return
        self._removal_task = asyncio.ensure_future(removal.run())

    async def shutdown_cancel_tasks(self, sig: signal.Signals | None = None) -> None:
        """Stop sessions and service, with a note: it may take some seconds."""
        _print_to_terminal("\nStopping: sessions end, jobs go on and are there at the next start …")
        await super().shutdown_cancel_tasks(sig)
        _print_to_terminal("Stopped.")

    def exit(self, exit_status: int | str = 0) -> None:
        """Exit; after an error print the service's sentence, or else the end of the log."""
        if exit_status:
            log = DataDirectory(self.settings_of_up.data_dir).hub_log
            _print_to_terminal(f"\n{failure_text(log, self.log_begin)}")
            self.abandon_proxy()
        super().exit(exit_status)

    def abandon_proxy(self) -> None:
        """Stop the proxy if this hub started it."""
        if isinstance(getattr(self, "proxy", None), CaddyProxy):
            self.proxy.abandon()


@dataclass(slots=True)
class RestartDelay:
    """Delay of a service's next start: it grows while the service ends at once with an error.

    A service that was killed, or ends without an error, starts again after a second.
    """

    seconds: float = SERVICE_POLL_SECONDS
    began: float = -math.inf

    def next(self, now: float, status: int | None) -> float:
        """Record a start, after an end with `status`; return the seconds until its first poll."""
        failed = status is not None and status > 0 and now - self.began < FAILS_WITHIN_S
        grown = min(2 * self.seconds, MOST_RESTART_SECONDS)
        self.seconds, self.began = grown if failed else SERVICE_POLL_SECONDS, now
        return self.seconds

    def on_start(self, change: Any) -> None:  # noqa: ANN401 - traitlets' change
        """Poll a started service: first after the delay, then each second."""
        service, spawner = change.owner, change.new
        if spawner is None:  # a service that runs elsewhere
            return
        previous_process = service.proc
        exit_status = None if previous_process is None else previous_process.poll()
        delay = self.next(time.monotonic(), exit_status)
        spawner.poll_interval = int(delay)  # JupyterHub begins to poll it
        IOLoop.current().call_later(delay + 1, _poll_if_it_runs, service, spawner)


class ServiceRedirectHandler(BaseHandler):
    """Redirect from the hub's host to a service's host: users know the hub's alone."""

    def initialize(self, services: Mapping[str, Service]) -> None:
        """Store the services by name."""
        self._services = services

    def get(self, name: str) -> None:
        """Redirect to the same path.

        Raises:
            HTTPError: 404, the service is unknown or has no host.
        """
        service = self._services.get(name)
        if service is None or not service.host:
            raise HTTPError(HTTPStatus.NOT_FOUND)
        self.redirect(f"{service.host}{self.request.uri}")


def _poll_if_it_runs(service: Service, spawner: Spawner) -> None:
    if service.spawner is spawner:  # not started again meanwhile
        _poll_often(spawner)


def _poll_often(service_process: Spawner | None) -> None:
    if service_process is None:  # a service that runs elsewhere
        return
    service_process.poll_interval = SERVICE_POLL_SECONDS
    service_process.start_polling()


def _print_to_terminal(text: str) -> None:
    """Write to the terminal of `runai up`, if it still exists."""
    with suppress(OSError, ValueError):
        os.write(int(os.environ.get(TERMINAL_VARIABLE, "")), f"{text}\n".encode())


def failure_text(log: Path, begin: int = 0) -> str:
    """Return the sentence of a service that could not start, else the end of the log.

    `begin` is the log's size in bytes before this start; a smaller log was rotated since.
    """
    lines = []
    with suppress(OSError):
        content = log.read_bytes()
        own = content[begin if len(content) >= begin else 0 :]
        lines = own.decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    sentences = [line for line in lines if line.startswith(CANNOT_START)]
    if sentences:
        return f"runai up: {sentences[-1]}"
    return "\n".join([f"The platform could not start. The end of {log}:", "", *lines])


def _use_monotonic_clock() -> None:
    """Make Tornado's event loop use the monotonic clock.

    Its default is the wall clock: set back by an hour, JupyterHub would poll no service or server
    for an hour, and not restart a killed service until then.
    """
    IOLoop.time = time.monotonic  # type: ignore[assignment]  # as in Tornado's documentation


def main() -> None:
    """Run the hub until it is stopped."""
    _use_monotonic_clock()
    log = DataDirectory(Settings.from_environment(os.environ).data_dir).hub_log
    with suppress(OSError):
        EmbeddedHub.log_begin = log.stat().st_size
    start_rotation(log)
    bound_shortage_lines()
    HTTPServer.configure(BoundedServer)
    EmbeddedHub.open_files = max(raise_descriptor_limit(), 0)  # RLIM_INFINITY is -1, and stays
    try:
        EmbeddedHub.launch_instance()
    except KeyboardInterrupt:  # before it installs its signal handlers
        EmbeddedHub.instance().abandon_proxy()
        _print_to_terminal("\nStopped before it had started.")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
