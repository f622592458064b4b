"""Refused options are not stored: the admin page parses, and the next start is valid."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from jupyterhub import orm
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from hub_platform import HubPlatform
from kubernetes_hub import KubernetesHub, resources
from runai.embedded.proxy.caddy_config import HUB_BODY_BYTES
from runai.spawner.session_spawner import LONGEST_OPTIONS

ACCEPTED = {"project": "vision", "gpus": "0.5"}
HARMFUL_BODIES = {
    "amount that is no number": '{"project": "vision", "gpus": NaN}',
    "5 MB": json.dumps({"project": "vision", "x": "A" * 5_000_000}),
}
REFUSED_BODIES = {
    **HARMFUL_BODIES,
    "unknown option": '{"project": "vision", "image": "x"}',
    "impossible amount": '{"project": "vision", "gpus": "1.5"}',
}


def parse_strict_json(text: str) -> Any:
    """Parse JSON as browsers do."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def options_by_user(hub: HubPlatform | KubernetesHub) -> dict[str, Any]:
    """Return the options of all users' default servers, as the admin page loads them."""
    text = hub.http.get("/hub/api/users?include_stopped_servers=1").raise_for_status().text
    assert len(text) < 20_000
    servers = {user["name"]: user["servers"].get("") for user in parse_strict_json(text)}
    return {name: server["user_options"] for name, server in servers.items() if server}


@pytest.mark.hub
@pytest.mark.timeout(900)
def test_refused_server_options_are_replaced_by_the_last_accepted_options(platform: HubPlatform):
    platform.start_server("ana", **ACCEPTED)
    platform.stop_server("ana")

    for case, body in REFUSED_BODIES.items():
        refused = platform.http.post("/hub/api/users/ana/server", content=body)
        by_the_proxy = len(body) > HUB_BODY_BYTES
        assert refused.status_code == (413 if by_the_proxy else 400), case
        assert len(refused.text) < 1000, case
        assert options_by_user(platform)["ana"] == ACCEPTED, case
    for case in ("amount that is no number", "unknown option"):  # no options were accepted before
        assert platform.http.post(
            "/hub/api/users/fay/server", content=REFUSED_BODIES[case]
        ).is_error
        assert options_by_user(platform)["fay"] == {}, case
    for case, body in HARMFUL_BODIES.items():  # without a start
        platform.http.patch("/hub/api/users/ana/server", content=f'{{"user_options": {body}}}')
        assert options_by_user(platform)["ana"] == ACCEPTED, case

    platform.kill()
    platform.start()
    assert platform.http.post(
        "/hub/api/users/ana/server", content=REFUSED_BODIES["unknown option"]
    ).is_error
    assert options_by_user(platform)["ana"] == ACCEPTED
    platform.start_server("ana")  # without options: the previous ones
    assert platform.holds() == {"ana": 0.5}


@pytest.mark.hub
@pytest.mark.kubernetes
@pytest.mark.timeout(900)
def test_refused_server_options_are_not_stored_on_kubernetes(
    kubernetes_hub: KubernetesHub, eventually: Callable[..., Any]
):
    hub, accepted = kubernetes_hub, {"project": "vision", "gpus": "1", "profile": "plain"}
    hub.spawn("ana", **accepted).raise_for_status()
    eventually(lambda: hub.pod("ana"))
    hub.stop_all()

    for case, body in {
        **REFUSED_BODIES,
        "unknown profile": '{"profile": "nope"}',
        "long choice": json.dumps(
            {"profile": "plain", "image--unlisted-choice": f"example/{'a' * LONGEST_OPTIONS}"}
        ),
    }.items():
        hub.http.post(
            "/hub/api/users/ana/server", content=body
        )  # the reply may precede the refusal
        eventually(lambda: not hub.servers("ana"), what="the start is over")
        assert options_by_user(hub)["ana"] == accepted, case
        assert hub.pod("ana") == {}, case

    hub.spawn("ana").raise_for_status()  # without options: the previous ones
    pod = eventually(lambda: hub.pod("ana"))
    assert resources(pod)["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize(
    ("options", "replacement"),
    [
        pytest.param({"gpus": float("nan")}, ACCEPTED, id="NaN"),
        pytest.param({"x": [{"y": float("inf")}]}, ACCEPTED, id="nested infinity"),
        pytest.param({"x": "A" * LONGEST_OPTIONS}, ACCEPTED, id="too long text"),
        pytest.param({"x": b"a file"}, ACCEPTED, id="bytes"),
        pytest.param([1], ACCEPTED, id="list"),
        pytest.param({}, {}, id="no options"),
        pytest.param({"x": "A" * (LONGEST_OPTIONS - 10)}, None, id="longest text"),
    ],
)
def test_harmful_server_options_are_replaced_by_former_options_in_the_database(
    options, replacement
):
    engine = create_engine("sqlite://")
    orm.Base.metadata.create_all(engine)
    with Session(engine) as db:
        spawner = orm.Spawner(name="", user_options=ACCEPTED)
        db.add(spawner)
        db.commit()

        spawner.user_options = options
        db.commit()

        assert spawner.user_options == (options if replacement is None else replacement)
    engine.dispose()


def test_harmful_options_of_a_new_server_are_stored_as_empty():
    assert orm.Spawner(name="", user_options={"x": float("nan")}).user_options == {}
