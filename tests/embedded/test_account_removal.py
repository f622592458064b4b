"""Removed accounts on a real platform: open streams and servers end, workloads stay."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import psutil
import pytest

from hub_platform import PASSWORD, HubPlatform
from runai.embedded.accounts.accounts import Accounts
from runai.embedded.data_directory import DataDirectory
from runai.hub_service.client import Client
from runai.hub_service.wire.errors import Conflict
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.hub]

SERVICE_PATH = "/services/runai/"


@pytest.fixture
def accounts(platform: HubPlatform) -> Iterator[Accounts]:
    yield Accounts(DataDirectory(platform.data_dir))
    with client_of(platform, DataDirectory(platform.data_dir).hub_token()) as client:
        for workload in client.workloads():
            client.delete(workload.id)


def status_by_token(platform: HubPlatform, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    url = platform.http.base_url.join(f"{SERVICE_PATH}api/v1/whoami")
    return httpx.get(url, headers=headers, timeout=60).status_code


def status_by_cookie(browser: httpx.Client) -> int:
    return browser.get(f"{SERVICE_PATH}api/v1/whoami").status_code


def is_in_hub(platform: HubPlatform, user: str) -> bool:
    return platform.http.get(f"/hub/api/users/{user}").status_code == 200


def client_of(platform: HubPlatform, token: str) -> Client:
    return Client(f"{platform.http.base_url}{SERVICE_PATH}", token)


def submit_job(platform: HubPlatform, token: str) -> str:
    with client_of(platform, token) as client:
        request = SubmitRequest(project="vision", gpus=0, command=["sleep", "3600"])
        return client.submit(request).workloads[0].id


def job_state(platform: HubPlatform, job: str) -> str:
    token = DataDirectory(platform.data_dir).hub_token()
    with client_of(platform, token) as client:
        return client.workload(job).state


@contextmanager
def reading_events(platform: HubPlatform, token: str) -> Iterator[threading.Event]:
    """Read the stream of events; the event is set when the service ends it."""
    began, over = threading.Event(), threading.Event()

    def read() -> None:
        headers = {"Authorization": f"Bearer {token}"}
        url = platform.http.base_url.join(f"{SERVICE_PATH}api/v1/events")
        with suppress(httpx.HTTPError), httpx.stream("GET", url, headers=headers, timeout=60) as s:
            for _ in s.iter_raw():
                began.set()
        over.set()

    threading.Thread(target=read, daemon=True).start()
    assert began.wait(60)
    yield over


def test_removed_account_loses_streams_tokens_and_a_hanging_server(
    platform: HubPlatform, accounts: Accounts
):
    with platform.browser("dan") as browser:
        browser.get(SERVICE_PATH)
        platform.start_server("dan")
        server = psutil.Process(platform.pid("dan"))
        home_file = DataDirectory(platform.data_dir).users / "dan" / "kept"
        home_file.write_text("kept")
        token, anas_token = platform.token("dan"), platform.token("ana")
        job, anas_job = submit_job(platform, token), submit_job(platform, anas_token)
        eventually(lambda: job_state(platform, job) == "running")
        with reading_events(platform, token) as stream_is_over:
            statuses_before = (status_by_token(platform, token), status_by_cookie(browser))
            stream_was_over_before = stream_is_over.is_set()
            server.send_signal(signal.SIGSTOP)  # ignores requests to stop
            accounts.remove("dan")
            eventually(lambda: job_state(platform, job) == "suspended", what="the job is suspended")
            suspended_before_the_server_stopped = server.is_running()
            eventually(stream_is_over.is_set, what="the stream ends")
        eventually(lambda: status_by_token(platform, token) == 401, what="the token is unknown")
        eventually(lambda: status_by_cookie(browser) == 401, what="the cookie is unknown")
    eventually(lambda: not is_in_hub(platform, "dan"), what="the hub has no such user")
    eventually(lambda: not accounts.pending_removals(), what="the removal is done")

    assert statuses_before == (200, 200)
    assert not stream_was_over_before
    assert suspended_before_the_server_stopped
    assert not server.is_running()
    assert status_by_token(platform, anas_token) == 200
    assert job_state(platform, anas_job) == "running"
    assert home_file.read_text() == "kept"
    log = DataDirectory(platform.data_dir).hub_log.read_text()
    assert log.count("What removed user dan has open cannot be ended yet") == 1
    assert "User dan was removed: tokens, servers and hub user are gone, jobs are suspended." in log

    with pytest.raises(Conflict, match="--same-person"):
        accounts.add("dan", PASSWORD)
    accounts.add("dan", PASSWORD, same_person=True)
    with platform.browser("dan") as browser:
        browser.get(SERVICE_PATH)
        detail = browser.get(f"{SERVICE_PATH}api/v1/workloads/{job}").json()
        assert (detail["user"], detail["manageable"], detail["state"]) == ("dan", True, "suspended")
    assert status_by_token(platform, token) == 401


def test_account_removed_while_the_hub_is_down_loses_access_at_its_next_start(
    platform: HubPlatform, accounts: Accounts
):
    token = platform.token("eve")
    job = submit_job(platform, token)
    before = status_by_token(platform, token)
    platform.kill()
    accounts.remove("eve")
    platform.start()
    eventually(lambda: not accounts.pending_removals())

    assert before == 200
    assert not is_in_hub(platform, "eve")
    assert job_state(platform, job) == "suspended"
    assert status_by_token(platform, token) == 401


def test_account_added_again_right_after_removal_loses_its_old_tokens(
    platform: HubPlatform, accounts: Accounts
):
    token = platform.token("fay")
    before = status_by_token(platform, token)
    accounts.remove("fay")
    accounts.add("fay", PASSWORD, same_person=True)
    eventually(lambda: not accounts.pending_removals())
    eventually(lambda: status_by_token(platform, token) == 401)

    assert before == 200
    with platform.browser("fay") as browser:
        browser.get(SERVICE_PATH)
        assert status_by_cookie(browser) == 200
