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
from runai.hub_service.api.views.start_forecasts import start_view
from runai.hub_service.api.views.view_cache import (
    MAX_STALE_VIEWS,
    MEASURED_FOR_S,
    MeasurementTimes,
    ViewCache,
)
from runai.hub_service.api.views.viewer import Viewer
from runai.hub_service.api.views.workload_queues import LastQueues
from runai.hub_service.controller.idle.idle_watch import IdleNow
from runai.hub_service.controller.idle.idleness import IdleActionKind
from runai.hub_service.ledger import Totals
from runai.hub_service.model.changes import WorkloadChanges
from runai.hub_service.model.records import (
    WorkerRecord,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
)
from runai.hub_service.scheduler.model.explanation import ExpectedStart
from runai.hub_service.wire.device_schemas import DeviceView
from runai.hub_service.wire.schemas import MeasuredView, WorkloadView
from runai.hub_service.wire.workload_request import SubmitRequest

ANA, MIA, OUT = Actor("ana"), Actor("mia"), Actor("out")
BUSY = MeasuredView(utilized=0.5)
OWN_RIGHTS, NO_RIGHTS = (True, True), (False, False)


async def test_overview_from_a_shared_cache_equals_one_from_a_private_cache(simulated):
    ana, mia = [await simulated.client(name) for name in ("ana", "mia")]
    for client in (ana, mia):
        await client.submit(SubmitRequest(gpus=0.5, command=["train"], array=4))
    actors = [ANA, MIA, OUT, Actor("root", admin=True), Actor("ana", may_write=False)]
    read_model = await simulated.platform.read_model()
    shared_model = replace(read_model, view_cache=ViewCache())  # no view of an earlier moment

    for actor in (*actors, *actors):  # nothing is awaited from here on, so nothing changes
        private_queues = LastQueues()
        private_queues.apply(WorkloadChanges(0, read_model.workloads, is_all=True))
        private_model = replace(shared_model, view_cache=ViewCache(), queues=private_queues.queues)
        private_view = overview_view(Viewer(private_model, actor))

        shared_view = overview_view(Viewer(shared_model, actor))

        assert shared_view == private_view


async def test_view_cache_drops_views_of_deleted_workloads(simulated):
    ana, cache = await simulated.client("ana"), ViewCache()
    for number in range(MAX_STALE_VIEWS):
        await ana.submit(SubmitRequest(name=f"exp-{number}", gpus=4, command=["train"]))
    queued = [r for r in await simulated.platform.cluster.workloads() if not r.attempts]
    assert len(queued) > MAX_STALE_VIEWS // 2
    view = Viewer(await simulated.platform.read_model(), ANA).workload(queued[0])

    for number in range(9):  # each generation replaces the one before
        renamed_records = [
            replace(r, spec=replace(r.spec, name=f"{r.spec.name}-{number}")) for r in queued
        ]
        cache.retain(renamed_records)
        for record in renamed_records:
            cache.view(record, (True, True), None, None, None, dict, lambda: view)

    assert len(cache) <= 3 * MAX_STALE_VIEWS


JOB = WorkloadRecord(
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


REPORTED_AT = [5.0]
TIMES_AT_9 = MeasurementTimes(9.0, REPORTED_AT)


@pytest.mark.parametrize(
    ("first", "second", "expected_builds", "measured"),
    [
        pytest.param(
            (JOB, OWN_RIGHTS, "x", None), (JOB, OWN_RIGHTS, "x", None), 1, 0, id="unchanged"
        ),
        *[
            pytest.param(
                (JOB, OWN_RIGHTS, "x", TIMES_AT_9),
                (JOB, OWN_RIGHTS, "x", now),
                1,
                measured,
                id=name,
            )
            for now, measured, name in (
                (MeasurementTimes(9.3, REPORTED_AT), 0, "measured just before"),
                (MeasurementTimes(9.3, [9.1]), 1, "new agent report"),
                (MeasurementTimes(9.5, REPORTED_AT), 1, "older measurement"),
                (MeasurementTimes(8.9, REPORTED_AT), 1, "clock set back"),
            )
        ],
        pytest.param(
            (JOB, OWN_RIGHTS, "x", None), (JOB, OWN_RIGHTS, "x", TIMES_AT_9), 2, 0, id="measured"
        ),
        pytest.param(
            (JOB, OWN_RIGHTS, "x", TIMES_AT_9),
            (JOB, OWN_RIGHTS, "y", TIMES_AT_9),
            2,
            0,
            id="changed inputs",
        ),
        pytest.param(
            (JOB, OWN_RIGHTS, "x", None), (JOB, NO_RIGHTS, "x", None), 2, 0, id="other rights"
        ),
        pytest.param(
            (JOB, OWN_RIGHTS, "x", None),
            (replace(JOB, position=1), OWN_RIGHTS, "x", None),
            2,
            0,
            id="changed record",
        ),
    ],
)
def test_view_cache_builds_unchanged_workload_view_once(first, second, expected_builds, measured):
    cache, builds, measurements = ViewCache(), [], []

    def build() -> WorkloadView:
        builds.append(1)
        return VIEW

    def measure() -> dict[str, object]:
        measurements.append(1)
        return {"measured": BUSY}

    view: WorkloadView | None = None
    for record, rights, inputs, at in (first, second, second):
        view = cache.view(record, rights, None, inputs, at, measure, build)

    assert (len(builds), len(measurements)) == (expected_builds, measured)
    assert view == (VIEW.model_copy(update={"measured": BUSY}) if measured else VIEW)


def test_changed_expected_start_rebuilds_no_cached_workload_view():
    cache, soon = (
        ViewCache(),
        ExpectedStart(at=60, earliest=None, latest=None, is_estimated=True, text="in a minute"),
    )

    def cached_view(start: ExpectedStart | None, build: Callable[[], WorkloadView]) -> WorkloadView:
        return cache.view(JOB, OWN_RIGHTS, start, "x", None, dict, build)

    first = cached_view(None, lambda: VIEW)

    second = cached_view(soon, lambda: pytest.fail("built again"))
    third = cached_view(None, lambda: pytest.fail("built again"))

    assert (first, third) == (VIEW, VIEW)
    assert second == VIEW.model_copy(update={"expected_start": start_view(soon)})


class _GrowingMeter:
    """A meter with new values for every workload each second."""

    def __init__(self, at: int) -> None:
        self._at = at

    def current(self, _workload: str) -> tuple[float, int | None] | None:
        return (self._at / 10, 100 * self._at) if self._at else None

    def average(self, _workload: str) -> float | None:
        return self._at / 20 if self._at else None

    def totals(self, _workload: str) -> Totals:
        return Totals(allocated_s=3600.0 * self._at)


async def test_cached_workload_view_with_new_measurements_equals_a_rebuilt_view(simulated):
    ana = await simulated.client("ana")
    await ana.submit(SubmitRequest(gpus=0.5, command=["train"], array=2))
    read_model, cache = await simulated.platform.read_model(), ViewCache()
    assert all(record.allocated for record in read_model.workloads)

    for second in range(5):
        kind = IdleActionKind.BADGE if second % 2 else None
        # With the same idle time, a session may have used one of its "keep" requests meanwhile.
        idle = IdleNow(
            60.0 * (second // 2), kind, next=IdleActionKind.STOP, in_s=60.0, extensions_left=second
        )
        later = replace(
            read_model,
            at=read_model.at + second,
            meter=_GrowingMeter(second),
            idle=lambda _id, now=idle: now,
        )
        for record in later.workloads:
            rebuilt = Viewer(replace(later, view_cache=ViewCache()), ANA).workload(record)
            assert Viewer(replace(later, view_cache=cache), ANA).workload(record) == rebuilt


async def test_unrelated_submission_rebuilds_no_device_view(simulated, monkeypatch):
    ana = await simulated.client("ana")
    await ana.submit(SubmitRequest(gpus=0.5, command=["train"], array=4))
    built: list[DeviceView] = []
    build_device_view = device_views.device_view

    def record_build(*arguments, **options):
        built.append(build_device_view(*arguments, **options))
        return built[-1]

    monkeypatch.setattr("runai.hub_service.api.views.viewer.device_view", record_build)
    await ana.nodes()
    before = len(built)

    await ana.submit(SubmitRequest(name="more", gpus=4, command=["train"]))
    await ana.nodes()

    assert before > 0
    assert len(built) == before


async def test_progress_of_all_jobs_is_cached_and_of_one_job_is_read_separately(
    simulated, monkeypatch
):
    """Reports are hundreds of files, and threads that read them wait for each other."""
    ana, platform, progress_queries = await simulated.client("ana"), simulated.platform, []
    reply = await ana.submit(SubmitRequest(name="exp", gpus=0.5, command=["train"], array=2))
    cluster = platform.cluster
    read_progress = cluster.progress

    async def record_query(only=None):
        progress_queries.append(only)
        return await read_progress(only)

    monkeypatch.setattr(cluster, "progress", record_query)
    now = 0.0
    monkeypatch.setattr(platform._progress_cache, "_clock", lambda: now)
    await asyncio.gather(*(platform.read_model() for _ in range(9)))
    await ana.overview()
    await ana.workload(reply.workloads[0].id)
    assert progress_queries == [None]

    now += MEASURED_FOR_S
    await ana.workload(reply.workloads[0].id)
    await ana.nodes()
    await ana.projects()

    assert progress_queries == [None, (reply.workloads[0].id,)]


def test_page_renders_unchanged_device_once():
    render_device: Any = templates("/").globals["drawn_device"]
    view = DeviceView(device=0, uuid="", name="A", memory_mib=8, allocated=1, simulated=True)
    part = BarSegment(0.0, 0.5, 0.0, "build", "<ana>: 0.5 allocated", "vision/<ana>", 0.5, "<ana>")
    card = DeviceCard(0, True, True, "", ("0.5 allocated", "0 % utilized"), (part,), ())

    first = render_device(view, card, "here")

    assert render_device(view, card._replace(parts=(part._replace(),)), "here") is first
    assert "&lt;ana&gt;" in first
    assert "<ana>" not in first
    for other in (
        render_device(view, card, "there"),
        render_device(view, card._replace(healthy=False, fault="broken"), "here"),
        render_device(view, card._replace(parts=(part._replace(busy=0.25),)), "here"),
    ):
        assert other != first


def test_page_renders_unchanged_workload_once():
    render_workload: Any = templates("/").globals["drawn_workload"]

    first = render_workload(VIEW, own=True)

    assert render_workload(VIEW, own=True) is first
    assert 'class="others"' not in first
    assert 'class="others"' in render_workload(VIEW, own=False)
    assert (
        render_workload(
            VIEW.model_copy(update={"measured": MeasuredView(memory_used_mib=512)}), own=True
        )
        != first
    )


def test_html_row_cache_drops_rows_with_their_workload_views():
    cache = RowCache(max_rows=10)
    lasting = [VIEW.model_copy() for _ in range(2)]
    for view in lasting:
        cache.row(view, True, lambda: Markup("lasting"))

    for measured in range(100):
        view = VIEW.model_copy(update={"measured": MeasuredView(memory_used_mib=measured)})
        cache.row(view, True, lambda: Markup("measured once"))
    del view

    assert len(cache) == len(lasting)
    again = [cache.row(view, True, lambda: pytest.fail("rendered again")) for view in lasting]
    assert again == ["lasting", "lasting"]


def test_html_row_cache_never_exceeds_its_maximum_size():
    cache = RowCache(max_rows=10)
    lasting = [VIEW.model_copy() for _ in range(20)]

    for view in lasting:
        cache.row(view, True, Markup)

    assert len(cache) == 10


async def test_cached_html_rows_of_former_measurements_are_dropped(simulated, monkeypatch):
    caches: list[RowCache] = []

    def row_cache(_max_rows: int) -> RowCache:
        caches.append(RowCache(99))
        return caches[-1]

    monkeypatch.setattr("runai.hub_service.api.pages.templates.RowCache", row_cache)
    ana = await simulated.client("ana")
    await ana.submit(SubmitRequest(gpus=1, command=["train"]))
    environment, overview = templates.__wrapped__("/"), await ana.overview()

    def render(measured: float) -> dict[str, str]:
        jobs = [
            w.model_copy(update={"measured": MeasuredView(utilized=measured)})
            for w in overview.workloads
        ]
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

    rendered_parts = {str(render(measured / 10)) for measured in range(10)}

    assert len(rendered_parts) == 10
    assert [len(cache) for cache in caches] == [0, 0]


async def test_page_rendering_runs_one_page_at_a_time_and_a_third_of_the_time():
    now = 0.0
    steps: list[object] = []

    async def sleep(seconds: float) -> None:
        steps.append(seconds)
        await asyncio.sleep(0)

    turns = RenderTurns(clock=lambda: now, sleep=sleep)

    async def render(name: str, seconds: float) -> None:
        nonlocal now
        async with turns.turn():
            steps.append(name)
            await asyncio.sleep(0)  # a second one would begin now
            now += seconds

    await asyncio.gather(render("ana's", 1), render("bo's", 2))

    assert steps == ["ana's", 2 * 1, "bo's", 2 * 2]
