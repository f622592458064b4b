"""The check before a start that this process can listen on an address."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ports import free_port
from runai.embedded.proxy.public_address import check_can_listen
from runai.hub_service.wire.errors import Conflict, Unavailable

pytestmark = pytest.mark.tier("check")

FIRST_UNPRIVILEGED_PORT = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
IPV6_DISABLED_FILE = Path("/proc/sys/net/ipv6/conf/lo/disable_ipv6")


NEEDS_IPV6 = pytest.mark.skipif(
    not IPV6_DISABLED_FILE.exists() or IPV6_DISABLED_FILE.read_text().strip() != "0",
    reason="this machine has no IPv6",
)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "", "0.0.0.0", "*"),
        pytest.param("::1", marks=NEEDS_IPV6),
        pytest.param("[::1]", marks=NEEDS_IPV6),
    ],
)
def test_free_port_passes_the_listen_check(host: str):
    check_can_listen(host, free_port())


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_taken_port_is_a_conflict_that_suggests_a_free_port(host: str):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Conflict) as refused:
            check_can_listen(host, port)

    assert f"Port {port} of {host or 'this machine'} is taken" in refused.value.message
    assert f"--port {port + 1}" in refused.value.hint


def test_port_in_time_wait_passes_the_listen_check():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
    ):
        accepted, _ = server.accept()
        accepted.close()  # the server's end waits in TIME_WAIT
        port = server.getsockname()[1]

    check_can_listen("127.0.0.1", port)


def test_listen_address_of_a_remote_host_is_refused_with_a_hint():
    with pytest.raises(Unavailable) as refused:
        check_can_listen("192.0.2.1", free_port())

    assert refused.value.message.startswith("192.0.2.1 is no address of this machine: ")
    assert "--ip" in refused.value.hint


def test_privileged_port_without_capability_is_forbidden():
    port = int(FIRST_UNPRIVILEGED_PORT.read_text()) - 1
    if port < 1:
        pytest.skip("this machine has no privileged ports")
    program = f"""
import os
from runai.embedded.proxy.public_address import check_can_listen
from runai.hub_service.wire.errors import Forbidden
if os.geteuid() == 0:
    os.setuid(65534)  # nobody
try:
    check_can_listen("127.0.0.1", {port})
except Forbidden as refused:
    print(refused)
"""
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert completed.stdout.startswith(
        f"Port {port} needs the right CAP_NET_BIND_SERVICE (process of uid"
    )
    assert "--port 8000" in completed.stdout
