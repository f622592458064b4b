"""Caddy's JSON configuration: listeners, limits, TLS, and the lookup of routes in files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Relative to Caddy's working directory: a unix socket's path has at most 107 bytes.
ADMIN_SOCKET = "admin.sock"
ROUTES = "routes"

HEADER_S = 15
HEADER_BYTES = 64 * 1024  # tornado's limit: cookies of many servers of one host add up
IDLE_S = 120
# A chunked response that pauses longer is cut off: the service's event streams send a
# keep-alive every 15 s.
STALLED_DOWNLOAD_S = 120
# Bound of one request body: JupyterLab uploads files in chunks of 1 MiB. With `read_idle_timeout`
# Caddy 2.11.7 never closes a stalled small body; fixed in 2.11.9.
UPLOAD_S = 600
HUB_BODY_BYTES = 64 * 1024
# Smaller bodies are forwarded once complete: partial ones do not reach a server, and an early
# response is not lost (golang/go#15527, still open for longer bodies).
BUFFER_BYTES = 64 * 1024
LIMITS = (
    f"request header {HEADER_S} s and {HEADER_BYTES // 1024} KiB, body {UPLOAD_S} s, idle"
    f" connection {IDLE_S} s, stalled download {STALLED_DOWNLOAD_S} s, body for the hub"
    f" {HUB_BODY_BYTES // 1024} KiB"
)
"""The limits in words, for `runai doctor` and `/health`."""

# Tornado believes the first two more than X-Forwarded-For and -Proto; Caddy sets none of them.
FORGEABLE = ("X-Real-Ip", "X-Scheme", "Forwarded")

DIAL_S = 10
# Below uvicorn's 5 s for idle connections: a POST must not be sent into a connection that is
# closing.
KEEP_ALIVE_S = 4
LEAVE_S = 1  # open event streams end with the proxy anyway
MOST_LOGGED = 200  # characters of a path or host

STARTING_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Starting</title>
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="1"></head><body style="font-family: sans-serif; margin: 4em">
<h1>The platform is starting</h1>
<p>This page loads again by itself. If it stays for minutes, ask an admin.</p></body></html>"""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CaddyOptions:
    """The settings from which one configuration is built."""

    listen: str
    """`HOST:PORT`; an empty host is every address."""
    hub: str
    """`HOST:PORT` of JupyterHub itself, for its error page and its body limit."""
    base_url: str = "/"
    depth: int = 3
    """Most path segments of a route."""
    host_routing: bool = False
    trusted_proxies: Sequence[str] = ()
    """Addresses or CIDR ranges of proxies with trusted `X-Forwarded-*` headers."""
    tls: Json | None = None
    """Caddy's app `tls`; None: plain HTTP."""
    redirect: str = ""
    """`HOST:PORT` of a listener that redirects to HTTPS and answers ACME challenges; "": none."""
    storage: str = "certificates"
    """Folder of Caddy's own certificates and keys."""


def caddy_config(options: CaddyOptions) -> Json:
    """Return Caddy's start configuration."""
    https = options.tls is not None
    server: Json = {
        "listen": [options.listen],
        "protocols": ["h1"],  # kernels over HTTP/2 websockets are untried
        "automatic_https": {"disable": True},
        "read_header_timeout": f"{HEADER_S}s",
        "read_timeout": f"{UPLOAD_S}s",
        "read_idle_timeout": -1,
        "write_idle_timeout": f"{STALLED_DOWNLOAD_S}s",
        "idle_timeout": f"{IDLE_S}s",
        "max_header_bytes": HEADER_BYTES,
        "routes": [
            {"match": [_route_file(options)], "handle": _forwarding(options, 443 if https else 80)},
            {"match": [{"path": [f"{options.base_url}*"]}], "handle": [_starting_page()]},
            {"handle": [{"handler": "static_response", "status_code": 404}]},
        ],
        "errors": {"routes": [_error_route(options)]},
    }
    if https:
        server["tls_connection_policies"] = [{}]
    if options.trusted_proxies:
        server["trusted_proxies"] = {"source": "static", "ranges": [*options.trusted_proxies]}
        server["trusted_proxies_strict"] = 1
    servers = {"front": server}
    if options.redirect:
        servers["redirect"] = _redirect(options.redirect, options.listen.rpartition(":")[2])
    apps: Json = {"http": {"grace_period": f"{LEAVE_S}s", "servers": servers}}
    if options.tls is not None:
        # Never install it into the system's trust store, even if this account could.
        authority = {"local": {"install_trust": False}}
        apps |= {"tls": options.tls, "pki": {"certificate_authorities": authority}}
    return {
        "admin": {"listen": f"unix/{ADMIN_SOCKET}|0600", "config": {"persist": False}},
        "storage": {"module": "file_system", "root": options.storage},
        "logging": {"logs": _logs()},
        "apps": apps,
    }


def certificate_files(certificate: Path, key: Path) -> Json:
    """Return the app `tls` for the admin's PEM files; a renewed file changes the configuration.

    Raises:
        OSError: the certificate cannot be read.
    """
    renewed = str(certificate.stat().st_mtime_ns)
    files = {"certificate": str(certificate), "key": str(key), "tags": [renewed]}
    return {"certificates": {"load_files": [files]}}


def internal_authority(names: Sequence[str]) -> Json:
    """Return the app `tls` for names and addresses certified by Caddy's own authority."""
    return _automatic_certificates(names, {"module": "internal"})


def authority_file(storage: Path) -> Path:
    """Return the root certificate of Caddy's own authority."""
    return storage / "pki" / "authorities" / "local" / "root.crt"


def acme(domain: str, directory: str = "", roots: Sequence[str] = ()) -> Json:
    """Return the app `tls` for a domain certified over ACME; no `directory`: Caddy's defaults."""
    issuer: Json = {"module": "acme"}
    if directory:
        issuer |= {"ca": directory, "trusted_roots_pem_files": [*roots]}
    return _automatic_certificates([domain], issuer)


def _automatic_certificates(names: Sequence[str], issuer: Json) -> Json:
    policy = {"subjects": [*names], "issuers": [issuer]}
    return {"certificates": {"automate": [*names]}, "automation": {"policies": [policy]}}


def _route_file(options: CaddyOptions) -> Json:
    """Match a request to its route file: deepest first, a host's routes before common ones.

    Each segment has a prefix, so that `..` in a path names an ordinary folder.
    """
    hosts = ["{http.request.host}", ""] if options.host_routing else [""]
    segments = [f"-{{http.request.uri.path.{number}}}/" for number in range(options.depth)]
    patterns = [
        f"@{host}/{''.join(segments[:length])}=*"
        for host in hosts
        for length in range(options.depth, -1, -1)
    ]
    return {"file": {"root": ROUTES, "try_files": patterns}}


def _forwarding(options: CaddyOptions, default_port: int) -> list[Json]:
    """Return the handlers that forward a request to the server of its route file."""
    limited = {"handler": "request_body", "max_size": HUB_BODY_BYTES}
    is_hub = {"vars": {"{server}": [options.hub]}}
    forwarded = {"set": {"X-Forwarded-Port": ["{port}"]}, "delete": [*FORGEABLE]}
    headers = {"handler": "headers", "request": forwarded}
    untrusted = {"not": [{"vars": {"trusted_proxy": ["true"]}}]}
    return [
        _map_values("{http.matchers.file.relative}", "{server}", ("/=([^/]*)$", "${1}")),
        _map_values("{http.request.port}", "{port}", ("^$", str(default_port)), ("(.*)", "${1}")),
        {
            "handler": "subroute",
            "routes": [
                {"match": [untrusted], "handle": [headers]},
                {"match": [is_hub], "handle": [limited]},
                {"handle": [_without_via(), _proxy("{server}")]},
            ],
        },
    ]


def _error_route(options: CaddyOptions) -> Json:
    """Return the error route: the hub's page, or a reloading one without the hub."""
    page = _proxy(options.hub) | {
        "rewrite": {
            "method": "GET",
            "uri": f"{options.base_url}hub/error/503?url={{http.request.orig_uri.path}}",
        },
        "handle_response": [
            {"routes": [{"handle": [{"handler": "copy_response", "status_code": 503}]}]}
        ],
    }
    cache = {"handler": "headers", "response": {"set": {"Cache-Control": ["no-store"]}}}
    return {
        "match": [{"vars": {"{http.error.status_code}": ["502", "503", "504"]}}],
        "handle": [
            {
                "handler": "subroute",
                "routes": [{"handle": [cache, _without_via(), page]}],
                "errors": {"routes": [{"handle": [_starting_page()]}]},
            }
        ],
    }


def _proxy(server: str) -> Json:
    """Return the handler that forwards to `server`, without the environment's proxy."""
    return {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": server}],
        "flush_interval": -1,
        "request_buffers": BUFFER_BYTES,
        "headers": {"request": {"delete": ["Via"]}},
        "transport": {
            "protocol": "http",
            "compression": False,
            "network_proxy": {"from": "none"},
            "dial_timeout": f"{DIAL_S}s",
            "keep_alive": {"idle_timeout": f"{KEEP_ALIVE_S}s"},
        },
    }


def _without_via() -> Json:
    return {"handler": "headers", "response": {"delete": ["Via"], "deferred": True}}


def _starting_page() -> Json:
    headers = {"Content-Type": ["text/html; charset=utf-8"], "Retry-After": ["1"]}
    answer = {"handler": "static_response", "status_code": 503, "headers": headers}
    return answer | {"body": STARTING_PAGE}


def _redirect(listen: str, https_port: str) -> Json:
    """Return the server that redirects from HTTP to HTTPS."""
    port = "" if https_port == "443" else f":{https_port}"
    location = {"Location": [f"https://{{http.request.host}}{port}{{http.request.uri}}"]}
    answer = {"handler": "static_response", "status_code": 308, "headers": location}
    return {
        "listen": [listen],
        "protocols": ["h1"],
        "automatic_https": {"disable": True},
        "read_header_timeout": f"{HEADER_S}s",
        "read_timeout": f"{HEADER_S}s",
        "idle_timeout": f"{IDLE_S}s",
        "routes": [{"handle": [answer]}],
    }


def _map_values(source: str, destination: str, *cases: tuple[str, str]) -> Json:
    """Return the handler that sets a variable by the first pattern that matches."""
    mappings = [{"input_regexp": pattern, "outputs": [output]} for pattern, output in cases]
    return {
        "handler": "map",
        "source": source,
        "destinations": [destination],
        "mappings": mappings,
    }


def _logs() -> Json:
    """Log warnings without query, headers or long lines; omit aborted requests."""
    cut = {"filter": "regexp", "regexp": f"^([^?]{{0,{MOST_LOGGED}}}).*", "value": "${1}"}
    encoder = {
        "format": "filter",
        "wrap": {"format": "console", "level_format": "upper"},  # no escapes for colours
        "fields": {
            "request>headers": {"filter": "delete"},
            "request>uri": cut,
            "request>host": cut,
        },
    }
    proxy = "http.handlers.reverse_proxy"
    return {
        "default": {"level": "WARN", "encoder": encoder, "exclude": ["admin", proxy]},
        "proxy": {"level": "ERROR", "encoder": encoder, "include": [proxy]},
    }
