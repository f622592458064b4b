"""The live views against a real service, in this process and in a real kernel."""

from __future__ import annotations

import json
import sys
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from runai.hub_service.client import Client
from runai.hub_service.wire.errors import Unauthenticated
from runai.hub_service.wire.schemas import ProjectPut
from runai.widgets import connect, panel, quota, submit
from runai.widgets.panel import Panel, jobs_view

VIEW = "application/vnd.jupyter.widget-view+json"


class RecordingComm:
    """The kernel's end of the connection to a page; it records the messages sent."""

    comm_id = "wire"
    kernel = "present"

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, data: dict[str, Any], **_: object) -> None:
        """Record a message to the page."""
        self.sent.append(data)

    def on_msg(self, callback: object) -> None:
        """Ignore the registration of a callback; tests call the callback themselves."""

    def close(self, **_: object) -> None:
        """Do nothing."""

    def answers(self) -> list[Any]:
        """Return the answers to clicks."""
        return [data["content"] for data in self.sent if data["method"] == "custom"]


class StubShell:
    """The shell of a kernel, as far as views ask it: the request that it executes."""

    kernel = "present"

    def __init__(self) -> None:
        self.request: dict[str, Any] = {}

    def get_parent(self) -> dict[str, Any]:
        return self.request

    def execute(self, cell: str, execution: str) -> None:
        self.request = {"metadata": {"cellId": cell}, "header": {"msg_id": execution}}


@pytest.fixture
def kernel(monkeypatch):
    kernel = StubShell()
    monkeypatch.setattr(sys.modules[Panel.__module__], "get_ipython", lambda: kernel)
    return kernel


@pytest.fixture
def bob(folder, service, kernel):
    link = connect(service.url, service.tokens["bob"])
    yield link
    link.close()


def states(view) -> dict[str, str]:
    return {row["name"]: row["state"] for row in view.state["workloads"]}


def click(view, verb: str, workload: str, **more: object) -> list[Any]:
    """Send the page's message outside JupyterHub; return the kernel's answers."""
    view.comm = RecordingComm()
    view._handle_custom_msg({"verb": verb, "workload": workload, **more}, [])
    answers: list[Any] = view.comm.answers()
    return answers


def test_panel_lists_my_projects_and_follows_my_jobs(bob, eventually):
    view = panel()
    assert [bar["name"] for bar in view.state["projects"]] == ["vision"]

    job = submit("endless.py", gpus=1, name="exp1", grace_seconds=1)

    eventually(lambda: states(view) == {"exp1": "running"})
    eventually(lambda: view.state["projects"][0]["allocated"] == 1)
    job.suspend()
    eventually(lambda: states(view) == {"exp1": "suspended"})
    view.close()


@pytest.mark.parametrize("open_view", [panel, quota])
def test_open_quota_view_follows_changes_of_the_users_projects(bob, service, eventually, open_view):
    view = open_view()

    def names() -> list[str]:
        return [bar["name"] for bar in view.state["projects"]]

    assert names() == ["vision"]
    with Client(service.url, service.tokens["root"]) as admin:
        admin.put_project("team3", ProjectPut(members=["bob"]))
        eventually(lambda: names() == ["vision", "team3"])
        admin.put_project("vision", ProjectPut(members=[]))
        eventually(lambda: names() == ["team3"])
    view.close()


def test_notebook_views_of_a_cell_end_when_the_cell_runs_again(bob, kernel):
    listeners = bob.live._listeners
    kernel.execute("first", "1")
    panel(), quota()
    kernel.execute("second", "2")
    latest_panel = quota_view = quota()
    assert len(listeners) == 3

    for execution in ("3", "4", "5"):
        kernel.execute("first", execution)
        latest_panel = panel()

    assert len(listeners) == 2
    assert {id(listener.__self__) for listener in listeners} == {id(latest_panel), id(quota_view)}


def report_visibility(view, *, visible: bool) -> list[Any]:
    """Send a page's report; return the kernel's answers."""
    view.comm = RecordingComm()
    view._handle_custom_msg({"shown": visible}, [])
    answers: list[Any] = view.comm.answers()
    return answers


def listening_panels(link) -> list[Panel]:
    return [listener.__self__ for listener in link.live._listeners]


def test_notebook_views_without_a_cell_listen_while_a_page_displays_them(bob, kernel):
    """VS Code and scripts with cells do not name them; their outputs may all stay on the page."""
    views = []
    for execution in ("1", "2", "3"):
        kernel.execute("", execution)
        views.append(quota())
        report_visibility(views[-1], visible=True)
    assert listening_panels(bob) == views

    assert report_visibility(views[0], visible=False) == [{"asks": "shown"}]
    assert listening_panels(bob) == views[1:]
    report_visibility(views[0], visible=True)  # another page has it as well
    assert set(listening_panels(bob)) == set(views)

    for view in views:
        report_visibility(view, visible=False)
    assert listening_panels(bob) == []


def test_quota_view_outside_of_a_kernel_does_not_listen_for_updates(bob, kernel, monkeypatch):
    monkeypatch.setattr(sys.modules[Panel.__module__], "get_ipython", lambda: None)

    view = quota()

    assert listening_panels(bob) == []
    assert "0 allocated of 2.5 quota" in repr(view)


def test_jobs_view_of_finished_jobs_does_not_listen_again_when_visible(bob, kernel):
    job = submit("hello.py", name="exp1")
    job.wait()
    view = jobs_view(bob, [job])
    assert states(view) == {"exp1": "succeeded"}

    report_visibility(view, visible=True)

    assert listening_panels(bob) == []


def test_panel_chart_grows_while_gpus_are_allocated(bob, eventually):
    view = panel(minutes=2)
    job = submit("endless.py", gpus=1, name="exp1", grace_seconds=1)
    eventually(lambda: states(view) == {"exp1": "running"})
    job.delete()

    eventually(lambda: any(point[1] for point in view.state["chart"]["points"]))

    chart = view.state["chart"]
    assert (chart["quota"], round(chart["until"] - chart["since"])) == (2.5, 120)
    view.close()


def test_quota_view_shows_bars_without_workloads_or_chart(bob):
    view = quota()

    assert (view.state["view"], view.state["workloads"], view.state["chart"]) == ("quota", [], None)
    assert "(simulated GPUs)" in repr(view)
    view.close()


def test_notebook_panel_has_a_text_form_for_pages_without_widgets(bob):
    view = panel()

    data, _ = view._repr_mimebundle_()

    assert data["text/plain"] == repr(view)
    assert "0 allocated of 2.5 quota" in data["text/plain"]
    assert data[VIEW]["model_id"] == view.model_id
    view.close()
    assert bob.live._listeners == []  # a closed view has unsubscribed


def test_jobs_view_stops_listening_when_its_jobs_end(bob, eventually):
    job = submit("hello.py", gpus=0.25, name="exp1")
    view = jobs_view(bob, [job])

    eventually(lambda: states(view) == {"exp1": "succeeded"})
    eventually(lambda: bob.live._listeners == [])


def test_jobs_view_ignores_an_overview_from_before_the_job_submission(bob, eventually):
    earlier_overview = bob.client.overview()
    job = submit("endless.py", gpus=1, name="exp1", grace_seconds=1)
    view = jobs_view(bob, [job])
    eventually(lambda: states(view) == {"exp1": "running"})

    view._on_stream_update(earlier_overview)  # the stream's latest, as a view begins

    assert states(view) == {"exp1": "running"}
    job.delete()
    eventually(lambda: states(view) == {"exp1": "deleted"})
    eventually(lambda: bob.live._listeners == [])


def test_jobs_view_of_a_job_absent_from_overviews_has_the_services_answer(bob, eventually):
    job = submit("endless.py", gpus=1, name="exp1", grace_seconds=1)
    view = jobs_view(bob, [job])
    bob.live.close()  # only the overviews below
    job.suspend()
    eventually(lambda: job.state == "suspended")
    overview = bob.client.overview().model_copy(update={"workloads": []})

    view._on_stream_update(overview)

    assert states(view) == {"exp1": "suspended"}
    job.delete()
    view._on_stream_update(overview)
    assert states(view) == {"exp1": "deleted"}


def test_panel_button_outside_jupyterhub_suspends_a_job_through_the_kernel(bob, eventually):
    job = submit("endless.py", gpus=1, name="exp1", grace_seconds=1)
    view = panel()

    assert click(view, "suspend", job.id) == [{"workload": job.id, "uid": "", "error": ""}]

    eventually(lambda: job.state == "suspended")
    view.close()


def test_scale_button_adds_a_worker_to_an_elastic_job(bob, eventually):
    job = submit("endless.py", workers=2, elastic=True, name="exp1", grace_seconds=1)
    view = panel()

    assert click(view, "scale", job.id, workers=3)[0]["error"] == ""

    elastic = job.detail.elastic
    assert elastic is not None
    assert elastic.workers == 3
    eventually(lambda: view.state["workloads"][0]["gpus"] == 3)
    assert job.scale(workers=4, min_workers=2).detail.min_workers == 2
    job.suspend()
    view.close()


def test_opened_workload_has_the_facts_of_its_details(bob):
    job = submit("endless.py", gpus=1, name="exp1", priority="high")
    view = panel()

    (answer,) = click(view, "describe", job.id, uid=job.detail.uid)

    assert (answer["workload"], answer["uid"]) == (job.id, job.detail.uid)
    texts = {fact["label"]: fact["text"] for fact in answer["facts"]}
    assert texts["Name"] == "exp1"
    assert int(texts["Priority"]) > 50
    (refused,) = click(view, "describe", job.id, uid="another")
    assert "another" in refused["error"]
    view.close()


def test_panel_answers_a_failed_action_with_an_error(bob):
    view = panel()

    (answer,) = click(view, "suspend", "vision/none")

    assert answer["error"].startswith("There is no workload")
    assert click(view, "close", "vision/none") == []  # not the verb of a button
    view.close()


def test_view_has_the_service_path_only_inside_jupyterhub(folder, service, monkeypatch):
    def view_service() -> str:
        link = connect(service.url, service.tokens["bob"])
        view = quota()
        view.close()
        link.close()
        return str(view.service)

    monkeypatch.delenv("JUPYTERHUB_SERVICE_PREFIX", raising=False)
    outside = view_service()  # through the kernel
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/bob/")

    assert (outside, view_service()) == ("", "/services/runai/")


def test_panel_raises_unauthenticated_for_an_unknown_token(folder, service):
    link = connect(service.url, "wrong")

    with pytest.raises(Unauthenticated):
        panel()
    link.close()


NOTEBOOK_CELLS = [
    """
import threading, time
from runai.widgets import connect, panel, submit
connect({url!r}, {token!r})
view = panel()
thread_names = []
view.observe(lambda change: thread_names.append(threading.current_thread().name), "state")
view
""",
    """
job = submit("hello.py", gpus=0.25, name="exp1")
job
""",
    """
# The kernel is busy in this cell: only another thread can tell the page anything.
deadline = time.monotonic() + 60
while not any(r["state"] == "succeeded" for r in view.state["workloads"]):
    assert time.monotonic() < deadline
    time.sleep(0.01)
print(sorted(set(thread_names)))
""",
]


def test_views_in_a_kernel_update_while_a_cell_runs(folder, service):
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(cell.format(url=service.url, token=service.tokens["bob"]))
            if "{url" in cell
            else nbformat.v4.new_code_cell(cell)
            for cell in NOTEBOOK_CELLS
        ]
    )
    executed = NotebookClient(
        notebook,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        startup_timeout=200,
        iopub_timeout=60,
    ).execute()

    panel_output, job_output, thread_output = [cell["outputs"][-1] for cell in executed["cells"]]
    assert VIEW in panel_output["data"]
    assert VIEW in job_output["data"]
    assert thread_output["text"] == "['runai-live']\n"
    widget_states = executed["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"][
        "state"
    ]
    state = widget_states[panel_output["data"][VIEW]["model_id"]]["state"]["state"]
    assert [(row["name"], row["state"]) for row in state["workloads"]] == [("exp1", "succeeded")]
    json.dumps(state)
