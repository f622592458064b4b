"""The proxy's process: restart, adoption, replacement, start and stop."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest

from caddy_proxies import (
    CADDY,
    CaddyProxies,
    echo,
    hide_programs,
    is_served,
    kill_hub,
    pid_of,
    processes_in,
)
from ports import free_port
from runai.embedded.proxy import caddy
from runai.embedded.proxy.caddy import CaddyProxy
from runai.embedded.proxy.caddy_config import ADMIN_SOCKET
from runai.embedded.proxy.caddy_process import CaddyProcess
from runai.hub_service.wire.errors import Conflict, Unavailable
from upstream_server import PREFIX, Upstream

ANA_ROUTE = f"{PREFIX}/"
ROUTE_DATA = {"user": "ana", "server_name": ""}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty folder in which programs are searched."""
    return hide_programs(tmp_path / "bin", monkeypatch)


def port_of(proxy: CaddyProxy) -> int:
    port = urlsplit(proxy.public_url).port
    assert port is not None
    return port


# -- started again --------------------------------------------------------------------------------


async def test_killed_proxy_restarts_with_its_routes(
    proxies: CaddyProxies,
    client: aiohttp.ClientSession,
    upstream: Upstream,
    eventually_async: Callable[..., Any],
):
    proxy = await proxies.start()
    await proxy.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)
    pids = {pid_of(proxy)}
    for _ in range(2):
        await kill_proxy(proxy, eventually_async)
        assert await is_served(client, proxy, ANA_ROUTE)
        pids.add(pid_of(proxy))

    assert len(pids) == 3
    assert (await proxy.get_all_routes())[ANA_ROUTE]["target"] == upstream.url


async def test_hung_proxy_is_killed_and_restarts_with_its_routes(
    proxies: CaddyProxies,
    client: aiohttp.ClientSession,
    upstream: Upstream,
    eventually_async: Callable[..., Any],
):
    proxy = await proxies.start(hung_after=2.0)
    await proxy.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)
    hung_pid = pid_of(proxy)

    os.kill(hung_pid, signal.SIGSTOP)

    await eventually_async(lambda: not psutil.pid_exists(hung_pid))
    await eventually_async(lambda: is_served(client, proxy, ANA_ROUTE))


async def kill_proxy(proxy: CaddyProxy, eventually_async: Callable[..., Any]) -> None:
    """Kill a proxy's process, and wait until a new one is supervised."""
    watch = proxy._watch
    os.kill(pid_of(proxy), signal.SIGKILL)
    await eventually_async(lambda: proxy._watch is not watch)


async def test_proxy_restarts_when_its_missing_program_returns(
    proxies: CaddyProxies,
    client: aiohttp.ClientSession,
    upstream: Upstream,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    eventually_async: Callable[..., Any],
):
    monkeypatch.setattr(caddy, "AGAIN_S", 0.05)
    (programs / "caddy").symlink_to(CADDY)
    proxy = await proxies.start()
    await proxy.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)
    watch = proxy._watch
    (programs / "caddy").unlink()
    os.kill(pid_of(proxy), signal.SIGKILL)
    await eventually_async(lambda: caplog.text.count("The proxy needs the program caddy.") > 1)
    (programs / "caddy").symlink_to(CADDY)
    await eventually_async(lambda: proxy._watch is not watch)

    assert await is_served(client, proxy, ANA_ROUTE)


async def test_proxy_stop_during_restart_leaves_no_process(
    proxies: CaddyProxies, eventually_async: Callable[..., Any]
):
    proxy = await proxies.start()
    before = proxy._process._child
    os.kill(pid_of(proxy), signal.SIGKILL)
    await eventually_async(lambda: proxy._process._child is not before)
    await proxy.stop()

    assert processes_in(proxies.root) == []


# -- adopted --------------------------------------------------------------------------------------


async def test_next_hub_adopts_the_proxy_process_with_routes_and_websockets(
    proxies: CaddyProxies, client: aiohttp.ClientSession, upstream: Upstream
):
    first = await proxies.start()
    await first.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)
    pid = pid_of(first)
    async with client.ws_connect(f"{first.public_url}user/ana/ws") as websocket:
        assert await echo(websocket, "before") == "before"
        kill_hub(first)
        second = await proxies.start(public_url=first.public_url)

        assert await echo(websocket, "after") == "after"
    assert pid_of(second) == pid
    assert await second.get_all_routes() == {
        ANA_ROUTE: {"routespec": ANA_ROUTE, "target": upstream.url, "data": ROUTE_DATA}
    }
    assert await is_served(client, second, ANA_ROUTE)


async def test_adopted_proxy_restarts_after_it_is_killed(
    proxies: CaddyProxies,
    client: aiohttp.ClientSession,
    upstream: Upstream,
    eventually_async: Callable[..., Any],
):
    first = await proxies.start()
    kill_hub(first)
    second = await proxies.start(public_url=first.public_url)
    await second.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)
    await kill_proxy(second, eventually_async)

    assert await is_served(client, second, ANA_ROUTE)


@pytest.mark.parametrize(
    "change_settings",
    [
        pytest.param(lambda: {"public_url": f"http://127.0.0.1:{free_port()}/"}, id="port"),
        pytest.param(lambda: {"trusted_proxies": ["10.0.0.1/32"]}, id="trusted proxies"),
    ],
)
async def test_changed_proxy_configuration_starts_a_new_process_without_routes(
    proxies: CaddyProxies,
    client: aiohttp.ClientSession,
    upstream: Upstream,
    change_settings: Callable[[], dict[str, Any]],
):
    first = await proxies.start()
    await first.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)
    pid = pid_of(first)
    kill_hub(first)
    second = await proxies.start(**{"public_url": first.public_url} | change_settings())

    assert pid_of(second) != pid
    assert not psutil.pid_exists(pid)
    assert await second.get_all_routes() == {}
    assert not await is_served(client, second, ANA_ROUTE)


async def test_upgraded_caddy_program_starts_a_new_proxy_process(
    proxies: CaddyProxies, programs: Path
):
    program, newer = programs / "caddy", programs / "newer"
    shutil.copy(CADDY, program)
    first = await proxies.start()
    pid = pid_of(first)
    kill_hub(first)
    second = await proxies.start(public_url=first.public_url)
    assert pid_of(second) == pid

    kill_hub(second)
    shutil.copy(program, newer)
    newer.replace(program)
    third = await proxies.start(public_url=first.public_url)
    program.unlink()  # pytest retains the folders of tests, and the program has 50 MB

    assert pid_of(third) != pid
    assert not psutil.pid_exists(pid)


async def test_frozen_proxy_is_replaced_instead_of_adopted(
    proxies: CaddyProxies, client: aiohttp.ClientSession, upstream: Upstream
):
    first = await proxies.start()
    pid = pid_of(first)
    kill_hub(first)
    os.kill(pid, signal.SIGSTOP)
    second = await proxies.start(public_url=first.public_url)
    await second.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)

    assert pid_of(second) != pid
    assert await is_served(client, second, ANA_ROUTE)


# -- one process for each folder -------------------------------------------------------------------


async def test_proxies_of_two_folders_have_two_processes(
    proxies: CaddyProxies, client: aiohttp.ClientSession, upstream: Upstream
):
    first = await proxies.start(folder=str(proxies.root / "one"))
    second = await proxies.start(folder=str(proxies.root / "other"))
    await second.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)
    assert not await is_served(client, first, ANA_ROUTE)

    await first.stop()

    assert await is_served(client, second, ANA_ROUTE)


async def test_copied_proxy_folder_does_not_share_the_process(
    proxies: CaddyProxies, client: aiohttp.ClientSession, upstream: Upstream
):
    first = await proxies.start()
    await first.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)
    folder, copy = Path(first.folder), proxies.root / "copy"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(ADMIN_SOCKET))
    assert CaddyProcess(copy).pid() is None
    with socket.socket(socket.AF_UNIX) as node:  # as `cp -a` copies it
        node.bind(str(copy / ADMIN_SOCKET))
    assert CaddyProcess(copy).pid() is None

    second = await proxies.start(folder=str(copy))

    assert pid_of(second) != pid_of(first)
    assert await second.get_all_routes() == {}
    assert await is_served(client, first, ANA_ROUTE)


async def test_proxy_serves_from_a_folder_longer_than_a_socket_path(
    proxies: CaddyProxies, client: aiohttp.ClientSession, upstream: Upstream
):
    folder = proxies.root.joinpath(*["a" * 60] * 4)
    first = await proxies.start(folder=str(folder))
    await first.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)
    pid = pid_of(first)
    kill_hub(first)
    second = await proxies.start(folder=str(folder), public_url=first.public_url)

    assert len(str(folder)) > 107  # the longest path of a Unix socket
    assert pid_of(second) == pid
    assert await is_served(client, second, ANA_ROUTE)


def test_missing_proxy_folder_has_no_process(tmp_path: Path):
    process = CaddyProcess(tmp_path / "none")

    assert process.pid() is None
    assert not process.listens_on(80)
    assert not process.hangs(60.0)


async def test_proxy_process_listens_only_on_its_port(proxies: CaddyProxies):
    proxy = await proxies.start()
    process = CaddyProcess(Path(proxy.folder))
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert process.listens_on(port_of(proxy))
        assert not process.listens_on(other.getsockname()[1])
    await proxy.stop()

    assert not process.listens_on(port_of(proxy))


# -- start and stop -------------------------------------------------------------------------------


async def test_proxy_stop_leaves_no_process_and_can_be_repeated(proxies: CaddyProxies):
    proxy = await proxies.start()
    [process] = processes_in(proxies.root)
    assert process.pid == pid_of(proxy)
    await proxy.stop()

    assert processes_in(proxies.root) == []
    assert await proxy.get_all_routes() == {}
    await proxy.stop()


async def test_proxy_stop_before_start_does_nothing(proxies: CaddyProxies):
    await proxies.new().stop()


async def test_start_of_a_running_proxy_changes_nothing(
    proxies: CaddyProxies,
    client: aiohttp.ClientSession,
    upstream: Upstream,
    caplog: pytest.LogCaptureFixture,
    eventually_async: Callable[..., Any],
):
    proxy = await proxies.start()
    await proxy.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)
    pid = pid_of(proxy)
    await proxy.start()
    assert pid_of(proxy) == pid
    assert await is_served(client, proxy, ANA_ROUTE)

    await kill_proxy(proxy, eventually_async)

    assert caplog.text.count("The proxy has ended") == 1


async def test_stopped_proxy_serves_routes_after_a_new_start(
    proxies: CaddyProxies, client: aiohttp.ClientSession, upstream: Upstream
):
    proxy = await proxies.start()
    await proxy.stop()
    await proxy.start()
    await proxy.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)

    assert await is_served(client, proxy, ANA_ROUTE)


async def test_taken_port_at_proxy_start_is_a_conflict(proxies: CaddyProxies):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Conflict, match=f"Port {port} of 127.0.0.1 is taken"):
            await proxies.start(public_url=f"http://127.0.0.1:{port}/")

    assert processes_in(proxies.root) == []


async def test_concurrent_proxy_starts_on_one_port_leave_one_proxy_running(
    proxies: CaddyProxies,
):
    """Two Caddys of one account would listen on it together, each for a part of the requests."""
    url = f"http://127.0.0.1:{free_port()}/"
    two_proxies = [proxies.new(public_url=url, folder=str(proxies.root / name)) for name in "ab"]

    results = await asyncio.gather(
        *(proxy.start() for proxy in two_proxies), return_exceptions=True
    )

    [refused] = [result for result in results if result is not None]
    assert isinstance(refused, Conflict)
    assert f"Port {port_of(two_proxies[0])} of 127.0.0.1 is taken" in str(refused)
    for proxy, result in zip(two_proxies, results, strict=True):
        assert (proxy._process.pid() is None) == (result is refused)


async def test_port_taken_during_proxy_start_is_a_conflict(
    proxies: CaddyProxies, monkeypatch: pytest.MonkeyPatch
):
    proxy, real_start = proxies.new(), CaddyProcess.start
    with socket.socket() as other:

        async def start(process: CaddyProcess, program: Path, config: dict[str, Any]) -> None:
            other.bind(("127.0.0.1", port_of(proxy)))
            other.listen()
            await real_start(process, program, config)

        monkeypatch.setattr(CaddyProcess, "start", start)
        with pytest.raises(Conflict, match=f"Port {port_of(proxy)} of 127.0.0.1 is taken"):
            await proxy.start()


async def test_proxy_configuration_refused_by_caddy_fails_the_proxy_start_with_a_message(
    proxies: CaddyProxies, capfd: pytest.CaptureFixture[str]
):
    with pytest.raises(Unavailable, match=r"The proxy ended with status 1 as it started\."):
        await proxies.start(trusted_proxies=["no address"])

    assert "no address" in capfd.readouterr().err
    assert processes_in(proxies.root) == []
