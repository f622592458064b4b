"""The proxy's table of routes: whole segments, compared decoded, the longest prefix wins."""

from __future__ import annotations

import pytest

from runai.embedded.routes import RouteTable

ROUTES = {
    "/": "hub",
    "/user/ana/": "ana",
    "/user/ana/big/": "ana's big server",
    "/user/caf%C3%A9@x/": "café",
    "/user/a%2Fb/": "an encoded slash",
    "/services/runai/": "service",
    "other.host/user/ana/": "ana on another host",
}


@pytest.fixture
def table() -> RouteTable:
    table = RouteTable()
    for routespec, target in ROUTES.items():
        table.add(routespec, target, {})
    return table


@pytest.mark.parametrize(
    ("path", "target"),
    [
        pytest.param("/", "hub", id="root"),
        pytest.param("/hub/login?next=%2Fuser%2Fana%2F", "hub", id="a query is no path"),
        pytest.param("/user/ana/lab/tree/x", "ana", id="below a route"),
        pytest.param("/user/ana", "ana", id="without the slash"),
        pytest.param("/user/ana/big/lab", "ana's big server", id="the longest prefix wins"),
        pytest.param("/user/anabel/lab", "hub", id="whole segments only"),
        pytest.param("/user/caf%C3%A9@x/lab", "café", id="encoded alike"),
        pytest.param("/user/caf%c3%a9%40x/lab", "café", id="encoded otherwise"),
        pytest.param("/user/café@x/lab", "café", id="not encoded"),
        pytest.param("/user/a%2fb/lab", "an encoded slash", id="an encoded slash is no separator"),
        pytest.param("/user/a/b/lab", "hub", id="a separator is no encoded slash"),
        pytest.param("//user//ana/", "ana", id="empty segments do not count"),
        pytest.param("/services/runai/api/v1/events", "service", id="service"),
    ],
)
def test_a_path_goes_to(table: RouteTable, path: str, target: str):
    route = table.match("127.0.0.1:8000", path)

    assert route is not None
    assert route.target == target


@pytest.mark.parametrize("host", ["other.host", "Other.Host:8000"])
def test_a_route_with_a_host_comes_first(table: RouteTable, host: str):
    route = table.match(host, "/user/ana/lab")

    assert route is not None
    assert route.target == "ana on another host"


def test_nothing_answers_before_there_is_a_route():
    assert RouteTable().match("127.0.0.1", "/hub/login") is None


def test_a_route_is_shown_as_it_was_added(table: RouteTable):
    assert set(table.views()) == set(ROUTES)


def test_a_route_is_found_again_however_it_is_encoded(table: RouteTable):
    assert table.remove("/user/café@x/")
    assert not table.remove("/user/caf%C3%A9@x/")


def test_adding_a_route_again_gives_it_a_new_target(table: RouteTable):
    table.add("/user/ana/", "ana, elsewhere", {"user": "ana", "server_name": ""})
    view = table.views()["/user/ana/"]

    assert view["target"] == "ana, elsewhere"
    assert view["data"]["user"] == "ana"


def test_last_activity_moves_with_use(table: RouteTable):
    before = table.views()["/user/ana/"]["data"]["last_activity"]
    route = table.match("", "/user/ana/")
    assert route is not None
    route.touch()

    assert table.views()["/user/ana/"]["data"]["last_activity"] > before
