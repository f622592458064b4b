"""The relay in a notebook server: who may use it, what it passes on, and what it keeps."""

from __future__ import annotations

import json

import httpx
import pytest
import websocket

from runai.hub_service.wire.workload_request import SubmitRequest

LOOP = "import sys, threading\nprint('going', sys.argv[1:], flush=True)\nthreading.Event().wait()"


def test_window_gets_the_status_and_the_panel_of_the_servers_user(server, bob):
    job = bob.submit(SubmitRequest(name="exp", gpus=1, command=["sleep", "600"])).workloads[0]

    with server.socket("live") as socket:
        frame = json.loads(socket.recv())
        while not frame["state"]["workloads"]:
            frame = json.loads(socket.recv())

    assert frame["user"] == "bob"
    assert frame["status"]["text"].startswith("1 GPU · ")
    assert [row["id"] for row in frame["state"]["workloads"]] == [job.id]
    assert frame["free"] == "4 of 5 GPUs free"


def test_frames_and_scripts_hold_no_token(server, service):
    with server.socket("live") as socket:
        frame = socket.recv()
    answer = server.post("act", {"verb": "describe", "workload": "vision/none"}).text

    for text in (frame, answer, server.output.read_text()):
        assert service.tokens["bob"] not in text


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"cookies": False}, id="nobody"),
        pytest.param(
            {"cookies": False, "header": {"Authorization": "token of-another"}}, id="another user"
        ),
        pytest.param({"origin": "https://evil.example"}, id="a foreign origin"),
    ],
)
@pytest.mark.parametrize("socket", ["live", "log?workload=vision/exp"])
def test_socket_refuses_anybody_but_the_servers_user(server, socket, options):
    with (
        pytest.raises(websocket.WebSocketBadStatusException) as refused,
        server.socket(socket, **options),
    ):
        pass

    assert refused.value.status_code == 403


@pytest.mark.parametrize("route", ["act", "run"])
def test_request_without_the_xsrf_token_is_refused(server, route):
    asked = {"verb": "delete", "workload": "vision/exp"}

    assert server.browser.post(f"runai/lab/{route}", json=asked).status_code == 403
    assert server.post(route, asked, **{"X-XSRFToken": "wrong"}).status_code == 403


@pytest.mark.parametrize("route", ["act", "run"])
def test_request_of_nobody_is_refused(server, route):
    refused = httpx.post(f"{server.url}runai/lab/{route}", json={})

    assert refused.status_code == 403


def test_scripts_are_public_but_no_other_file_is(server):
    def status(name: str) -> int:
        return httpx.get(f"{server.url}runai/lab/{name}").status_code

    assert [status(name) for name in ("extension.js", "panel.js", "panel.css")] == [200] * 3
    assert {status(name) for name in ("panel.py", "../feed.py", "..%2ffeed.py")} <= {403, 404}


def test_button_suspends_a_job_and_answers_with_the_services_sentence(server, bob, eventually):
    job = bob.submit(SubmitRequest(name="exp", gpus=1, command=["sleep", "600"])).workloads[0]

    answer = server.ask("act", {"verb": "suspend", "workload": job.id, "uid": job.uid})

    assert answer == {"workload": job.id, "uid": job.uid, "error": ""}
    eventually(lambda: bob.workload(job.id).state == "suspended")
    facts = server.ask("act", {"verb": "describe", "workload": job.id})["facts"]
    assert "sleep 600" in [fact["text"] for fact in facts]
    other = server.ask("act", {"verb": "resume", "workload": job.id, "uid": "of-another"})
    assert "another" in other["error"]


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"verb": "put_project", "workload": "vision/exp"}, "There is no action 'put_project'."),
        ({"verb": "delete", "workload": "http://evil/x/../.."}, "http://evil"),
        ({"verb": "delete", "workload": "vision/none"}, "There is no workload vision/none"),
        ({"verb": "scale", "workload": "vision/exp", "workers": 10**9}, "workers"),
    ],
    ids=["a verb that is not listed", "an address", "a workload that is missing", "too many"],
)
def test_relay_knows_a_fixed_list_of_verbs_and_names_of_workloads(server, asked, error):
    assert error in server.ask("act", asked)["error"]


@pytest.mark.parametrize("body", ["[]", "x" * (2**20 + 1)], ids=["no object", "too large"])
def test_request_that_is_no_small_object_is_refused(server, body):
    headers = {"X-XSRFToken": server.browser.cookies["_xsrf"]}
    reply = server.browser.post("runai/lab/act", content=body, headers=headers)

    assert reply.status_code in {400, 413}


def test_output_of_a_job_ends_with_its_state(server, bob):
    program = "import sys\nprint('one')\nprint('2 %\\r3 %')\nsys.stdout.flush()"
    job = bob.submit(SubmitRequest(name="exp", command=["python3", "-c", program])).workloads[0]

    frames: list[dict] = []
    with server.socket(f"log?workload={job.id}&uid={job.uid}") as socket:
        while not frames or not frames[-1].get("ended"):
            frames.append(json.loads(socket.recv()))

    last = max(place for place, frame in enumerate(frames) if frame["first"])
    assert [line for frame in frames[last:] for line in frame["lines"]] == ["one", "3 %"]
    assert frames[-1]["ended"] == "succeeded"


def test_output_of_a_silent_job_answers_pings(server, bob):
    job = bob.submit(SubmitRequest(name="exp", command=["sleep", "600"])).workloads[0]

    with server.socket(f"log?workload={job.id}") as socket:
        socket.ping("still there?")
        while (frame := socket.recv_frame()).opcode != websocket.ABNF.OPCODE_PONG:
            assert json.loads(frame.data)["lines"] == []

    assert frame.data == b"still there?"


def test_output_of_a_missing_job_is_a_sentence(server):
    with server.socket("log?workload=vision/none") as socket:
        assert "There is no workload vision/none" in json.loads(socket.recv())["error"]


def test_script_is_submitted_with_its_arguments_in_its_folder(server, bob, eventually):
    folder = server.root / "a folder"
    folder.mkdir()
    (folder / "train.py").write_text(LOOP)
    asked = {"path": "a folder/train.py", "gpus": "½", "arguments": "--name 'a b'", "name": "exp"}

    dry = server.ask("run", {**asked, "dry_run": True})
    answer = server.ask("run", asked)

    assert dry["lines"][0] == "vision/exp would be submitted and start at once."
    assert (answer["error"], answer["id"]) == ("", "vision/exp")
    detail = bob.workload("vision/exp")
    assert detail.command is not None
    assert detail.command == ["python", "-u", "train.py", "--name", "a b"]
    assert (detail.workdir, detail.gpus) == (str(folder), 0.5)
    eventually(lambda: any("'a b'" in line.text for line in bob.logs("vision/exp")))


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"path": "train.py", "gpus": "many"}, "gpus"),
        ({"path": "train.py", "arguments": "'"}, "The arguments cannot be read"),
        ({"path": "none.py"}, "There is no file none.py"),
        ({"path": "data.csv"}, "neither a Python script nor a notebook"),
        ({"path": "../outside.py"}, "lies outside"),
        ({"path": "link.py"}, "lies outside"),
        ({"path": "/etc/passwd"}, "lies outside"),
        ({"path": "a\0b"}, "There is no file"),
        ({"path": "train.py", "project": "nlp"}, "nlp"),
    ],
    ids=[
        *("no amount", "open quotation", "missing", "no program", "above the root"),
        *("a link out of the root", "absolute", "zero byte", "another project"),
    ],
)
def test_file_that_cannot_be_submitted_is_refused_with_a_sentence(server, asked, error):
    (server.root / "train.py").write_text(LOOP)
    (server.root / "data.csv").write_text("1")
    (server.root.parent / "outside.py").write_text(LOOP)
    if not (link := server.root / "link.py").is_symlink():
        link.symlink_to(server.root.parent / "outside.py")

    assert error in server.ask("run", asked)["error"]


def test_form_of_a_script_has_the_fields_of_a_request(server):
    (server.root / "train.py").write_text(LOOP)

    form = server.ask("run", {"path": "train.py", "form": True})

    assert [field["name"] for field in form["fields"]] == ["gpus", "name", "max_runtime"]
    assert all(field["label"] and field["help"] for field in form["fields"])
    assert (form["arguments"], form["projects"]) == ("Arguments", ["vision"])


def test_checkpoint_folder_opens_only_below_the_servers_root(server, bob):
    job = bob.submit(SubmitRequest(name="exp", gpus=1, command=["sleep", "600"])).workloads[0]

    answer = server.ask("act", {"verb": "paths", "workload": job.id})

    assert answer["checkpoints"] == bob.workload(job.id).checkpoint_dir
    assert (answer["folder"], answer["copy"]) == ("", "")


def test_window_shows_nothing_without_a_login(start):
    with start(RUNAI_API_URL="").socket("live") as socket:
        assert json.loads(socket.recv()) == {"absent": True}


def test_refused_token_is_said_with_the_way_out(start):
    with start(JUPYTERHUB_API_TOKEN="revoked").socket("live") as socket:
        frame = json.loads(socket.recv())

    assert "token" in frame["lost"]
    assert frame["status"]["level"] == "disconnected"


def test_notebook_server_starts_as_usual_if_the_extension_fails(start, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text("import sys\nsys.modules['runai.lab.server'] = None\n")

    started = start(PYTHONPATH=str(broken))

    assert started.browser.get("api/status").is_success
    assert started.browser.get("runai/lab/extension.js").status_code == 404
    assert "The GPU extension cannot be loaded." in started.output.read_text()
