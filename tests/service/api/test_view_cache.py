"""The view cache with many readers: equal views are built once, different ones are not shared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from markupsafe import Markup

from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.pages.page_parts import BarSegment, DeviceCard, gpus_parts
from runai.hub_service.api.pages.templates import RowCache, templates
from runai.hub_service.api.services.overview_feed import RenderTurns
from runai.hub_service.api.views import device_views
from runai.hub_service.api.views.overview_views import overview_view
from runai.hub_service.api.views.start_views import start_view
from runai.hub_service.api.views.view_cache import (
    MAX_STALE_VIEWS,
    MEASURED_FOR_S,
    MeasurementTimes,
    ViewCache,
)
from runai.hub_service.api.views.workload_queues import Queues
from runai.hub_service.api.views.workload_views import Viewer
from runai.hub_service.controller.idle.decision import IdleActionKind
from runai.hub_service.controller.idle.watch import IdleNow
from runai.hub_service.ledger import Totals
from runai.hub_service.model.records import (
    WorkerRecord,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
)
from runai.hub_service.scheduler.model.explanation import ExpectedStart
from runai.hub_service.wire.device_schemas import DeviceView
from runai.hub_service.wire.schemas import SubmitRequest, WorkloadView

ANA, MIA, OUT = Actor("ana"), Actor("mia"), Actor("out")
ME, OTHERS = (True, True), (False, False)


async def test_each_sees_of_one_world_what_they_would_see_of_their_own(simulated):
    ana, mia = [await simulated.client(name) for name in ("ana", "mia")]
    for client in (ana, mia):
        await client.submit(SubmitRequest(gpus=0.5, command=["train"], array=4))
    everybody = [ANA, MIA, OUT, Actor("root", admin=True), Actor("ana", may_write=False)]
    world = await simulated.platform.world()
    shared = replace(world, drawn=ViewCache())  # no view of an earlier moment

    for actor in (*everybody, *everybody):  # nothing is awaited from here on, so nothing changes
        own = replace(shared, drawn=ViewCache(), queued=Queues.of)
        alone = overview_view(Viewer(own, actor))

        together = overview_view(Viewer(shared, actor))

        assert together == alone


async def test_cache_drops_views_of_deleted_workloads(simulated):
    ana, drawn = await simulated.client("ana"), ViewCache()
    for number in range(MAX_STALE_VIEWS):
        await ana.submit(SubmitRequest(name=f"exp-{number}", gpus=4, command=["train"]))
    queued = [r for r in await simulated.platform.cluster.workloads() if not r.attempts]
    assert len(queued) > MAX_STALE_VIEWS // 2
    view = Viewer(await simulated.platform.world(), ANA).workload(queued[0])

    for number in range(9):  # each generation replaces the one before
        after = [replace(r, spec=replace(r.spec, name=f"{r.spec.name}-{number}")) for r in queued]
        drawn.retain(after)
        for record in after:
            drawn.view(record, (True, True), None, None, None, dict, lambda: view)

    assert len(drawn) <= 3 * MAX_STALE_VIEWS


WAITS = WorkloadRecord(
    WorkloadSpec("vision", "exp", "ana", "job", ("train",)),
    WorkloadState.QUEUED,
    0.0,
    (WorkerRecord("vision/exp-0", 0, "pending"),),
)
VIEW = WorkloadView(
    id="vision/exp",
    project="vision",
    name="exp",
    user="ana",
    kind="job",
    state="queued",
    preemptible=True,
    priority=50,
    gpus=1,
    submitted=datetime.fromtimestamp(0, UTC),
)


TOLD = [5.0]
AT_9 = MeasurementTimes(9.0, TOLD)


@pytest.mark.parametrize(
    ("first", "second", "drawn", "measured"),
    [
        pytest.param((WAITS, ME, "x", None), (WAITS, ME, "x", None), 1, 0, id="all as it was"),
        *[
            pytest.param((WAITS, ME, "x", AT_9), (WAITS, ME, "x", now), 1, measured, id=name)
            for now, measured, name in (
                (MeasurementTimes(9.3, TOLD), 0, "measured just now"),
                (MeasurementTimes(9.3, [9.1]), 1, "an agent has reported"),
                (MeasurementTimes(9.5, TOLD), 1, "measured before"),
                (MeasurementTimes(8.9, TOLD), 1, "the clock was set back"),
            )
        ],
        pytest.param((WAITS, ME, "x", None), (WAITS, ME, "x", AT_9), 2, 0, id="begun"),
        pytest.param(
            (WAITS, ME, "x", AT_9), (WAITS, ME, "y", AT_9), 2, 0, id="something else is said"
        ),
        pytest.param((WAITS, ME, "x", None), (WAITS, OTHERS, "x", None), 2, 0, id="others look"),
        pytest.param(
            (WAITS, ME, "x", None),
            (replace(WAITS, position=1), ME, "x", None),
            2,
            0,
            id="another record",
        ),
    ],
)
def test_cache_builds_unchanged_view_once(first, second, drawn, measured):
    views, times, measurements = ViewCache(), [], []

    def draw() -> WorkloadView:
        times.append(1)
        return VIEW

    def measure() -> dict[str, object]:
        measurements.append(1)
        return {"utilized": 0.5}

    shown: WorkloadView | None = None
    for record, rights, said, at in (first, second, second):
        shown = views.view(record, rights, None, said, at, measure, draw)

    assert (len(times), len(measurements)) == (drawn, measured)
    assert shown == (VIEW.model_copy(update={"utilized": 0.5}) if measured else VIEW)


def test_of_another_start_that_alone_is_drawn():
    views, soon = (
        ViewCache(),
        ExpectedStart(at=60, earliest=None, latest=None, is_estimated=True, text="in a minute"),
    )

    def shown(start: ExpectedStart | None, draw: Callable[[], WorkloadView]) -> WorkloadView:
        return views.view(WAITS, ME, start, "x", None, dict, draw)

    first = shown(None, lambda: VIEW)

    second = shown(soon, lambda: pytest.fail("drawn whole"))
    third = shown(None, lambda: pytest.fail("drawn whole"))

    assert (first, third) == (VIEW, VIEW)
    assert second == VIEW.model_copy(update={"expected_start": start_view(soon)})


class _Grows:
    """A meter with new values for every workload each second."""

    def __init__(self, at: int) -> None:
        self._at = at

    def current(self, _workload: str) -> tuple[float, int | None] | None:
        return (self._at / 10, 100 * self._at) if self._at else None

    def average(self, _workload: str) -> float | None:
        return self._at / 20 if self._at else None

    def totals(self, _workload: str) -> Totals:
        return Totals(allocated_s=3600.0 * self._at)


async def test_cached_view_with_new_measurements_equals_a_rebuilt_view(simulated):
    ana = await simulated.client("ana")
    await ana.submit(SubmitRequest(gpus=0.5, command=["train"], array=2))
    world, drawn = await simulated.platform.world(), ViewCache()
    assert all(record.allocated for record in world.workloads)

    for second in range(5):
        done = IdleActionKind.BADGE if second % 2 else None
        # With the same idle time, a session may have used one of its "keep" requests meanwhile.
        idle = IdleNow(
            60.0 * (second // 2), done, next=IdleActionKind.STOP, in_s=60.0, extensions_left=second
        )
        later = replace(
            world, at=world.at + second, meter=_Grows(second), idle=lambda _id, now=idle: now
        )
        for record in later.workloads:
            whole = Viewer(replace(later, drawn=ViewCache()), ANA).workload(record)
            assert Viewer(replace(later, drawn=drawn), ANA).workload(record) == whole


async def test_unrelated_submission_rebuilds_no_device_view(simulated, monkeypatch):
    ana = await simulated.client("ana")
    await ana.submit(SubmitRequest(gpus=0.5, command=["train"], array=4))
    drawn: list[DeviceView] = []
    draw = device_views.device_view

    def counted(*seat, **reader):
        drawn.append(draw(*seat, **reader))
        return drawn[-1]

    monkeypatch.setattr("runai.hub_service.api.views.workload_views.device_view", counted)
    await ana.nodes()
    before = len(drawn)

    await ana.submit(SubmitRequest(name="more", gpus=4, command=["train"]))
    await ana.nodes()

    assert before > 0
    assert len(drawn) == before


async def test_reports_of_all_jobs_are_read_once_and_of_one_job_alone(simulated, monkeypatch):
    """Reports are hundreds of files, and threads that read them wait for each other."""
    ana, platform, asked = await simulated.client("ana"), simulated.platform, []
    reply = await ana.submit(SubmitRequest(name="exp", gpus=0.5, command=["train"], array=2))
    cluster = platform.cluster
    progress = cluster.progress

    async def counted(only=None):
        asked.append(only)
        return await progress(only)

    monkeypatch.setattr(cluster, "progress", counted)
    now = 0.0
    monkeypatch.setattr(platform._reported, "_clock", lambda: now)
    await asyncio.gather(*(platform.world() for _ in range(9)))
    await ana.overview()
    await ana.workload(reply.workloads[0].id)
    assert asked == [None]

    now += MEASURED_FOR_S
    await ana.workload(reply.workloads[0].id)
    await ana.nodes()
    await ana.projects()

    assert asked == [None, (reply.workloads[0].id,)]


def test_page_renders_unchanged_device_once():
    drawn: Any = templates("/").globals["drawn_device"]
    view = DeviceView(device=0, uuid="", name="A", memory_mib=8, allocated=1, simulated=True)
    part = BarSegment(0.0, 0.5, 0.0, "build", "<ana>: 0.5 allocated", "vision/<ana>", 0.5, "<ana>")
    shown = DeviceCard(0, True, True, "", ("0.5 allocated", "0 % utilized"), (part,), ())

    first = drawn(view, shown, "here")

    assert drawn(view, shown._replace(parts=(part._replace(),)), "here") is first
    assert "&lt;ana&gt;" in first
    assert "<ana>" not in first
    for other in (
        drawn(view, shown, "there"),
        drawn(view, shown._replace(healthy=False, fault="broken"), "here"),
        drawn(view, shown._replace(parts=(part._replace(busy=0.25),)), "here"),
    ):
        assert other != first


def test_page_renders_unchanged_workload_once():
    drawn: Any = templates("/").globals["drawn_workload"]

    first = drawn(VIEW, own=True)

    assert drawn(VIEW, own=True) is first
    assert 'class="others"' not in first
    assert 'class="others"' in drawn(VIEW, own=False)
    assert drawn(VIEW.model_copy(update={"memory_used_mib": 512}), own=True) != first


def test_row_cache_drops_rows_with_their_views():
    cache = RowCache(most=10)
    lasting = [VIEW.model_copy() for _ in range(2)]
    for view in lasting:
        cache.row(view, True, lambda: Markup("lasting"))

    for measured in range(100):
        view = VIEW.model_copy(update={"memory_used_mib": measured})
        cache.row(view, True, lambda: Markup("measured once"))
    del view

    assert len(cache) == len(lasting)
    again = [cache.row(view, True, lambda: pytest.fail("rendered again")) for view in lasting]
    assert again == ["lasting", "lasting"]


def test_row_cache_of_lasting_views_is_bounded():
    cache = RowCache(most=10)
    lasting = [VIEW.model_copy() for _ in range(20)]

    for view in lasting:
        cache.row(view, True, Markup)

    assert len(cache) == 10


async def test_rows_of_former_measurements_are_dropped(simulated, monkeypatch):
    caches: list[RowCache] = []

    def row_cache(_most: int) -> RowCache:
        caches.append(RowCache(99))
        return caches[-1]

    monkeypatch.setattr("runai.hub_service.api.pages.templates.RowCache", row_cache)
    ana = await simulated.client("ana")
    await ana.submit(SubmitRequest(gpus=1, command=["train"]))
    environment, overview = templates.__wrapped__("/"), await ana.overview()

    def render(measured: float) -> dict[str, str]:
        jobs = [w.model_copy(update={"utilized": measured}) for w in overview.workloads]
        nodes = [
            node.model_copy(
                update={
                    "devices": [
                        d.model_copy(update={"utilized": measured}, deep=True) for d in node.devices
                    ]
                }
            )
            for node in overview.nodes
        ]
        later = overview.model_copy(update={"workloads": jobs, "nodes": nodes})
        return gpus_parts(environment, later, "ana").parts

    shown = {str(render(measured / 10)) for measured in range(10)}

    assert len(shown) == 10
    assert [len(cache) for cache in caches] == [0, 0]


async def test_drawing_has_one_turn_at_a_time_and_a_third_of_the_time():
    now = 0.0
    happened: list[object] = []

    async def sleep(seconds: float) -> None:
        happened.append(seconds)
        await asyncio.sleep(0)

    drawing = RenderTurns(clock=lambda: now, sleep=sleep)

    async def draw(name: str, seconds: float) -> None:
        nonlocal now
        async with drawing.turn():
            happened.append(name)
            await asyncio.sleep(0)  # a second one would begin now
            now += seconds

    await asyncio.gather(draw("ana's", 1), draw("bo's", 2))

    assert happened == ["ana's", 2 * 1, "bo's", 2 * 2]
