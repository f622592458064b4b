"""Who is offered what can be done about an idle GPU, on a real JupyterHub, by each role's login.

The devices seem real and stay idle, as no program is on them: a session of ana's has been idle for
a minute, then has given its GPU back. What a click does is in `e2e/test_idle_clicks`.
"""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from fake_driver import fake_driver
from users_stage import Stage, may_press, users_stage

pytestmark = [pytest.mark.hub, pytest.mark.cc, pytest.mark.timeout(600)]

PROJECTS = """
projects:
  vision:
    quota: 2.5
    limit: 3
    members: [ana, mia, ro]
    admins: [vic]
    idle_session: {badge_s: 60, release_s: 86400}
  nlp: {quota: 0.5, groups: [nlp-people]}
"""
LAB = "vision/lab"
IDLE = ("keep", "release", "")
GIVEN_BACK = ("regain", "")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    driver = fake_driver(tmp_path_factory.mktemp("driver"))
    # An agent of its own, which measures: that of the tests says nothing.
    settings = {"LD_LIBRARY_PATH": str(driver), "RUNAI_AGENT_TOKEN": ""}
    with users_stage(tmp_path_factory.mktemp("hub"), PROJECTS, settings) as made:
        with made.hub.admin as http:  # who has no server in the hub has no session for long
            http.post("/hub/api/users/ana/server").raise_for_status()
        session = {"project": "vision", "name": "lab", "kind": "session", "owner": "ana"}
        session |= {"gpus": "0.5"}
        made.ask("hub", method="POST", url="api/v1/workloads", json=session).raise_for_status()
        began = psutil.Process(made.process).create_time()
        process = {"pid": made.process, "created": began}
        url = f"api/v1/workloads/{LAB}/process"
        made.ask("hub", method="PUT", url=url, json=process).raise_for_status()
        yield made


PAGES = pytest.mark.parametrize("page", ["", f"workloads/{LAB}"], ids=["all", "one"])


@PAGES
def test_pages_offer_those_alone_to_keep_or_give_back_what_is_idle_who_may(stage, page):
    assert stage.offered(page, LAB, *IDLE) == may_press(*IDLE)


@pytest.fixture(scope="module")
def given_back(stage: Stage) -> None:
    """As it is after its owner has given its GPU back, for all that comes after."""
    stage.offered("", LAB, *IDLE)  # else there is nothing to give back yet
    stage.ask("owner", method="POST", url=f"api/v1/workloads/{LAB}/release").raise_for_status()


@PAGES
def test_pages_offer_those_alone_to_get_a_gpu_back_who_may(stage, given_back, page):
    assert stage.offered(page, LAB, *GIVEN_BACK) == may_press(*GIVEN_BACK)
