"""JupyterHub that talks to its terminal: where to log in, that it stops, why it could not start.

JupyterHub's own log goes to a file; people get sentences. It also differs from
`python -m jupyterhub` by `whose_token` and `account_removal`. Started by `up`, in
whose process it runs: `python -m runai.embedded.hub`.
"""

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn

import httpx
from jupyterhub import app
from jupyterhub.apihandlers.users import SelfAPIHandler
from jupyterhub.handlers.base import BaseHandler
from jupyterhub.services.service import Service
from jupyterhub.spawner import Spawner
from sqlalchemy.exc import SQLAlchemyError
from tornado import web
from tornado.ioloop import IOLoop
from tornado.web import HTTPError

from runai.embedded.accounts.accounts import Accounts
from runai.embedded.accounts.authenticator import AccountsAuthenticator
from runai.embedded.accounts.removal import AccountRemoval
from runai.embedded.configuration import REMOVALS, SERVICE, at_address, configuration
from runai.embedded.directory import DataDirectory
from runai.embedded.hub_log import HubLines, keep_rotating
from runai.embedded.liveness_probe import look_after
from runai.embedded.proxy.caddy import CaddyProxy
from runai.embedded.proxy.caddy_config import authority_file
from runai.embedded.proxy.public_address import PublicAddress, public_address
from runai.embedded.settings import Settings
from runai.hub_service.client import AsyncClient
from runai.hub_service.processes.own_process import take_all
from runai.hub_service.wire.errors import RunaiError


class WhoseToken(SelfAPIHandler):
    """JupyterHub's own answer, unless its database has failed."""

    _database_failed = False

    async def get_current_user(self) -> object:
        """Return who asks; remember when that could not be found out."""
        try:
            return await super().get_current_user()
        except SQLAlchemyError:
            self._database_failed = True
            raise  # JupyterHub rolls back

    async def get(self) -> None:
        """Say who asks.

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
# JupyterHub looks after its services every 30 s; a killed one should be back before it is missed.
SERVICE_POLL_SECONDS = 1
LOG_LINES_SHOWN = 15
ANSWER_WITHIN_S = 60  # the hub waits for a server that stops slowly
INTERRUPTED = 130  # what shells take for Ctrl-C


class EmbeddedHub(app.JupyterHub):
    """The hub of the embedded platform."""

    name = "jupyterhub"  # settings are those of JupyterHub, whoever subclasses it
    open_files = 0
    """Soft limit of descriptors that this process was started with; 0: it has it still."""
    address: PublicAddress
    _log_formatter_cls = HubLines

    @property
    def settings_of_up(self) -> Settings:
        """Return what `runai up` was asked for."""
        return Settings.from_environment(os.environ)

    def load_config_file(self, filename: str, path: str | None = None) -> None:
        """Apply our configuration, then the admin's own file, if there is one."""
        settings = self.settings_of_up
        directory = DataDirectory(settings.data_dir)
        self.update_config(configuration(settings, directory, open_files=self.open_files))
        super().load_config_file(filename, path)
        try:
            self.address = public_address(settings, self.config.JupyterHub)
        except RunaiError as refused:
            self._refuse(refused)
        self.update_config(at_address(self.address, self.config))

    def init_tornado_settings(self) -> None:
        """Show admins on the hub's pages which accounts' passwords are being guessed."""
        # An announcement of the admin's own file comes first; the log has the note, too.
        self.template_vars.setdefault("announcement", self._note_for_admins)
        super().init_tornado_settings()

    def _note_for_admins(self, user: Any) -> str:  # noqa: ANN401 - JupyterHub's user, or None
        ours = isinstance(self.authenticator, AccountsAuthenticator)
        is_admin = user is not None and bool(user.admin)
        return str(self.authenticator.note_for_admins()) if ours and is_admin else ""

    def init_handlers(self) -> None:
        """Answer whose a token is before JupyterHub does, and where a service is."""
        super().init_handlers()
        ours = [(r"/api/user", WhoseToken)]
        self.handlers[:0] = self.add_url_prefix(self.hub_prefix, ours)
        if self.subdomain_host:
            services = rf"{self.base_url}services/([^/]+)/.*"
            self.handlers.insert(0, (services, ToItsHost, {"services": self._service_map}))

    async def start(self) -> None:
        """Start, then say where."""
        if isinstance(self.proxy, CaddyProxy):
            try:
                await self.proxy.start()  # JupyterHub would show a traceback
            except RunaiError as refused:
                self._refuse(refused)
        await super().start()
        for service in self._service_map.values():
            _poll_often(service.spawner)
            service.observe(lambda change: _poll_often(change.new), "spawner")
        ours, within = self._service_map.get(SERVICE), self.settings_of_up.answers_within
        if ours is not None and ours.managed and within:
            self._looking = asyncio.ensure_future(look_after(ours, within, self.log))
        self._begin_removals()
        self._say_where()

    def _say_where(self) -> None:
        _say(f"\nOpen {self.address.url} and log in. Stop with Ctrl-C.")
        if self.config.CaddyProxy.get("internal_authority"):
            directory = DataDirectory(self.settings_of_up.data_dir)
            shutil.copyfile(authority_file(directory.certificates), directory.authority)
            directory.authority.chmod(0o644)
            _say(
                f"Its certificate is signed by {directory.authority}: import that into the browser;"
                f" for the command line, runai login {self.address.url} --ca FILE."
            )
        behind_another = bool(self.config.CaddyProxy.get("trusted_proxies"))
        if warning := self.address.warning(behind_another=behind_another):
            _say(warning)

    def _refuse(self, error: RunaiError) -> NoReturn:
        _say(f"\nrunai up: {error}")
        sys.exit(1)

    def _begin_removals(self) -> None:
        """Carry out `runai user remove`, if the accounts are those of the data directory."""
        ours, asking = self._service_map.get(SERVICE), self._service_map.get(REMOVALS)
        accounts = getattr(self.authenticator, "accounts", None)
        if ours is None or asking is None or not isinstance(accounts, Accounts):
            return
        hub = httpx.AsyncClient(
            base_url=self.hub.api_url,
            headers={"Authorization": f"token {asking.api_token}"},
            timeout=ANSWER_WITHIN_S,
            trust_env=False,
        )
        token = DataDirectory(self.settings_of_up.data_dir).hub_token()
        service = AsyncClient(f"{ours.url}{ours.prefix}", token)
        removal = AccountRemoval(accounts, hub, service, self.log)
        self._removing = asyncio.ensure_future(removal.run())

    async def shutdown_cancel_tasks(self, sig: signal.Signals | None = None) -> None:
        """Stop the sessions and the service, and say so: it may take some seconds."""
        _say("\nStopping: sessions end, jobs go on and are there at the next start …")
        await super().shutdown_cancel_tasks(sig)
        _say("Stopped.")

    def exit(self, exit_status: int | str = 0) -> None:
        """Leave; when something went wrong, show the end of the log."""
        if exit_status:
            log = DataDirectory(self.settings_of_up.data_dir).hub_log
            _say(f"\nThe platform could not start. The end of {log}:\n\n{_last_lines(log)}")
            self.abandon_proxy()
        super().exit(exit_status)

    def abandon_proxy(self) -> None:
        """Leave no proxy behind that was started for nothing."""
        if isinstance(getattr(self, "proxy", None), CaddyProxy):
            self.proxy.abandon()


class ToItsHost(BaseHandler):
    """Redirect from the hub's host to that of a service: people know the hub's alone."""

    def initialize(self, services: Mapping[str, Service]) -> None:
        """Take all services by name."""
        self._services = services

    def get(self, name: str) -> None:
        """Redirect to the same path.

        Raises:
            HTTPError: 404, there is no such service.
        """
        service = self._services.get(name)
        if service is None or not service.host:
            raise HTTPError(HTTPStatus.NOT_FOUND)
        self.redirect(f"{service.host}{self.request.uri}")


def _poll_often(service_process: Spawner | None) -> None:
    if service_process is None:  # a service that runs elsewhere
        return
    service_process.poll_interval = SERVICE_POLL_SECONDS
    service_process.start_polling()


def _say(text: str) -> None:
    """Write to the terminal that started us; it may be gone."""
    with suppress(OSError, ValueError):
        os.write(int(os.environ.get(TERMINAL_VARIABLE, "")), f"{text}\n".encode())


def _last_lines(log: Path) -> str:
    with suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
    return ""


def _go_by_what_lasts() -> None:
    """Have the hub look after services and servers by a clock that nobody sets.

    Tornado's is the wall's unless told otherwise: set back by an hour, JupyterHub would look away
    for an hour, and a service that was killed meanwhile would stay away for as long.
    """
    IOLoop.time = time.monotonic  # type: ignore[assignment]  # as its documentation proposes


def main() -> None:
    """Run the hub until it is told to stop."""
    _go_by_what_lasts()
    keep_rotating(DataDirectory(Settings.from_environment(os.environ).data_dir).hub_log)
    EmbeddedHub.open_files = max(take_all(), 0)  # RLIM_INFINITY is -1, and stays
    try:
        EmbeddedHub.launch_instance()
    except KeyboardInterrupt:  # before it listens to signals itself
        EmbeddedHub.instance().abandon_proxy()
        _say("\nStopped before it had started.")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
