"""JupyterHub's proxy: Caddy as a process of its own, its routes a folder of files.

The proxy outlives a hub that is killed, and the next hub adopts it. docs/adr/0026 has the reasons.
"""

import asyncio
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jupyterhub.proxy import Proxy
from traitlets import Bool, Float, List, Unicode

from runai.embedded.proxy import caddy_config
from runai.embedded.proxy.caddy_process import CaddyProcess, caddy_program
from runai.embedded.proxy.public_address import (
    EVERY_ADDRESS,
    check_can_listen,
    claimed_port,
    host_and_port,
)
from runai.embedded.proxy.route_files import RouteFiles, path_segments
from runai.hub_service.clusters.local.processes.process_watch import ProcessWatch
from runai.hub_service.wire.errors import RunaiError, Unavailable

USER_SEGMENTS = 3  # /user/NAME/SERVER/
AGAIN_S = 1.0


class CaddyProxy(Proxy):
    """One Caddy process: `start` adopts or starts it, `stop` ends it, routes are files."""

    folder = Unicode(
        "runai-proxy", help="Folder of the proxy's routes and its socket; one for each hub."
    ).tag(config=True)
    certificates = Unicode(
        help="Folder of the certificates and keys that Caddy makes or gets; empty: in `folder`."
    ).tag(config=True)
    trusted_proxies = List(
        Unicode(),
        help="Addresses or CIDR ranges of proxies in front, whose X-Forwarded-* are passed on.",
    ).tag(config=True)
    domain = Unicode(help="Public name to get a certificate for over ACME.").tag(config=True)
    acme_server = Unicode(
        help="Directory URL of the ACME authority; empty: Let's Encrypt, then ZeroSSL."
    ).tag(config=True)
    acme_roots = List(
        Unicode(), help="PEM files of the authorities that certify `acme_server` itself."
    ).tag(config=True)
    internal_authority = Bool(
        help="Certify localhost and this machine by an authority of Caddy's own."
    ).tag(config=True)
    hung_after = Float(
        60.0, help="Seconds without an answer of Caddy after which it is killed and restarted."
    ).tag(config=True)

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - traitlets' own signature
        super().__init__(**kwargs)
        folder = Path(self.folder).absolute()
        self._process = CaddyProcess(folder)
        self._depth = self._deepest_route()
        self._routes = RouteFiles(folder / caddy_config.ROUTES, self._depth)
        self._watch: ProcessWatch | None = None
        self._start_task: asyncio.Future[None] | None = None
        self._probe_task: asyncio.Future[None] | None = None

    # -- JupyterHub's contract -------------------------------------------------------------------

    async def start(self) -> None:
        """Adopt the proxy of a killed hub, else start one; a repeat does nothing.

        Raises:
            RunaiError: there is no Caddy, or a port is taken.
        """
        if self._watch is not None:
            return
        program, config = caddy_program(), self._config()
        if await asyncio.to_thread(self._process.runs, program, config):
            self.log.info("Adopting the running proxy, process %d", self._process.pid())
        else:
            await self._process.end()
            self._routes.clear()  # ports in old routes may belong to other programs
            await self._listen(program, config)
        self._watch_process()
        self.log.info("Proxy listening on %s", self.public_url)

    async def stop(self) -> None:
        """End the proxy; a repeat does nothing."""
        for task in (self._start_task, self._probe_task):
            if task is not None:
                task.cancel()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        await self._process.end()
        self._routes.clear()

    def abandon(self) -> None:
        """End the proxy if this hub started it; an adopted one goes on serving notebooks."""
        self._process.terminate_child()

    async def add_route(self, routespec: str, target: str, data: dict[str, Any] | None) -> None:
        """Send requests below `routespec` to `target` from now on.

        Raises:
            RunaiError: the target is not http://HOST:PORT, or the route has more path segments than
                the base URL and `extra_routes` allow.
        """
        self._routes.add(self.validate_routespec(routespec), target, data or {})

    async def delete_route(self, routespec: str) -> None:
        """Remove a route if it exists."""
        self._routes.remove(self.validate_routespec(routespec))

    async def get_all_routes(self) -> dict[str, dict[str, Any]]:
        """Return all routes; servers report activity to the hub themselves."""
        return self._routes.all()

    # -- the process -----------------------------------------------------------------------------

    def _watch_process(self) -> None:
        """Restart the process when it ends or hangs."""
        self._watch = self._process.watch(self._restart)
        if self._watch is None:
            self._restart()
        else:
            self._probe_task = asyncio.ensure_future(self._kill_when_hung(self._watch))

    async def _kill_when_hung(self, watch: ProcessWatch) -> None:
        """Kill the process when two probes in a row have no answer; `_restart` follows.

        Two, as one may fail because the machine or the hub was suspended.
        """
        interval_s, misses = self.hung_after / 4, 0
        while misses < 2:
            await asyncio.sleep(interval_s)
            hangs = await asyncio.to_thread(self._process.hangs, interval_s)
            misses = misses + 1 if hangs else 0
        self.log.error("The proxy has not answered for %.0f s: killing it.", self.hung_after)
        watch.send(signal.SIGKILL)

    def _restart(self) -> None:
        """Start the process again, in a task."""
        if self._probe_task is not None:
            self._probe_task.cancel()
        self.log.error("The proxy has ended; restarting it.")
        self._start_task = asyncio.ensure_future(self._start_until_it_serves())

    async def _start_until_it_serves(self) -> None:
        """Start the process, each second again until it serves; then watch it."""
        while True:
            try:
                await self._listen(caddy_program(), self._config())
            except (RunaiError, OSError) as failed:
                self.log.warning("The proxy cannot be started: %s", failed)
                await asyncio.sleep(AGAIN_S)
            else:
                return self._watch_process()

    async def _listen(self, program: Path, config: dict[str, Any]) -> None:
        """Start the process on ports that are free.

        Raises:
            RunaiError: a port is taken, or the process ended before it served.
        """
        addresses = filter(None, (host_and_port(self.public_url), self._redirect_address()))
        listeners = [(host, int(port)) for host, _, port in (a.rpartition(":") for a in addresses)]
        with ExitStack() as claims:
            for host, port in listeners:
                claims.enter_context(claimed_port(host, port))
            try:
                await self._process.start(program, config)
            except Unavailable:
                for host, port in listeners:  # another program may have taken one since
                    check_can_listen(host, port)
                raise

    # -- its configuration -----------------------------------------------------------------------

    def _config(self) -> dict[str, Any]:
        """Return Caddy's configuration, from JupyterHub's settings."""
        public = urlsplit(self.public_url)
        return caddy_config.caddy_config(
            caddy_config.CaddyOptions(
                listen=host_and_port(self.public_url),
                hub=urlsplit(self.hub.url).netloc,
                base_url=public.path or "/",
                depth=self._depth,
                host_routing=self.host_routing,
                trusted_proxies=self.trusted_proxies,
                tls=self._tls_app(),
                redirect=self._redirect_address(),
                storage=str(Path(self.certificates or f"{self.folder}/certificates").absolute()),
            )
        )

    def _redirect_address(self) -> str:
        """Return the listener of ACME challenges: port 80 of the public address."""
        host = host_and_port(self.public_url).rpartition(":")[0]
        return f"{host}:80" if self.domain else ""

    def _tls_app(self) -> dict[str, Any] | None:
        """Return Caddy's app `tls` for the certificate's source; None: plain HTTP.

        Raises:
            Unavailable: a PEM file cannot be read.
        """
        if self.ssl_cert or self.ssl_key:
            for what, name in (("certificate", self.ssl_cert), ("key", self.ssl_key)):
                try:
                    Path(name).open("rb").close()
                except OSError as wrong:
                    raise Unavailable(
                        f"The {what} {name or '(none)'} cannot be read: {wrong.strerror}.",
                        hint="--tls-cert and --tls-key (ssl_cert, ssl_key) name two PEM files.",
                    ) from wrong
            certificate, key = (Path(name).absolute() for name in (self.ssl_cert, self.ssl_key))
            return caddy_config.certificate_files(certificate, key)
        if self.domain:
            return caddy_config.acme(self.domain, self.acme_server, self.acme_roots)
        if self.internal_authority:
            host = urlsplit(self.public_url).hostname or ""
            if host in EVERY_ADDRESS:
                host = socket.gethostname()
            names = ["localhost", "127.0.0.1", "::1", host]
            return caddy_config.internal_authority([*dict.fromkeys(names)])
        return None

    def _deepest_route(self) -> int:
        """Return the most path segments that a route may have."""
        base = len(path_segments(urlsplit(self.public_url).path))
        paths = [spec.partition("/")[2] for spec in self.extra_routes]
        return max(base + USER_SEGMENTS, *(len(path_segments(path)) for path in paths), 0)
