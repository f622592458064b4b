"""The public address, from the options of `runai up` and the admin's own file."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from runai.embedded.proxy.public_address import base_url, domain, host_and_port, public_address
from runai.embedded.up import parse
from runai.hub_service.wire.errors import InvalidRequest

pytestmark = pytest.mark.tier("check")

MACHINE = socket.gethostname()
DOMAIN = ["--domain", "gpu.example.org"]
CERTIFICATE = ["--tls-cert", __file__, "--tls-key", __file__]
LOCAL, EVERY = "127.0.0.1", ""


@pytest.mark.parametrize(
    ("options", "admin_settings", "ip", "port", "bind_url", "url"),
    [
        pytest.param(
            [], {}, LOCAL, 8000, "http://127.0.0.1:8000/", "http://127.0.0.1:8000/", id="defaults"
        ),
        pytest.param(
            ["--ip", "10.0.0.5", "--port", "9000", "--base-url", "jupyter"],
            {},
            *("10.0.0.5", 9000),
            *("http://10.0.0.5:9000/jupyter/", "http://10.0.0.5:9000/jupyter/"),
            id="options",
        ),
        pytest.param(
            ["--port", "80"], {}, LOCAL, 80, "http://127.0.0.1:80/", "http://127.0.0.1/", id="80"
        ),
        pytest.param(
            ["--ip", ""], {}, EVERY, 8000, "http://:8000/", f"http://{MACHINE}:8000/", id="every IP"
        ),
        pytest.param(
            ["--ip", "0.0.0.0"],
            {},
            *("0.0.0.0", 8000, "http://0.0.0.0:8000/", f"http://{MACHINE}:8000/"),
            id="every IPv4",
        ),
        pytest.param(
            ["--ip", "::1"], {}, "::1", 8000, "http://[::1]:8000/", "http://[::1]:8000/", id="IPv6"
        ),
        pytest.param(
            [],
            {"ip": "::"},
            *("::", 8000, "http://[::]:8000/", f"http://{MACHINE}:8000/"),
            id="every IPv6",
        ),
        pytest.param(
            DOMAIN, {}, EVERY, 443, "https://:443/", "https://gpu.example.org/", id="domain"
        ),
        pytest.param(
            [*DOMAIN, "--ip", LOCAL, "--base-url", "/jupyter/"],
            {},
            *(LOCAL, 443, "https://127.0.0.1:443/jupyter/", "https://gpu.example.org/jupyter/"),
            id="domain, address and path",
        ),
        pytest.param(
            [*DOMAIN, "--port", "8443"],
            {},
            *(EVERY, 8443, "https://:8443/", "https://gpu.example.org:8443/"),
            id="domain and another port",
        ),
        pytest.param(
            CERTIFICATE,
            {},
            *(LOCAL, 8000, "https://127.0.0.1:8000/", "https://127.0.0.1:8000/"),
            id="certificate",
        ),
        pytest.param(
            [*CERTIFICATE, "--port", "443"],
            {},
            *(LOCAL, 443, "https://127.0.0.1:443/", "https://127.0.0.1/"),
            id="certificate and usual port",
        ),
        pytest.param(
            ["--tls-internal", "--ip", "localhost"],
            {},
            *("localhost", 8000, "https://localhost:8000/", "https://localhost:8000/"),
            id="internal authority",
        ),
        pytest.param(
            [],
            {"port": 9000},
            *(LOCAL, 9000, "http://127.0.0.1:9000/", "http://127.0.0.1:9000/"),
            id="admin's port",
        ),
        pytest.param(
            ["--base-url", "/a/"],
            {"base_url": "/b/c"},
            *(LOCAL, 8000, "http://127.0.0.1:8000/b/c/", "http://127.0.0.1:8000/b/c/"),
            id="admin's path",
        ),
        pytest.param(
            ["--port", "9000"],
            {"ip": "10.0.0.5"},
            *("10.0.0.5", 9000, "http://10.0.0.5:9000/", "http://10.0.0.5:9000/"),
            id="admin's address",
        ),
        pytest.param(
            ["--port", "9000", "--base-url", "/a/"],
            {"bind_url": "http://10.0.0.5:9001/b/"},
            *("10.0.0.5", 9001, "http://10.0.0.5:9001/b/", "http://10.0.0.5:9001/b/"),
            id="admin's bind_url",
        ),
        pytest.param(
            [],
            {"bind_url": "http://:9001"},
            *(EVERY, 9001, "http://:9001/", f"http://{MACHINE}:9001/"),
            id="admin's bind_url of every IP",
        ),
        pytest.param(
            ["--port", "9000"],
            {"bind_url": "http://[::1]"},
            *("::1", 8000, "http://[::1]:8000/", "http://[::1]:8000/"),
            id="admin's bind_url without a port",
        ),
        pytest.param(
            [],
            {
                "bind_url": "http://10.0.0.5:9001/b/",
                "ip": "10.0.0.6",
                "port": 9002,
                "base_url": "c",
            },
            *("10.0.0.6", 9002, "http://10.0.0.6:9002/c/", "http://10.0.0.6:9002/c/"),
            id="admin's parts before bind_url",
        ),
        pytest.param(
            [],
            {"bind_url": "http://*:9001/"},
            *(EVERY, 9001, "http://:9001/", f"http://{MACHINE}:9001/"),
            id="admin's bind_url of *",
        ),
        pytest.param(
            [],
            {"bind_url": "https://10.0.0.5:9001/"},
            *("10.0.0.5", 9001, "http://10.0.0.5:9001/", "http://10.0.0.5:9001/"),
            id="admin's bind_url of https without a certificate",
        ),
        pytest.param(
            [],
            {"ssl_cert": "cert.pem", "ip": "", "port": 443},
            *(EVERY, 443, "https://:443/", f"https://{MACHINE}/"),
            id="admin's certificate",
        ),
        pytest.param(
            [],
            {"public_url": "https://gpu.example.org:8443/jupyter/", "base_url": "/jupyter/"},
            *(LOCAL, 8000, "http://127.0.0.1:8000/jupyter/"),
            "https://gpu.example.org:8443/jupyter/",
            id="admin's public_url",
        ),
        pytest.param(
            DOMAIN,
            {"public_url": "https://other.example.org"},
            *(EVERY, 443, "https://:443/", "https://other.example.org/"),
            id="admin's public_url before a domain",
        ),
        pytest.param(
            CERTIFICATE,
            {"subdomain_host": "https://gpu.example.org:8000", "base_url": "/j/"},
            *(LOCAL, 8000, "https://127.0.0.1:8000/j/", "https://gpu.example.org:8000/j/"),
            id="admin's subdomains",
        ),
        pytest.param(
            [],
            {"subdomain_host": "gpu.example.org"},
            *(LOCAL, 8000, "http://127.0.0.1:8000/", "https://gpu.example.org/"),
            id="admin's subdomains without a scheme",
        ),
    ],
)
def test_admins_address_settings_take_precedence_over_up_options(
    options: list[str], admin_settings: dict[str, Any], ip: str, port: int, bind_url: str, url: str
):
    address = public_address(parse(options), admin_settings)

    assert (address.ip, address.port, address.bind_url, address.url) == (ip, port, bind_url, url)
    assert bind_url.endswith(address.base_url)


@pytest.mark.parametrize(
    ("ip", "expected"),
    [
        *(("127.0.0.1", False), ("127.1.2.3", False), ("localhost", False), ("::1", False)),
        *(("", True), ("0.0.0.0", True), ("::", True), ("*", True), ("10.0.0.5", True)),
    ],
)
def test_addresses_other_than_loopback_are_public(ip: str, expected: bool):
    assert public_address(parse([]), {"ip": ip}).is_public is expected


@pytest.mark.parametrize(
    ("options", "behind_proxy", "expected"),
    [
        pytest.param([], False, "", id="loopback"),
        pytest.param(["--ip", "0.0.0.0"], False, "Passwords travel unencrypted", id="public IP"),
        pytest.param(["--ip", "0.0.0.0"], True, "", id="behind a trusted proxy"),
        pytest.param(["--ip", "0.0.0.0", "--tls-internal"], False, "", id="own authority"),
        pytest.param(DOMAIN, False, "", id="public name"),
    ],
)
def test_public_address_without_tls_gives_a_warning(
    options: list[str], behind_proxy: bool, expected: str
):
    warning = public_address(parse(options), {}).warning(behind_proxy=behind_proxy)

    assert warning.partition(":")[0] == expected


@pytest.mark.parametrize(
    ("options", "admin_settings", "sentence"),
    [
        pytest.param(
            [],
            {"bind_url": "http+unix://%2Fsrv%2Fproxy.sock"},
            "c.JupyterHub.bind_url is http+unix://%2Fsrv%2Fproxy.sock, which the proxy cannot",
            id="socket",
        ),
        pytest.param(
            [], {"bind_url": "localhost:9000"}, "c.JupyterHub.bind_url is localhost:9000", id="name"
        ),
        pytest.param(
            [],
            {"bind_url": "10.0.0.5:9000"},
            "c.JupyterHub.bind_url is 10.0.0.5:9000",
            id="address",
        ),
        pytest.param(
            [],
            {"bind_url": "http://127.0.0.1:70000/"},
            "c.JupyterHub.bind_url is http://127.0.0.1:70000/",
            id="port out of range",
        ),
        pytest.param(
            [],
            {"port": 0},
            "c.JupyterHub.port is 0",
            id="port 0",
        ),
        pytest.param(
            DOMAIN,
            {"subdomain_host": "https://gpu.example.org"},
            "--domain gpu.example.org cannot certify the subdomains of https://gpu.example.org.",
            id="domain with subdomains",
        ),
        pytest.param(
            [], {"base_url": "/a b/"}, "c.JupyterHub.base_url /a b/ is not possible.", id="base_url"
        ),
        pytest.param(
            [],
            {"bind_url": "http://127.0.0.1:8000/../"},
            "c.JupyterHub.base_url /../ is not possible.",
            id="path of bind_url",
        ),
    ],
)
def test_invalid_or_contradictory_address_settings_are_refused_with_a_hint(
    options: list[str], admin_settings: dict[str, Any], sentence: str
):
    with pytest.raises(InvalidRequest) as refused:
        public_address(parse(options), admin_settings)

    assert refused.value.message.startswith(sentence)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "path"),
    [
        *(("", "/"), ("/", "/"), ("///", "/"), ("jupyter", "/jupyter/"), ("/a/b", "/a/b/")),
        *(("a.b/~c_d-1/", "/a.b/~c_d-1/"),),
    ],
)
def test_base_url_is_normalized_with_slashes_at_both_ends(text: str, path: str):
    assert base_url("--base-url", text) == path


@pytest.mark.parametrize(
    "text", ["a b", "a//b", "/../a", "a/.", "a%20b", "a?b", "a#b", "é", "a*", "{x}", "http://x/"]
)
def test_invalid_base_url_is_refused(text: str):
    with pytest.raises(InvalidRequest, match="is not possible") as refused:
        base_url("--base-url", text)

    assert refused.value.message == f"--base-url {text} is not possible."


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gpu.example.org", "gpu.example.org"),
        ("GPU.Example.ORG", "gpu.example.org"),
        ("xn--mnchen-3ya.de", "xn--mnchen-3ya.de"),
        ("localhost", "localhost"),
    ],
)
def test_domain_option_is_converted_to_lower_case(text: str, name: str):
    assert domain("--domain", text) == name


@pytest.mark.parametrize(
    "text",
    [
        *("gpu", "gpu.example.org.", ".example.org", "a..b.org", "-a.example.org", "a_b.org"),
        *("*.example.org", "https://gpu.example.org", "gpu.example.org:443", "münchen.de"),
        *("x" * 64 + ".org", "::1", "gpu.example.org\n", "127.0.0.1"),
        pytest.param("10.0.0.10"),
    ],
)
def test_invalid_domain_option_is_refused(text: str):
    with pytest.raises(InvalidRequest) as refused:
        domain("--domain", text)

    assert refused.value.message == f"--domain {text} is not possible."


@pytest.mark.parametrize(
    ("url", "listener"),
    [
        ("http://127.0.0.1:8000/jupyter/", "127.0.0.1:8000"),
        ("http://[::1]:8000/", "[::1]:8000"),
        ("https://:443/", ":443"),
        ("http://gpu.example.org/", "gpu.example.org:80"),
        ("https://gpu.example.org", "gpu.example.org:443"),
    ],
)
def test_proxy_listener_is_host_and_port_of_the_bind_url(url: str, listener: str):
    assert host_and_port(url) == listener
