"""The pages as the service sends them: complete without scripts, closed to other users."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import time
import zlib
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from jinja2 import nodes

from labs import plan
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.api.pages.page_parts import (
    life,
    project_rows,
    quota_of_all,
    workload_values,
)
from runai.hub_service.api.pages.page_reply import pieces
from runai.hub_service.api.pages.templates import templates
from runai.hub_service.api.views.viewer import _code
from runai.hub_service.client.texts import described
from runai.hub_service.clusters.simulated import SimulatedCluster, simulated_cluster
from runai.hub_service.model.records import Code
from runai.hub_service.scheduler.model.snapshot import Reason, Stop
from runai.hub_service.wire.device_schemas import NodeView
from runai.hub_service.wire.errors import Forbidden
from runai.hub_service.wire.schemas import HistoryView, ProjectPut, ProjectView, WorkloadView
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually_async

PAGES = Path(__file__).parents[3] / "hub_service/api/pages"
START = datetime(2026, 11, 1, 12, tzinfo=UTC)


async def page(served, name: str, path: str = ""):
    async with served.http(name) as http:
        return await http.get(path)


async def submit_job(served, name: str = "exp1", **fields) -> None:
    client = await served.client("ana")
    await client.submit(
        SubmitRequest(name=name, project="vision", command=["train"], gpus=1, **fields)
    )


@pytest.mark.parametrize("template", sorted(each.name for each in PAGES.glob("*.html")))
def test_every_jinja_filter_of_a_page_template_exists(template):
    """Jinja looks up a filter inside an `if` when the branch is taken, in the middle of a page."""
    environment = templates("/")
    parsed = environment.parse((PAGES / template).read_text(encoding="utf-8"))
    named = {each.name for each in parsed.find_all(nodes.Filter)}
    assert named - set(environment.filters) == set()


async def test_workload_page_shows_time_limit_and_end_time(simulated):
    await submit_job(simulated, max_runtime=5400)
    text = (await page(simulated, "ana", "workloads/vision/exp1")).text

    assert "<dt>Time limit</dt><dd>90m of running, 0 seconds used</dd>" in text
    assert re.search(r"<dt>Ends</dt><dd> <time", text)


async def test_front_page_is_complete_without_scripts(simulated):
    await submit_job(simulated)
    text = (await page(simulated, "ana")).text

    assert 'id="w:vision/exp1"' in text
    assert "GPU 4" in text  # the last of five
    assert 'aria-label="vision: ' in text
    assert "average utilization" in text
    assert 'data-quota="5.0"' in text  # vision and nlp have 2.5 each


async def test_front_page_lists_and_counts_workloads_that_match_the_filter(simulated):
    for name in ("exp1", "exp2", "other"):
        await submit_job(simulated, name)
    text = (await page(simulated, "ana", "?text=exp&state=running&user=&project=")).text
    no_match = (await page(simulated, "nel", "?text=exp")).text
    hostile = (await page(simulated, "ana", "?text=%22%3E%3Cscript%3E")).text

    assert re.findall(r'<tr id="w:([^"]+)"', text) == ["vision/exp1", "vision/exp2"]
    assert "2 match: 2 running." in text
    assert 'data-live="/services/runai/live/gpus?state=running&amp;text=exp"' in text
    assert 'value="exp"' in text
    assert "None match." in no_match
    assert "<script>" not in hostile


async def test_workload_list_shows_the_move_of_a_job_only_to_permitted_readers(platform_on):
    devices = SimulatedDevices(2, node="lab").devices()
    cluster = simulated_cluster({"lab": devices}, clock=time.time)
    async with platform_on(cluster) as served:
        await submit_job(served)
        clients = {name: await served.client(name) for name in ("ana", "nel")}
        reason = Reason(code="consolidated", rule="R10", text="moved to lab for nlp/owner")
        stop = Stop(workload="vision/exp1", worker="vision/exp1-0", reason=reason)
        assert await cluster.apply(plan(stop)) == []
        cluster.executor.complete("vision/exp1", 143)
        await eventually_async(partial(_runs_again, cluster))

        listed = {name: (await client.workloads())[:1] for name, client in clients.items()}
        text = (await page(served, "ana")).text

    assert {name: [w.moved for w in found] for name, found in listed.items()} == {
        "ana": ["moved to lab for nlp/owner"],
        "nel": [],
    }
    assert "<p>It was moved to lab for nlp/owner</p>" in text


async def test_pause_without_a_new_checkpoint_is_reported_on_page_and_by_describe(platform_on):
    devices = SimulatedDevices(2, node="lab").devices()
    cluster = simulated_cluster({"lab": devices}, clock=time.time)
    async with platform_on(cluster) as served:
        await submit_job(served)
        clients = {name: await served.client(name) for name in ("ana", "nel")}
        await clients["ana"].suspend("vision/exp1")
        cluster.executor.complete("vision/exp1", 143)
        cluster.report_checkpoint("vision/exp1", ((0, 1),), is_new=False)

        detail = await clients["ana"].workload("vision/exp1")
        unsaved = [w.unsaved for w in await clients["nel"].workloads()]
        text = (await page(served, "ana", "workloads/vision/exp1")).text
        metrics = (await page(served, "ana", "metrics")).text

    warning = (
        "suspended; nothing new in its checkpoint directory: "
        "unless it saves elsewhere, it starts where it began"
    )
    assert ("Warning", warning) in described(detail, None, datetime.now(UTC))
    assert ("warning", warning) in [(event.kind, event.text) for event in detail.history]
    assert not any(unsaved)
    assert f"<dt>Warning</dt><dd>{warning}</dd>" in text
    assert 'runai_unsaved_pauses_total{project="vision"} 1.0' in metrics


async def test_kill_after_grace_at_job_stop_is_reported_on_page_and_by_describe(platform_on):
    devices = SimulatedDevices(2, node="lab").devices()
    cluster = simulated_cluster({"lab": devices}, clock=time.time)
    async with platform_on(cluster) as served:
        await submit_job(served)
        clients = {name: await served.client(name) for name in ("ana", "nel")}
        await clients["ana"].suspend("vision/exp1")
        cluster.executor.complete("vision/exp1", -9, killed=True)

        detail = await clients["ana"].workload("vision/exp1")
        killed = [w.killed for w in await clients["nel"].workloads()]
        text = (await page(served, "ana", "workloads/vision/exp1")).text

    warning = "killed after its grace of 30 s: its save may be cut; `--grace` gives more"
    assert ("Warning", warning) in described(detail, None, datetime.now(UTC))
    assert ("exited", f"was {warning}") in [(event.kind, event.text) for event in detail.history]
    assert not any(killed)
    assert f"<dt>Warning</dt><dd>{warning}</dd>" in text


@pytest.mark.parametrize(
    ("current_digit", "description"),
    [("0", "as submitted"), ("1", "submitted as train.py 000000000000")],
)
async def test_workload_page_and_describe_show_job_code_only_to_permitted_readers(
    platform_on, current_digit, description
):
    devices = SimulatedDevices(2, node="lab").devices()
    cluster = simulated_cluster({"lab": devices}, clock=time.time)
    async with platform_on(cluster) as served:
        await submit_job(served, code={"files": {"train.py": "0" * 64, "out.json": "gone"}})
        cluster.report_code("vision/exp1", 1, Code({"train.py": current_digit * 64}))

        detail = await (await served.client("ana")).workload("vision/exp1")
        with pytest.raises(Forbidden):
            await (await served.client("mia")).workload("vision/exp1")
        listed = await (await served.client("mia")).workloads()
        texts = [(await page(served, n, "workloads/vision/exp1")).text for n in ("ana", "mia")]

    lines = dict(described(detail, None, datetime.now(UTC)))
    assert lines["Code"] == f"train.py {current_digit * 12}, {description}"
    assert [lines["Code"] in text for text in texts] == [True, False]
    assert ["train.py" in text for text in texts] == [True, False]
    assert "train.py" not in listed[0].model_dump_json()


def test_stored_job_code_with_an_invalid_digest_is_omitted_from_its_view():
    assert _code(Code({"train.py": "password"})) is None


async def _runs_again(cluster: SimulatedCluster) -> bool:
    record = await cluster.workload("vision/exp1")
    return record.attempts == 2 and record.state == "running"


async def test_members_see_a_colleagues_workload_page_without_history_and_logs(simulated):
    await submit_job(simulated)
    owner_page = (await page(simulated, "ana", "workloads/vision/exp1")).text
    member_page = (await page(simulated, "mia", "workloads/vision/exp1")).text
    unknown = await page(simulated, "nel", "workloads/vision/exp1")

    assert "<code>runai list</code>" in unknown.text
    assert "submitted by ana" in owner_page
    assert 'id="logs"' in owner_page
    assert "vision/exp1" in member_page
    assert "submitted by ana" not in member_page
    assert 'id="logs"' not in member_page
    assert "<button" not in member_page.split("<section")[1]
    assert unknown.status_code == httpx.codes.NOT_FOUND


@pytest.mark.parametrize(
    ("user", "fields"),
    [("root", {"quota", "members", "admins"}), ("vic", {"members", "groups"}), ("ana", set())],
)
async def test_project_page_offers_form_fields_by_role(simulated, user, fields):
    text = (await page(simulated, user, "projects/vision")).text
    offered = {
        name for name in ("quota", "members", "groups", "admins") if f'name="{name}"' in text
    }

    assert offered >= fields
    assert bool(offered) == bool(fields)
    assert ("quota" in offered) == (user == "root")


@pytest.mark.parametrize(
    ("typed", "stored", "displayed"),
    [
        ("0", 0, "0s"),
        ("30s", 30, "30s"),
        ("90", 90, "90s"),
        ("20m", 1200, "20m"),
        ("5400", 5400, "90m"),
        (" 8 H ", 28_800, "8h"),
        ("2d", 172_800, "48h"),
    ],
)
async def test_project_form_takes_and_shows_the_minimum_run_time_as_a_duration(
    simulated, typed, stored, displayed
):
    root = await simulated.client("root")

    await root.put_project("vision", ProjectPut.model_validate({"min_runtime": typed}))

    assert (await root.project("vision")).min_runtime == stored
    text = (await page(simulated, "root", "projects/vision")).text
    field = text.split('name="min_runtime"')[1].split(">")[0]
    assert f'value="{displayed}"' in field
    assert 'data-kind="duration"' in field  # sent as it was typed


async def test_usage_csv_has_a_header_and_one_row_for_each_user(simulated):
    ledger = simulated.platform.ledger
    reply = await page(simulated, "root", "usage/user.csv?range=30d")
    rows = list(csv.reader(reply.text.splitlines()))

    assert rows[0][0] == "user"
    assert len(rows) == 1 + len(ledger.names("user"))
    assert reply.headers["content-disposition"] == 'attachment; filename="usage-user-30d.csv"'


@pytest.mark.parametrize(
    ("prefix", "home"),
    [
        pytest.param("/services/runai/", "/hub/home", id="at the root"),
        pytest.param("/jupyter/services/runai/", "/jupyter/hub/home", id="below a base URL"),
    ],
)
def test_every_page_links_to_the_home_of_its_hub(prefix, home):
    assert templates(prefix).globals["hub_home"] == home
    assert '<a href="{{ hub_home }}">JupyterHub</a>' in (PAGES / "frame.html").read_text()


def test_utilization_of_a_workload_is_a_percentage_of_its_allocation():
    parts: Any = templates("/").get_template("parts.html").module
    view = workload_values(
        WorkloadView(
            id="vision/a",
            project="vision",
            name="a",
            user="ana",
            kind="job",
            state="running",
            preemptible=True,
            priority=50,
            gpus=0.5,
            submitted=START,
            allocated=0.5,
            measured={"utilized": 0.05},
        )
    )

    assert '<td class="number" data-label="utilized">10 %' in parts.workload(view, own=True)


async def test_static_route_serves_assets_but_no_source_code(simulated):
    async with simulated.http() as http:
        files = [await http.get(f"static/{name}") for name in ("live.js", "uplot.js", "gpus.svg")]
        missing = await http.get("static/../views.py")

    assert [file.status_code for file in files] == [200, 200, 200]
    assert missing.status_code == httpx.codes.NOT_FOUND


async def next_update(lines) -> dict:
    async for line in lines:
        if line.startswith("data: "):
            return dict(json.loads(line.removeprefix("data: ")))
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_live_page_stream_sends_all_parts_once_then_only_changed_parts(simulated, encoding):
    async with simulated.http("ana") as http:
        headers = {"Accept-Encoding": encoding}
        async with http.stream("GET", "live/gpus", headers=headers) as reply:
            lines = reply.aiter_lines()
            first = await next_update(lines)
            await submit_job(simulated)
            second = await next_update(lines)

    assert reply.headers.get("content-encoding", "identity") == encoding
    assert {"summary", "projects", "d:lab:0"} <= first["parts"].keys()
    assert second["rows"] == ["w:vision/exp1"]
    assert "w:vision/exp1" in second["parts"]
    assert "d:lab:4" not in second["parts"]


def test_gpu_page_names_missing_gpus_of_a_node_until_they_return():
    loss = "node gpu-1 offers 0 of 4 GPUs since 14:02 (device plugin or driver)"
    macros: Any = templates("/").get_template("parts.html").module

    with_loss, without_loss = (
        macros.loss(vars(NodeView(name="gpu-1", devices=[], loss=text))) for text in (loss, "")
    )

    assert with_loss == f'<p id="loss:gpu-1" class="fault">{loss}</p>'
    assert without_loss == '<p id="loss:gpu-1" class="fault" hidden></p>'


async def test_html_page_is_compressed_with_gzip(simulated):
    async with simulated.http("ana") as http, http.stream("GET", "") as reply:
        raw = b"".join([piece async for piece in reply.aiter_raw()])

    assert b"<!doctype html>" in zlib.decompress(raw, 31)


async def test_html_page_is_streamed_before_its_last_row_is_rendered():
    rendered: list[str] = []

    def rows():
        for number in range(1000):
            rendered.append(f"<p>{number}</p>" + " " * 100)
            yield rendered[-1]

    sent = pieces(rows())
    first = await anext(sent)
    at_first = len(rendered)
    rest = [piece async for piece in sent]

    assert first.startswith(b"<p>0</p>")
    assert at_first < 200
    assert (first + b"".join(rest)).decode() == "".join(rendered)


async def test_front_page_loads_no_external_resource_and_its_styles_match_the_csp(simulated):
    reply = await page(simulated, "ana")
    styles = re.findall(r"<style>(.*?)</style>", reply.text, flags=re.DOTALL)
    hashes = {
        f"'sha256-{b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"
        for style in styles
    }
    policy = dict(
        part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; ")
    )

    assert len(styles) == 2
    assert hashes == set(policy["style-src"].split())
    assert [out for out in ('rel="stylesheet"', "style=", "https://") if out in reply.text] == []


async def test_front_page_shows_child_project_below_its_parent(simulated):
    root = await simulated.client("root")
    await root.put_project("video", ProjectPut(parent="vision", quota="0.5"))
    text = (await page(simulated, "root")).text

    assert text.index(">vision</a>") < text.index(">video</a>") < text.index(">nlp</a>")
    assert "depth-1" in text


# -- page parts ----------------------------------------------------------------------------------


def project(name: str, **fields) -> ProjectView:
    return ProjectView(name=name, **({"quota": 2, "build_quota": None} | fields))


def test_html_lists_of_page_templates_have_no_role_attribute():
    """With another role its items would be in no list."""
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.html"))

    assert "<ul" in pages
    assert re.findall(r"<[ou]l\b[^>]*\brole=", pages) == []


def test_project_bar_divides_into_sessions_jobs_and_over_quota():
    [row] = project_rows([project("a", allocated=3, build_allocated=0.5)], 4)

    assert [row["build"], row["train"], row["over"]] == [0.125, 0.375, 0.25]
    assert row["figures"] == ["3 of 2", "1 over quota"]


def test_project_figures_name_quotas_by_gpu_type():
    [row] = project_rows([project("a", quota=6, quota_by_type={"h100": 2, "*": 4})], 8)

    assert row["figures"] == ["0 of 6", "by type h100 2, * 4"]


def test_project_without_a_quota_is_never_over_quota():
    [row] = project_rows([project("a", quota=None, allocated=3)], 4)

    assert (row["over"], row["quota"], row["figures"]) == (0, None, ["3 of ∞"])


@pytest.mark.parametrize(
    ("projects", "expected"),
    [
        pytest.param([project("a"), project("b", quota=1.5)], 3.5, id="two root projects"),
        pytest.param(
            [project("a"), project("c", parent="a", quota=1)], 2, id="child in its parent"
        ),
        pytest.param([project("a"), project("b", quota=None)], None, id="one unlimited quota"),
        pytest.param([], None, id="no projects"),
    ],
)
def test_total_quota_is_the_sum_of_the_root_projects(projects, expected):
    assert quota_of_all(projects) == expected


def test_project_rows_list_children_below_their_parents():
    rows = project_rows([project("c", parent="b"), project("a"), project("b", parent="a")], 4)

    assert [(row["project"].name, row["depth"]) for row in rows] == [("a", 0), ("b", 1), ("c", 2)]


def event(seconds: float, kind: str, text: str = "") -> HistoryView:
    return HistoryView(at=START + timedelta(seconds=seconds), kind=kind, text=text or kind)


def test_workload_timeline_has_the_time_spent_in_each_state():
    timeline = life(
        [
            event(0, "queued"), event(30, "running"), event(60, "resized", "trains with 2"),
            event(90, "stopping", "nlp takes it back"), event(90, "paused"),
            event(120, "succeeded"),
        ],
        START + timedelta(hours=1),
    )  # fmt: skip

    assert [(band["kind"], band["at"], band["width"]) for band in timeline["bands"]] == [
        ("queued", 0, 0.25), ("running", 0.25, 0.5), ("stopping", 0.75, 0), ("paused", 0.75, 0.25)
    ]  # fmt: skip
    assert timeline["marks"] == [{"at": 0.5, "title": "trains with 2"}]
    assert timeline["stopped"] == "nlp takes it back"
    assert timeline["words"].startswith("queued for 30 s, running for 1 min")


def test_timeline_of_an_unfinished_job_ends_at_the_present():
    timeline = life([event(0, "queued"), event(60, "running")], START + timedelta(seconds=120))

    assert [band["width"] for band in timeline["bands"]] == [0.5, 0.5]
    assert life([], START)["bands"] == []


@pytest.mark.parametrize(
    ("path", "accept", "kind"),
    [
        pytest.param("no/such", "text/html,*/*", "text/html", id="browser"),
        pytest.param("no/such", "*/*", "application/problem+json", id="program"),
        pytest.param("api/v1/no", "text/html", "application/problem+json", id="api"),
    ],
)
async def test_unknown_path_returns_html_to_browsers_and_problem_json_to_programs(
    simulated, path, accept, kind
):
    async with simulated.http("ana") as http:
        reply = await http.get(path, headers={"Accept": accept})

    assert (reply.status_code, reply.headers["Content-Type"].partition(";")[0]) == (404, kind)
    assert ("<h1>There is no page /services/runai/no/such.</h1>" in reply.text) == (
        kind == "text/html"
    )
