"""Notifications: their recipients and sentences, then delivery to a real HTTP receiver.

`test_mail.py` tests mail.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from labs import Clock, SimulatedLab, plan, running, start, stop
from runai.hub_service.clusters.workloads.change_log import ChangeLog
from runai.hub_service.controller.idle.idle_watch import IdleNow
from runai.hub_service.controller.idle.idleness import IdleActionKind
from runai.hub_service.controller.notifications import (
    Notification,
    NotificationSettings,
    Notifier,
    RecentNotifications,
)
from runai.hub_service.controller.notifications.channels import Undelivered, Webhook
from runai.hub_service.controller.notifications.events import ObservedState, events_between
from runai.hub_service.model.changes import Broadcast
from runai.hub_service.model.records import WorkloadState
from runai.hub_service.scheduler.model.snapshot import Move, Reason
from runai.hub_service.server.settings import Config
from runai.hub_service.wire.errors import InvalidRequest
from waiting import eventually_async

MINIMAL_ENVIRONMENT = {"RUNAI_DATA_DIR": "/data", "RUNAI_HUB_TOKEN": "secret-of-the-hub"}
PAUSE_NOTIFICATION = Notification(
    1e9, "paused", "vision/exp", "vision", "ana", "vision/exp was paused: why"
)
SECRET = "correct horse"

RUNNING, PAUSED = WorkloadState.RUNNING, WorkloadState.PAUSED
FAILED, QUEUED = WorkloadState.FAILED, WorkloadState.QUEUED


@pytest.mark.parametrize(
    ("before", "now", "kinds"),
    [
        (ObservedState(RUNNING, 0), ObservedState(PAUSED, 1, away=True), ["paused"]),
        (ObservedState(PAUSED, 1, away=True), ObservedState(RUNNING, 1), ["resumed"]),
        (ObservedState(RUNNING, 0), ObservedState(RUNNING, 1), ["paused", "resumed"]),
        (ObservedState(QUEUED, 0), ObservedState(RUNNING, 0), []),
        (ObservedState(RUNNING, 0), ObservedState(WorkloadState.SUSPENDED, 0), []),
        (ObservedState(RUNNING, 0), ObservedState(FAILED, 0), ["failed"]),
        (ObservedState(FAILED, 0), ObservedState(FAILED, 0), []),
        (ObservedState(RUNNING, 0), ObservedState(WorkloadState.TIMED_OUT, 0), ["timed_out"]),
        (ObservedState(RUNNING, 0), ObservedState(RUNNING, 0, is_idle=True), ["idle"]),
        (ObservedState(RUNNING, 0, is_idle=True), ObservedState(RUNNING, 0, is_idle=True), []),
    ],
)
def test_workload_state_change_produces_notifications_of_its_kind(before, now, kinds):
    assert events_between(before, now) == kinds


def test_recent_notifications_are_listed_to_their_owner_for_one_hour():
    recent = RecentNotifications()
    recent.add(PAUSE_NOTIFICATION)

    assert list(recent.of("ana", PAUSE_NOTIFICATION.at + 3599)) == [PAUSE_NOTIFICATION]
    assert list(recent.of("ana", PAUSE_NOTIFICATION.at + 3601)) == []
    assert list(recent.of("mia", PAUSE_NOTIFICATION.at)) == []


async def test_job_pause_resume_and_idleness_are_notified_once_each():
    lab, recent, idle = SimulatedLab(), RecentNotifications(), dict[str, IdleNow]()
    notifier = Notifier(lab.simulated, idle.get, recent, [], Broadcast(), clock=Clock())
    async with running(lab.simulated):
        job = lab.job()
        await lab.started(job)
        await notifier.poll()
        await lab.cluster.apply(plan(stop(job.id)))
        await lab.until(job.id, "paused")
        await notifier.poll()
        await notifier.poll()
        await lab.cluster.apply(plan(start(job.id, 0)))
        await lab.until(job.id, "running")
        await notifier.poll()
        idle[job.id] = IdleNow(1200, IdleActionKind.NOTIFY)
        await notifier.poll()
        await notifier.poll()

    notifications = list(reversed(recent.of("ana", Clock()())))
    assert [(notification.kind, notification.workload) for notification in notifications] == [
        (kind, "vision/exp") for kind in ("paused", "resumed", "idle")
    ]
    assert "nlp takes back what is its own" in notifications[0].text


@pytest.mark.parametrize("is_read_anew", [False, True], ids=["changes", "all read anew"])
async def test_events_of_a_job_are_not_notified_for_a_later_job_of_its_name(is_read_anew):
    lab, recent = SimulatedLab(), RecentNotifications()
    notifier = Notifier(lab.simulated, lambda _: None, recent, [], Broadcast(), clock=Clock())
    async with running(lab.simulated):
        stays, replaced, gone = (lab.job(name) for name in ("stays", "replaced", "gone"))
        await lab.started(stays, replaced, gone)
        await notifier.poll()
        for job in (replaced, gone):
            await lab.end(job, 0)
            await lab.cluster.delete(job.id, by="ana")
        await lab.pass_time(10)
        await lab.started(lab.job("replaced"), device=1)
        for job in (stays, replaced):
            await lab.end(job, 1)
        if is_read_anew:
            lab.simulated.index._log = ChangeLog()
        await notifier.poll()

    found = [
        (notification.kind, notification.workload) for notification in recent.of("ana", Clock()())
    ]
    assert found == [("failed", stays.id)]
    assert notifier._last_states.keys() == {stays.id, replaced.id}


@pytest.mark.parametrize("killed", [False, True], ids=["ended by itself", "killed"])
async def test_pause_notification_says_whether_the_job_was_killed_after_its_grace(killed):
    lab, recent = SimulatedLab(), RecentNotifications()
    notifier = Notifier(lab.simulated, lambda _: None, recent, [], Broadcast(), clock=Clock())
    async with running(lab.simulated):
        job = lab.job()
        await lab.started(job)
        await notifier.poll()
        await lab.cluster.apply(plan(stop(job.id)))
        lab.simulated.executor.complete(job.id, -9, killed=killed)
        await notifier.poll()

    [notification] = recent.of("ana", Clock()())
    killed_suffix = "; killed after its grace of 30 s: its save may be cut; `--grace` gives more"
    assert notification.text.endswith(killed_suffix) is killed


@pytest.mark.parametrize("restarts", [False, True], ids=["same service", "restarted service"])
async def test_job_time_limit_is_notified_once_before_and_once_at_its_end(restarts):
    lab, recent = SimulatedLab(), RecentNotifications()

    def new_notifier() -> Notifier:
        return Notifier(lab.simulated, lambda _: None, recent, [], Broadcast(), clock=lab.clock)

    notifier = new_notifier()
    limit_s, warned_before_s = 8 * 3600, 600
    async with running(lab.simulated):
        job = lab.job(max_runtime=limit_s)
        await lab.started(job)
        await notifier.poll()
        await lab.pass_time(limit_s - warned_before_s - 1)
        await notifier.poll()
        assert list(recent.of("ana", lab.clock())) == []
        await lab.pass_time(1)
        await notifier.poll()
        notifier = new_notifier() if restarts else notifier
        await notifier.poll()
        history = [e.text for e in await lab.cluster.history(job.id) if e.kind == "warning"]
        await lab.pass_time(warned_before_s)
        await lab.until(job.id, "timed_out")
        await notifier.poll()

    notifications = list(reversed(recent.of("ana", lab.clock())))
    assert [notification.kind for notification in notifications] == ["ends_soon", "timed_out"]
    assert history == ["ends in 10 minutes, at its time limit of 8h: save what you need"]
    assert "--time 12h" in notifications[1].text


async def test_job_move_is_notified_with_its_node_and_later_its_duration():
    lab, recent = SimulatedLab(), RecentNotifications()
    notifier = Notifier(lab.simulated, lambda _: None, recent, [], Broadcast(), clock=Clock())
    move_text = "moved to n2 to make room for vision/big"
    async with running(lab.simulated):
        job = lab.job()
        await lab.started(job)
        await notifier.poll()
        reason = Reason(code="consolidated", rule="R10", text=move_text)
        move = Move(workload=job.id, worker=f"{job.id}-0", node="n2", devices=(), reason=reason)
        await lab.cluster.apply(plan(move))
        await lab.until(job.id, "paused")
        await notifier.poll()
        await lab.pass_time(40)
        await lab.cluster.apply(plan(start(job.id, 0)))
        await lab.until(job.id, "running")
        await notifier.poll()

    texts = [notification.text for notification in reversed(recent.of("ana", Clock()()))]
    assert texts[0] == f"vision/exp was {move_text}"
    assert re.fullmatch(f"vision/exp was {move_text}, 4[0-9] s", texts[1])


# -- delivery over HTTP --------------------------------------------------------------------------


@dataclass
class WebhookReceiver:
    """A web server that stores the bodies posted to it."""

    answers: list[int] = field(default_factory=list)
    posted: list[tuple[str, bytes]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    webhook_receiver = WebhookReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            webhook_receiver.posted.append((self.headers.get("X-Runai-Signature", ""), body))
            self.send_response(webhook_receiver.answers.pop(0) if webhook_receiver.answers else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    webhook_receiver.url = f"http://127.0.0.1:{server.server_port}/hook/{SECRET.replace(' ', '-')}"
    yield webhook_receiver
    server.shutdown()
    thread.join()
    server.server_close()


def settings(**variables: str) -> NotificationSettings:
    return NotificationSettings.from_environment(
        {f"RUNAI_NOTIFY_{name}": value for name, value in variables.items()}
    )


async def test_webhook_notification_is_signed_json(receiver):
    webhook_settings = settings(WEBHOOK=receiver.url, WEBHOOK_SECRET=SECRET).webhook
    assert webhook_settings is not None
    await Webhook(webhook_settings).send(PAUSE_NOTIFICATION)

    [(signature, body)] = receiver.posted
    assert json.loads(body) == {
        "at": "2001-09-09T01:46:40+00:00", "kind": "paused", "workload": "vision/exp",
        "project": "vision", "user": "ana", "text": "vision/exp was paused: why",
    }  # fmt: skip
    assert signature == f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}"


async def test_notifier_retries_refused_webhook_and_logs_no_secret(receiver, caplog):
    receiver.answers = [503, 503]
    webhook_settings = settings(WEBHOOK=receiver.url).webhook
    assert webhook_settings is not None
    lab, changes = SimulatedLab(), Broadcast()
    channels = [Webhook(webhook_settings)]
    notifier = Notifier(
        lab.simulated,
        lambda _: None,
        RecentNotifications(),
        channels,
        changes,
        clock=Clock(),
        again_s=0,
    )
    async with running(lab.simulated), running(notifier):  # type: ignore[arg-type]
        job = lab.job()
        await lab.started(job)
        await notifier.poll()
        with caplog.at_level(logging.WARNING):
            await lab.end(job, 3)
            await lab.until(job.id, "failed")
            changes.announce()
            await eventually_async(lambda: len(receiver.posted) == 3)

    assert {json.loads(body)["kind"] for _, body in receiver.posted} == {"failed"}
    assert "it answered 503" in caplog.text
    assert receiver.url not in caplog.text
    assert "/hook/" not in caplog.text


async def test_unreachable_webhook_raises_undelivered():
    webhook_settings = settings(WEBHOOK="http://127.0.0.1:9/hook").webhook
    assert webhook_settings is not None
    with pytest.raises(Undelivered, match=r"^ConnectError$") as failure:
        await Webhook(webhook_settings).send(PAUSE_NOTIFICATION)

    assert failure.value.worth_again


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "ftp://127.0.0.1:9", "http://h:port"])
async def test_webhook_through_an_unusable_proxy_raises_undelivered(
    proxy: str, monkeypatch: pytest.MonkeyPatch
):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", proxy)
    webhook_settings = settings(WEBHOOK="http://127.0.0.1:9/hook").webhook
    assert webhook_settings is not None

    with pytest.raises(Undelivered, match=r"^\w+$"):
        await Webhook(webhook_settings).send(PAUSE_NOTIFICATION)


# -- settings ------------------------------------------------------------------------------------


def test_notifications_are_off_by_default():
    assert Config.from_environment(MINIMAL_ENVIRONMENT).notify == NotificationSettings(None, None)


MAIL = {"SMTP": "smtps://u:hidden@mail.example", "FROM": "a@b.example", "TO": "{user}@b.example"}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WEBHOOK": "ftp://hidden"}, "WEBHOOK is no address"),
        ({"WEBHOOK": "http://elsewhere.example/hidden"}, "WEBHOOK is no address"),
        ({"WEBHOOK": "https://u:hidden@host.example/"}, "WEBHOOK is no address"),
        ({"WEBHOOK": "https://host.example:port/hidden"}, "WEBHOOK is no address"),
        ({"WEBHOOK": "https://host.example/hidden\r\nX: y"}, "WEBHOOK is no address"),
        (MAIL | {"SMTP": "http://u:hidden@mail.example"}, "SMTP is no mail server"),
        (MAIL | {"SMTP": "smtp://u:hidden@mail.example/path"}, "SMTP is no mail server"),
        (MAIL | {"FROM": "hidden"}, "FROM is no address"),
        (MAIL | {"FROM": "a@b.example\nBcc: hidden@c.example"}, "FROM is no address"),
        (MAIL | {"TO": "hidden@b.example"}, "TO makes no addresses"),
        (MAIL | {"TO": "{user} hidden"}, "TO makes no addresses"),
    ],
)
def test_notification_settings_refuse_invalid_values_without_repeating_them(variables, message):
    with pytest.raises(InvalidRequest, match=message) as refused:
        settings(**variables)

    assert "hidden" not in f"{refused.value} {refused.value.__cause__!r}"


def test_notification_settings_repr_has_no_secret():
    parsed = settings(**MAIL, WEBHOOK="https://h.example/hidden", WEBHOOK_SECRET="hidden")

    assert parsed.mail is not None
    assert (parsed.mail.password, parsed.mail.port, parsed.mail.security) == ("hidden", 465, "tls")
    assert "hidden" not in repr(parsed)
