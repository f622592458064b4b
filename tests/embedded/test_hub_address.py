"""JupyterHub's own settings of its address, from options and the admin's file."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from jupyterhub.app import JupyterHub
from traitlets.config import Config

from runai.embedded.configuration import at_address
from runai.embedded.proxy.public_address import host_and_port, public_address
from runai.embedded.up import parse

pytestmark = pytest.mark.tier("check")

DOMAIN = ["--domain", "gpu.example.org"]
CERTIFICATE = ["--tls-cert", __file__, "--tls-key", __file__]


@pytest.mark.parametrize(
    ("options", "admin_settings", "traits"),
    [
        pytest.param([], {}, ("127.0.0.1", 8000, "/", "http://127.0.0.1:8000/"), id="defaults"),
        pytest.param(
            [],
            {"base_url": "/jupyter/"},
            ("127.0.0.1", 8000, "/jupyter/", "http://127.0.0.1:8000/jupyter/"),
            id="base_url alone",
        ),
        pytest.param(
            [],
            {"port": 9000},
            ("127.0.0.1", 9000, "/", "http://127.0.0.1:9000/"),
            id="port alone",
        ),
        pytest.param(
            ["--port", "9000"],
            {"ip": "10.0.0.5"},
            ("10.0.0.5", 9000, "/", "http://10.0.0.5:9000/"),
            id="ip alone",
        ),
        pytest.param(
            ["--port", "9000"],
            {"bind_url": "http://[::1]:9001/jupyter"},
            ("::1", 9001, "/jupyter/", "http://[::1]:9001/jupyter/"),
            id="bind_url",
        ),
        pytest.param(
            [],
            {"bind_url": "http://10.0.0.5:9001/a/", "port": 9002, "base_url": "/b/"},
            ("10.0.0.5", 9002, "/b/", "http://10.0.0.5:9002/b/"),
            id="bind_url and parts",
        ),
        pytest.param(["--ip", ""], {}, ("", 8000, "/", "http://:8000/"), id="every address"),
        pytest.param(
            [],
            {"ssl_cert": "cert.pem", "ssl_key": "key.pem", "port": 8443},
            ("127.0.0.1", 8443, "/", "https://127.0.0.1:8443/"),
            id="certificate",
        ),
    ],
)
def test_jupyterhub_gets_a_single_bind_address_without_a_conflict_warning(
    options: list[str],
    admin_settings: dict[str, Any],
    traits: tuple[str, int, str, str],
    caplog: pytest.LogCaptureFixture,
):
    hub = hub_of(options, admin_settings, caplog)

    assert (hub.ip, hub.port, hub.base_url, hub.bind_url) == traits
    assert hub.public_url == ""
    assert "Both bind_url and" not in caplog.text


@pytest.mark.parametrize(
    ("options", "admin_settings", "public_url", "listener"),
    [
        pytest.param(DOMAIN, {}, "https://gpu.example.org/", ":443", id="domain"),
        pytest.param(
            [*DOMAIN, "--base-url", "/j/"],
            {},
            *("https://gpu.example.org/j/", ":443"),
            id="domain and path",
        ),
        pytest.param(
            ["--base-url", "/j/"],
            {"public_url": "https://gpu.example.org"},
            *("https://gpu.example.org/j/", "127.0.0.1:8000"),
            id="public_url without the path",
        ),
        pytest.param(
            CERTIFICATE,
            {"subdomain_host": "https://gpu.example.org"},
            *("https://gpu.example.org/", "127.0.0.1:8000"),
            id="subdomain_host",
        ),
    ],
)
def test_jupyterhub_gets_public_url_and_listener_of_the_public_name(
    options: list[str],
    admin_settings: dict[str, Any],
    public_url: str,
    listener: str,
    caplog: pytest.LogCaptureFixture,
):
    hub = hub_of(options, admin_settings, caplog)

    assert hub.public_url == public_url
    # JupyterHub writes http for https where it has no certificate: the port must be explicit.
    assert host_and_port(hub.bind_url) == listener
    assert "Both bind_url and" not in caplog.text


def hub_of(
    options: list[str], admin_settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> JupyterHub:
    """Return JupyterHub's application with an admin's settings, completed as EmbeddedHub does."""
    hub = JupyterHub(config=Config({"JupyterHub": admin_settings}))
    hub.log.addHandler(caplog.handler)
    caplog.set_level(logging.DEBUG, hub.log.name)
    hub.update_config(at_address(public_address(parse(options), admin_settings), hub.config))
    hub.log.removeHandler(caplog.handler)
    return hub
