"""The one listening thread of a kernel: its notifications, their receivers, and its end."""

from __future__ import annotations

import threading
from collections.abc import Generator
from queue import Queue

import pytest

from overviews import overview, workload
from runai.hub_service.wire.errors import NotFound, RunaiError, Unauthenticated, Unavailable
from runai.hub_service.wire.schemas import Overview
from runai.widgets.live import ConnectionLost, Live, StreamUpdate


class StubStream:
    """A stream of the test's events; an error ends it, None ends it quietly."""

    def __init__(self) -> None:
        self.news: Queue[Overview | RunaiError | None] = Queue()
        self.opened = 0

    def events(self) -> Generator[Overview]:
        self.opened += 1
        while (item := self.news.get()) is not None:
            if isinstance(item, RunaiError):
                raise item
            yield item


FIRST, SECOND = overview(workload("a")), overview(workload("b"))


@pytest.fixture
def source():
    return StubStream()


@pytest.fixture
def live(source, monkeypatch):
    monkeypatch.setattr("runai.widgets.live.FIRST_RETRY_S", 0.01)
    live = Live(source.events)
    yield live
    live.close()
    source.news.put(None)


def live_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "runai-live"]


def test_update_listeners_of_a_kernel_share_a_single_stream_and_thread(live, source, eventually):
    received: list[list[StreamUpdate]] = [[], []]
    for news in received:
        live.listen(news.append)
    source.news.put(FIRST)

    eventually(lambda: received == [[FIRST], [FIRST]])
    assert source.opened == 1
    assert [thread.daemon for thread in live_threads()] == [True]


def test_late_update_listener_gets_the_latest_overview_at_once(live, source, eventually):
    first_listener: list[StreamUpdate] = []
    live.listen(first_listener.append)
    source.news.put(FIRST)
    eventually(lambda: first_listener == [FIRST])

    late_listener: list[StreamUpdate] = []
    live.listen(late_listener.append)

    assert late_listener == [FIRST]


def test_removed_update_listener_gets_no_more_updates(live, source, eventually):
    remaining_updates: list[StreamUpdate] = []
    removed_updates: list[StreamUpdate] = []
    live.listen(remaining_updates.append)
    remove = live.listen(removed_updates.append)
    source.news.put(FIRST)
    eventually(lambda: remaining_updates == [FIRST])
    remove()
    remove()  # a second time without effect
    source.news.put(SECOND)

    eventually(lambda: remaining_updates == [FIRST, SECOND])
    assert removed_updates == [FIRST]


def test_update_thread_ends_without_listeners_and_restarts_with_a_listener(
    live, source, eventually
):
    received: list[StreamUpdate] = []
    remove = live.listen(received.append)
    source.news.put(FIRST)
    eventually(lambda: received == [FIRST])
    remove()
    source.news.put(SECOND)
    eventually(lambda: live_threads() == [])

    live.listen(received.append)
    source.news.put(FIRST)

    eventually(lambda: received == [FIRST, FIRST])


@pytest.mark.parametrize(
    "error",
    [Unavailable("It is away.", hint="Wait."), NotFound("A restarting hub answers here.")],
    ids=["away", "no service at the address"],
)
def test_update_stream_reports_a_missing_service_and_retries(live, source, eventually, error):
    received: list[StreamUpdate] = []
    live.listen(received.append)
    source.news.put(error)
    source.news.put(FIRST)

    eventually(lambda: received == [ConnectionLost(str(error), retrying=True), FIRST])


def test_update_stream_reports_a_revoked_token_once_and_does_not_retry(live, source, eventually):
    received: list[StreamUpdate] = []
    live.listen(received.append)
    source.news.put(Unauthenticated("The token is revoked."))

    eventually(lambda: live_threads() == [])
    assert received == [ConnectionLost("The token is revoked.", retrying=False)]
    assert source.opened == 1


def test_update_stream_that_was_refused_restarts_after_a_login(source, monkeypatch, eventually):
    monkeypatch.setattr("runai.widgets.live.LAST_RETRY_S", 0.01)
    logins = [1]  # the version of the stored login
    live = Live(source.events, lambda: logins[0])
    received: list[StreamUpdate] = []
    remove = live.listen(received.append)
    source.news.put(Unauthenticated("It is revoked."))
    eventually(lambda: len(received) == 1)
    assert source.opened == 1, "no request without a reason"

    logins[0] = 2
    source.news.put(FIRST)

    eventually(lambda: received[1:] == [FIRST])
    remove()
    source.news.put(None)
    eventually(lambda: live_threads() == [])
