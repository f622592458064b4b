"""Ports for programs that listen later: no other process gets such a port meanwhile."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import ports
from runai.hub_service.processes import ports as later_ports
from runai.hub_service.processes.ports import later_port, port_is_free

EPHEMERAL_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_port_with_a_listener_is_not_reported_free():
    with socket.socket() as other:
        other.bind(("127.0.0.1", ports.free_port()))
        other.listen()
        port = other.getsockname()[1]
        is_free_while_used = port_is_free(port)

    assert not is_free_while_used
    assert port_is_free(port)


def test_ports_for_later_use_are_outside_this_machines_ephemeral_range():
    if not EPHEMERAL_RANGE_FILE.exists():
        pytest.skip("only Linux says what it hands out")
    first, last = map(int, EPHEMERAL_RANGE_FILE.read_text().split())
    if first <= 20_000:
        pytest.skip(f"this machine hands out ports from {first} on")

    free_ports = {later_port() for _ in range(50)}
    assert not any(first <= port <= last for port in free_ports)
    assert len(free_ports) > 1


@pytest.mark.parametrize(
    ("range_text", "expected"),
    [
        pytest.param("32768\t60999\n", range(20_000, 32_768), id="Linux default"),
        pytest.param("25000 60999", range(20_000, 25_000), id="range begins among the candidates"),
        pytest.param("1024 65535", range(20_000, 1_024), id="range covers all candidates"),
        pytest.param("", range(20_000, 32_768), id="empty file"),
        pytest.param(None, range(20_000, 32_768), id="no file, as outside Linux"),
    ],
)
def test_candidate_ports_for_later_use_exclude_the_ephemeral_range(
    tmp_path: Path, range_text: str | None, expected: range
):
    file = tmp_path / "range"
    if range_text is not None:
        file.write_text(range_text)

    assert later_ports._below_ephemeral(range(20_000, 32_768), file) == expected


def test_operating_system_chooses_the_port_if_no_candidate_is_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(later_ports, "_CANDIDATES", range(0))

    assert port_is_free(later_port())
