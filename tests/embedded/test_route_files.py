"""Routes as files: one file per route, at the path that Caddy reads."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runai.embedded.proxy.route_files import RouteFiles
from runai.hub_service.wire.errors import InvalidRequest

pytestmark = pytest.mark.tier("check")

DEPTH = 3
ANA_URL, BO_URL = "http://127.0.0.1:1001", "http://127.0.0.1:1002"
DATA = {"user": "ana", "server_name": "ü"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "routes"


@pytest.fixture
def routes(folder: Path) -> RouteFiles:
    return RouteFiles(folder, DEPTH)


def file_paths(folder: Path) -> list[str]:
    """Return the paths of all files and of all empty folders below a folder."""
    leaves = (path for path in folder.rglob("*") if path.is_file() or not any(path.iterdir()))
    return sorted(str(path.relative_to(folder)) for path in leaves)


@pytest.mark.parametrize(
    ("routespec", "path"),
    [
        pytest.param("/", "@", id="root"),
        pytest.param("/user/ana/", "@/-user/-ana", id="user"),
        pytest.param("/user/ana/gpu/", "@/-user/-ana/-gpu", id="named server"),
        pytest.param("/user/caf%C3%A9/", "@/-user/-café", id="encoded"),
        pytest.param("/user/日本/", "@/-user/-日本", id="unicode"),
        pytest.param("/user/a%20b/", "@/-user/-a b", id="space"),
        pytest.param("/user/a%2520b/", "@/-user/-a%20b", id="encoded twice"),
        pytest.param("/user/%2E%2E/", "@/-user/-..", id="dots"),
        pytest.param("/user/=x/", "@/-user/-=x", id="equals sign"),
        pytest.param("/user/%2A%5Ba%5D%3F/", "@/-user/-*[a]?", id="pattern"),
        pytest.param("/user/" + "x" * 254 + "/", "@/-user/-" + "x" * 254, id="longest segment"),
        pytest.param("ana.example.org/", "@ana.example.org", id="host"),
        pytest.param("Ana.Example.org/user/ana/", "@ana.example.org/-user/-ana", id="host's path"),
    ],
)
def test_proxy_route_is_stored_as_one_file(
    routes: RouteFiles, folder: Path, routespec: str, path: str
):
    routes.add(routespec, ANA_URL, DATA)

    assert file_paths(folder) == [f"{path}/=127.0.0.1:1001"]
    assert routes.all() == {routespec: {"routespec": routespec, "target": ANA_URL, "data": DATA}}


@pytest.mark.parametrize(
    ("target", "server"),
    [
        pytest.param("http://127.0.0.1:1001", "127.0.0.1:1001", id="plain"),
        pytest.param("http://127.0.0.1:1001/", "127.0.0.1:1001", id="slash"),
        pytest.param("http://127.0.0.1", "127.0.0.1:80", id="default port"),
        pytest.param("HTTP://127.0.0.1:1001", "127.0.0.1:1001", id="scheme in capitals"),
        pytest.param("http://Node-1.example.org:8888", "node-1.example.org:8888", id="name"),
        pytest.param("http://[::1]:8888", "[::1]:8888", id="IPv6"),
        pytest.param("http://[::1]", "[::1]:80", id="IPv6 and default port"),
    ],
)
def test_route_file_name_is_host_and_port_of_the_target(
    routes: RouteFiles, folder: Path, target: str, server: str
):
    routes.add("/user/ana/", target, {})

    assert file_paths(folder) == [f"@/-user/-ana/={server}"]
    assert routes.all()["/user/ana/"]["target"] == target


def test_changed_route_target_replaces_the_route_file(routes: RouteFiles, folder: Path):
    routes.add("/user/ana/", ANA_URL, {"number": 1})
    routes.add("/user/ana/", BO_URL, {"number": 2})

    assert file_paths(folder) == ["@/-user/-ana/=127.0.0.1:1002"]
    assert routes.all() == {
        "/user/ana/": {"routespec": "/user/ana/", "target": BO_URL, "data": {"number": 2}}
    }


def test_route_added_again_with_the_same_target_replaces_its_data(routes: RouteFiles, folder: Path):
    routes.add("/user/ana/", ANA_URL, {"number": 1})
    routes.add("/user/ana/", ANA_URL, {"number": 2})

    assert file_paths(folder) == ["@/-user/-ana/=127.0.0.1:1001"]
    assert routes.all()["/user/ana/"]["data"] == {"number": 2}


@pytest.mark.parametrize(
    "routespec",
    [
        pytest.param("/user/ana/gpu/lab/", id="too deep"),
        pytest.param("ana.example.org/user/ana/gpu/lab/", id="too deep below a host"),
        pytest.param("/user/a%2Fb/", id="slash"),
        pytest.param("/user/a%00b/", id="null byte"),
        pytest.param("/user/" + "x" * 255 + "/", id="too long"),
        pytest.param("/user/" + "%C3%A9" * 128 + "/", id="too long in bytes"),
    ],
)
def test_route_that_cannot_be_a_file_path_is_refused_without_changes(
    routes: RouteFiles, folder: Path, routespec: str
):
    routes.add("/user/ana/", ANA_URL, {})
    with pytest.raises(InvalidRequest) as refused:
        routes.add(routespec, BO_URL, {})
    routes.remove(routespec)

    assert refused.value.message == f"The route {routespec} cannot be served."
    assert "3 segments of 254 bytes" in refused.value.hint
    assert file_paths(folder) == ["@/-user/-ana/=127.0.0.1:1001"]


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("https://127.0.0.1:1001", id="https"),
        pytest.param("unix:/run/ana.sock", id="unix"),
        pytest.param("http+unix://%2Frun%2Fana.sock", id="http+unix"),
        pytest.param("http://127.0.0.1:1001/lab", id="path"),
        pytest.param("http://127.0.0.1:1001/?a=1", id="query"),
        pytest.param("http://127.0.0.1:1001/#a", id="fragment"),
        pytest.param("http://ana:secret@127.0.0.1:1001", id="user info"),
        pytest.param("http://@127.0.0.1:1001", id="empty user info"),
        pytest.param("http://127.0.0.1:http", id="port of letters"),
        pytest.param("http://127.0.0.1:70000", id="port out of range"),
        pytest.param("http://:1001", id="no host"),
        pytest.param("127.0.0.1:1001", id="no scheme"),
        pytest.param("", id="empty"),
    ],
)
def test_route_target_that_caddy_cannot_dial_is_refused(
    routes: RouteFiles, folder: Path, target: str
):
    routes.add("/user/ana/", ANA_URL, {})
    with pytest.raises(InvalidRequest) as refused:
        routes.add("/user/ana/", target, {})

    assert refused.value.message.startswith(f"The route /user/ana/ leads to {target}, which")
    assert "http://HOST:PORT" in refused.value.hint
    assert file_paths(folder) == ["@/-user/-ana/=127.0.0.1:1001"]


def test_route_path_refused_by_the_file_system_is_an_error_and_leaves_no_files(folder: Path):
    routespec = f"/{'x' * 250}" * 17 + "/"
    with pytest.raises(InvalidRequest) as refused:
        RouteFiles(folder, 17).add(routespec, ANA_URL, {})

    assert refused.value.message.startswith(f"The route {routespec} cannot be stored: ")
    assert not folder.exists() or file_paths(folder) == []


def test_route_removal_prunes_empty_folders_and_leaves_sibling_routes(
    routes: RouteFiles, folder: Path
):
    for routespec in ("/user/ana/", "/user/ana/gpu/", "/user/bo/"):
        routes.add(routespec, ANA_URL, {})
    routes.remove("/user/ana/gpu/")
    assert file_paths(folder) == ["@/-user/-ana/=127.0.0.1:1001", "@/-user/-bo/=127.0.0.1:1001"]

    routes.remove("/user/ana/")
    assert file_paths(folder) == ["@/-user/-bo/=127.0.0.1:1001"]

    routes.remove("/user/bo/")
    assert (folder.is_dir(), file_paths(folder)) == (True, [])


def test_route_removal_leaves_routes_below_it(routes: RouteFiles):
    for routespec in ("/", "/user/ana/", "/user/ana/gpu/"):
        routes.add(routespec, ANA_URL, {})
    routes.remove("/")
    routes.remove("/user/ana/")

    assert [*routes.all()] == ["/user/ana/gpu/"]


def test_absent_route_removal_changes_nothing(routes: RouteFiles, folder: Path):
    routes.remove("/user/ana/")
    routes.add("/user/ana/", ANA_URL, {})
    for absent in ("/", "/user/", "/user/bo/", "/user/ana/gpu/", "host.example.org/user/ana/"):
        routes.remove(absent)

    assert file_paths(folder) == ["@/-user/-ana/=127.0.0.1:1001"]


def test_route_clearing_leaves_an_empty_folder(routes: RouteFiles, folder: Path):
    routes.clear()
    routes.add("/user/ana/", ANA_URL, {})
    routes.add("host.example.org/", BO_URL, {})
    routes.clear()

    assert (folder.is_dir(), file_paths(folder), routes.all()) == (True, [], {})


def test_routes_persist_for_the_next_hub(routes: RouteFiles, folder: Path):
    routes.add("/user/caf%C3%A9/", ANA_URL, DATA)

    assert RouteFiles(folder, DEPTH).all() == routes.all()


def test_duplicate_route_files_resolve_to_the_file_that_caddy_uses(
    routes: RouteFiles, folder: Path
):
    for number in range(16):  # several, since the file system decides their order
        routes.add(f"/user/{number}/", ANA_URL, {})
        [file] = (folder / "@" / "-user" / f"-{number}").iterdir()
        first_by_name = file.with_name("=127.0.0.1:1000")
        first_by_name.write_text(file.read_text().replace("1001", "1000"))

    assert {route["target"] for route in routes.all().values()} == {"http://127.0.0.1:1000"}


SPECS = (
    *("/", "/user/", "/user/ana/", "/user/ana/gpu/", "/user/bo/", "/user/caf%C3%A9/"),
    *("/services/runai/", "ana.example.org/", "ana.example.org/user/ana/"),
)
CHANGES = st.lists(
    st.tuples(st.sampled_from(SPECS), st.sampled_from([ANA_URL, BO_URL, "http://[::1]", None])),
    max_size=30,
)


@given(CHANGES)
def test_route_changes_match_a_dictionary_model(changes: Sequence[tuple[str, str | None]]):
    with tempfile.TemporaryDirectory() as name:
        routes = RouteFiles(Path(name), DEPTH)
        expected: dict[str, object] = {}
        for number, (routespec, target) in enumerate(changes):
            if target is None:
                routes.remove(routespec)
                expected.pop(routespec, None)
            else:
                data = {"number": number}
                routes.add(routespec, target, data)
                expected[routespec] = {"routespec": routespec, "target": target, "data": data}

            assert routes.all() == expected
            assert len(file_paths(Path(name))) == len(expected)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "7", '{"routespec": []}'])
def test_damaged_route_file_is_ignored_and_can_be_replaced(
    routes: RouteFiles, folder: Path, text: str
):
    routes.add("/user/bo/", BO_URL, DATA)
    routes.add("/user/ana/", ANA_URL, DATA)
    (folder / "@/-user/-ana/=127.0.0.1:1001").write_text(text)

    assert [*routes.all()] == ["/user/bo/"]
    routes.add("/user/ana/", ANA_URL, DATA)
    assert {*routes.all()} == {"/user/ana/", "/user/bo/"}
