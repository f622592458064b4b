"""The proxy over TLS: an admin's certificate, its own authority, and ACME."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from caddy_proxies import CaddyProxies, kill_hub, pid_of
from control_plane.certificates import Authority
from ports import free_port
from runai.embedded.proxy.caddy import CaddyProxy
from runai.embedded.proxy.caddy_config import authority_file
from runai.embedded.proxy.caddy_process import caddy_program
from runai.hub_service.wire.errors import Conflict, Unavailable
from upstream_server import PREFIX, Upstream

pytestmark = pytest.mark.tier("all")

ANA_ROUTE = f"{PREFIX}/"
STRICT = ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN  # Python 3.13's default
TRUST_FOLDERS = (Path("/usr/local/share/ca-certificates"), Path("/etc/ssl/certs"))
NO_AUTHORITY = "https://127.0.0.1:1/directory"
ACME_SERVER = {"handler": "acme_server", "ca": "local"}


@dataclass(frozen=True)
class CertificateFiles:
    """Files of a certificate and of the authority that issued it."""

    authority: Authority
    folder: Path

    def renew(self) -> None:
        self.authority.server(["localhost"], ["127.0.0.1"]).write(self.folder, "server")

    @property
    def settings(self) -> dict[str, str]:
        return {
            "ssl_cert": str(self.folder / "server.crt"),
            "ssl_key": str(self.folder / "server.key"),
        }

    @property
    def trust(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.certificate.decode())
        context.verify_flags |= STRICT
        return context


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    files = CertificateFiles(Authority(), tmp_path)
    files.renew()
    return files


def strict_context(root: Path) -> ssl.SSLContext:
    """Return a context that trusts only one authority, as strictly as Python 3.13."""
    context = ssl.create_default_context(cafile=str(root))
    context.verify_flags |= STRICT
    return context


def https(proxy: CaddyProxy, name: str = "127.0.0.1") -> str:
    """Return a proxy's https URL: JupyterHub writes http if it has no certificate itself."""
    return f"https://{name}:{urlsplit(proxy.public_url).port}{ANA_ROUTE}"


async def headers_of(
    client: aiohttp.ClientSession, url: str, trust: ssl.SSLContext, host: str = ""
) -> dict[str, str]:
    """Return the headers that the upstream server received."""
    async with client.get(url, ssl=trust, headers={"Host": host} if host else {}) as reply:
        return dict((await reply.json())["headers"])


def serial_number(proxy: CaddyProxy, trust: ssl.SSLContext, name: str = "127.0.0.1") -> str:
    """Return the serial number of a proxy's certificate for a name."""
    address = ("127.0.0.1", urlsplit(proxy.public_url).port)
    with (
        socket.create_connection(address) as plain,
        trust.wrap_socket(plain, server_hostname=name) as connection,
    ):
        return str((connection.getpeercert() or {})["serialNumber"])


# -- an admin's certificate -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "port"),
    [
        pytest.param("", None, id="port of the proxy"),
        pytest.param("gpu.example.org", "443", id="no port in Host"),
        pytest.param("gpu.example.org:8443", "8443", id="other port in Host"),
    ],
)
async def test_proxy_sets_forwarded_proto_and_port_over_https(
    proxies: CaddyProxies,
    client: aiohttp.ClientSession,
    upstream: Upstream,
    files: CertificateFiles,
    host: str,
    port: str | None,
):
    proxy = await proxies.start(**files.settings)
    await proxy.add_route(ANA_ROUTE, upstream.url, {})
    headers = await headers_of(client, https(proxy), files.trust, host)

    assert headers["X-Forwarded-Proto"] == "https"
    assert headers["X-Forwarded-Port"] == (port or str(urlsplit(proxy.public_url).port))


async def test_websocket_messages_pass_the_proxy_over_tls(
    proxies: CaddyProxies,
    client: aiohttp.ClientSession,
    upstream: Upstream,
    files: CertificateFiles,
):
    proxy = await proxies.start(**files.settings)
    await proxy.add_route(ANA_ROUTE, upstream.url, {})
    url = f"wss{https(proxy, 'localhost').removeprefix('https')}ws"
    async with client.ws_connect(url, ssl=files.trust) as websocket:
        await websocket.send_str("hello")

        assert await websocket.receive_str(timeout=60) == "hello"


async def test_renewed_certificate_is_served_after_the_next_proxy_start(
    proxies: CaddyProxies, files: CertificateFiles
):
    settings = files.settings | {"public_url": f"https://127.0.0.1:{free_port()}/"}
    first = await proxies.start(**settings)
    pid, number = pid_of(first), serial_number(first, files.trust)
    kill_hub(first)
    second = await proxies.start(**settings)
    assert pid_of(second) == pid

    files.renew()
    assert serial_number(second, files.trust) == number
    kill_hub(second)
    third = await proxies.start(**settings)

    assert pid_of(third) != pid
    assert serial_number(third, files.trust) != number


async def test_missing_tls_certificate_fails_the_proxy_start_with_a_hint(
    proxies: CaddyProxies, files: CertificateFiles
):
    (files.folder / "server.crt").unlink()
    with pytest.raises(Unavailable) as refused:
        await proxies.start(**files.settings)

    assert refused.value.message == (
        f"The certificate {files.folder}/server.crt cannot be read: No such file or directory."
    )
    assert "--tls-cert and --tls-key" in refused.value.hint


@pytest.mark.parametrize(
    "key_setting",
    [
        pytest.param({"ssl_key": "/no/such.key"}, id="missing file"),
        pytest.param({"ssl_key": ""}, id="no key named"),
    ],
)
async def test_missing_tls_key_fails_the_proxy_start_with_a_hint(
    proxies: CaddyProxies, files: CertificateFiles, key_setting: dict[str, str]
):
    with pytest.raises(Unavailable) as refused:
        await proxies.start(**files.settings | key_setting)

    assert "--tls-cert and --tls-key" in refused.value.hint


# -- an authority of its own ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_internal_authority_certifies_localhost_without_system_trust(
    proxies: CaddyProxies,
    client: aiohttp.ClientSession,
    upstream: Upstream,
    name: str,
    eventually_async: Callable[..., Any],
):
    trusted_before = system_trust_store()
    proxy = await proxies.start(internal_authority=True)
    await proxy.add_route(ANA_ROUTE, upstream.url, {})
    trust = strict_context(authority_file(Path(proxy.certificates)))
    await eventually_async(lambda: answers(client, https(proxy, name), trust))
    headers = await headers_of(client, https(proxy, name), trust)

    assert headers["X-Forwarded-Proto"] == "https"
    assert system_trust_store() == trusted_before


def system_trust_store() -> dict[str, tuple[int, int]]:
    """Return size and time of each file in the system's trust store."""
    paths = (path for folder in TRUST_FOLDERS if folder.exists() for path in folder.iterdir())
    states = ((path, path.lstat()) for path in paths)
    return {str(path): (state.st_size, state.st_mtime_ns) for path, state in states}


@pytest.mark.parametrize(
    "ip",
    [
        pytest.param("", id="empty"),
        pytest.param("0.0.0.0", id="0.0.0.0"),
    ],
)
async def test_certificate_for_a_wildcard_address_covers_the_host_name(
    proxies: CaddyProxies, ip: str, eventually_async: Callable[..., Any]
):
    port = free_port()
    proxy = await proxies.start(public_url=f"http://{ip}:{port}/", internal_authority=True)
    trust = strict_context(authority_file(Path(proxy.certificates)))

    def certified() -> bool:
        with suppress(ssl.SSLError):
            return bool(serial_number(proxy, trust, socket.gethostname()))
        return False

    await eventually_async(certified)


async def test_internal_authority_certificate_is_stable_and_its_key_is_private(
    proxies: CaddyProxies,
):
    proxy = await proxies.start(internal_authority=True)
    root = authority_file(Path(proxy.certificates))
    before = root.read_bytes()
    await proxy.stop()
    await proxy.start()

    assert root.read_bytes() == before
    assert stat.S_IMODE(root.with_name("root.key").stat().st_mode) == 0o600


# -- ACME -----------------------------------------------------------------------------------------


@contextmanager
def acme_authority(folder: Path, challenge: str) -> Iterator[tuple[str, Path]]:
    """Run Caddy's ACME server on loopback; yield its directory's URL and its root certificate."""
    port = free_port()
    policy = {"subjects": ["127.0.0.1"], "issuers": [{"module": "internal"}]}
    server = {
        "listen": [f"127.0.0.1:{port}"],
        "protocols": ["h1"],
        "automatic_https": {"disable": True},
        "tls_connection_policies": [{}],
        "routes": [{"handle": [ACME_SERVER | {"challenges": [challenge]}]}],
    }
    config = {
        "admin": {"disabled": True, "config": {"persist": False}},
        "storage": {"module": "file_system", "root": str(folder)},
        "logging": {"logs": {"default": {"level": "ERROR"}}},
        "apps": {
            "http": {"servers": {"acme": server}},
            "pki": {"certificate_authorities": {"local": {"install_trust": False}}},
            "tls": {
                "certificates": {"automate": ["127.0.0.1"]},
                "automation": {"policies": [policy]},
            },
        },
    }
    process = subprocess.Popen(
        [caddy_program(), "run", "--config", "-"],
        stdin=subprocess.PIPE,
        env={"HOME": str(folder), "XDG_DATA_HOME": str(folder)},
    )
    with process:
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(json.dumps(config).encode())
        try:
            yield f"https://127.0.0.1:{port}/acme/local/directory", authority_file(folder)
        finally:
            process.terminate()


USUAL_PORTS = pytest.mark.xdist_group("ports-80-and-443")


@pytest.fixture
def usual_ports() -> None:
    """Skip the test if this process cannot listen on ports 80 and 443 of 127.0.0.1."""
    for port in (80, 443):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as failed:
            pytest.skip(f"port {port} of 127.0.0.1: {failed.strerror}")


@USUAL_PORTS
@pytest.mark.parametrize("challenge", ["http-01", "tls-alpn-01"])
async def test_proxy_with_a_domain_gets_its_certificate_over_acme(
    proxies: CaddyProxies,
    client: aiohttp.ClientSession,
    upstream: Upstream,
    usual_ports: None,
    tmp_path: Path,
    eventually_async: Callable[..., Any],
    challenge: str,
):
    folder = tmp_path / "acme"
    folder.mkdir()
    with acme_authority(folder, challenge) as (directory, root):
        await eventually_async(root.exists)
        await eventually_async(lambda: answers(client, directory, strict_context(root)))
        settings = {
            "public_url": "http://127.0.0.1:443/",
            "domain": "localhost",
            "acme_server": directory,
            "acme_roots": [str(root)],
        }
        proxy = await proxies.start(**settings)
        await proxy.add_route(ANA_ROUTE, upstream.url, {})
        await eventually_async(
            lambda: answers(client, f"https://localhost{ANA_ROUTE}", strict_context(root))
        )
    headers = await headers_of(client, f"https://localhost{ANA_ROUTE}", strict_context(root))
    assert (headers["X-Forwarded-Proto"], headers["X-Forwarded-Port"]) == ("https", "443")

    async with client.get(f"http://localhost{ANA_ROUTE}?a=1", allow_redirects=False) as reply:
        assert reply.status == 308
        assert reply.headers["Location"] == f"https://localhost{ANA_ROUTE}?a=1"

    # The authority is gone, but the next start still has the certificate.
    await proxy.stop()
    await proxy.start()
    await eventually_async(lambda: answers(client, "https://localhost/", strict_context(root)))


@USUAL_PORTS
async def test_http_redirect_names_a_nondefault_https_port(
    proxies: CaddyProxies, client: aiohttp.ClientSession, usual_ports: None
):
    proxy = await proxies.start(domain="localhost", acme_server=NO_AUTHORITY)
    async with client.get(f"http://localhost{ANA_ROUTE}", allow_redirects=False) as reply:
        assert reply.headers["Location"] == https(proxy, "localhost")


@USUAL_PORTS
async def test_taken_port_80_refuses_a_start_with_a_domain(
    proxies: CaddyProxies, usual_ports: None
):
    with (
        socket.create_server(("127.0.0.1", 80)),
        pytest.raises(Conflict, match=r"Port 80 of 127\.0\.0\.1 is taken"),
    ):
        await proxies.start(domain="localhost", acme_server=NO_AUTHORITY)


async def answers(client: aiohttp.ClientSession, url: str, trust: ssl.SSLContext) -> bool:
    """Return True if a server with a trusted certificate answers."""
    try:
        async with client.get(url, ssl=trust):
            return True
    except aiohttp.ClientError:
        return False
