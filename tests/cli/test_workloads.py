"""Listing, reading and steering workloads against a running service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runai.hub_service.api.schemas import NodeView, ProjectView, WhoAmI, WorkloadView

PYTHON = sys.executable
COMMAND = [PYTHON, "-m", "runai.hub_service.cli"]
SLEEP = ("--", "sleep", "600")


def state(user, name):
    return user.described(name)["state"]


def table(text):
    header, *lines = text.splitlines()
    return header.split(), [line.split() for line in lines]


# -- list and describe ---------------------------------------------------------------------------


def test_the_list_shows_what_runs_what_waits_and_why(bob, eventually):
    bob("submit", "runs", "-g", "0.5", *SLEEP)
    bob("submit", "waits", "-g", "8", *SLEEP)
    eventually(lambda: state(bob, "runs") == "running")

    header, (first, second, *_) = table(bob("list").stdout)

    assert header == ["NAME", "PROJECT", "USER", "STATE", "GPUS", "UTIL", "AGE", "REASON"]
    assert first[:5] == ["runs", "vision", "bob", "running", "0.5/0.5"]
    assert second[:5] == ["waits", "vision", "bob", "queued", "0/8"]
    assert "no node has 8 GPUs" in " ".join(second[7:])


def test_an_empty_list_says_what_to_do(bob):
    result = bob("list")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "runai submit" in result.stderr


def test_filters_of_the_list(bob):
    bob("submit", "a", *SLEEP)
    bob("submit", "b", "--interactive", *SLEEP)

    def names(*filters):
        return [w["name"] for w in json.loads(bob("list", *filters, "-o", "json").stdout)]

    assert names() == ["a", "b"]
    assert names("jobs", "--user", "bob", "-p", "vision", "--mine") == ["a", "b"]
    assert names("sessions") == ["b"]
    assert names("--user", "patty") == []
    assert names("--state", "failed") == []


@pytest.mark.parametrize(
    ("what", "schema", "count"),
    [("jobs", WorkloadView, 1), ("projects", ProjectView, 3), ("nodes", NodeView, 1)],
)
def test_json_is_what_the_api_said(bob, what, schema, count):
    bob("submit", "a", *SLEEP)

    listed = json.loads(bob("list", what, "-o", "json").stdout)

    assert len([schema.model_validate(item) for item in listed]) == count


def test_projects_and_nodes_are_tables_too(bob):
    _, projects = table(bob("list", "projects").stdout)
    header, nodes = table(bob("list", "nodes", "-o", "wide").stdout)

    assert [row[:3] for row in projects] == [
        ["vision", "0", "2.5"],
        ["nlp", "0", "2.5"],
        ["capped", "0", "1"],
    ]
    assert header[0] == "NODE"
    assert len(nodes) == 5 + 1  # the note is the last line


def test_simulated_devices_are_marked_wherever_they_are_shown(bob, eventually):
    bob("submit", "a", "-g", "1", *SLEEP)
    eventually(lambda: state(bob, "a") == "running")
    (node,) = json.loads(bob("list", "nodes", "-o", "json").stdout)

    for arguments in (["list"], ["list", "nodes"], ["top"], ["top", "jobs"]):
        assert "* simulated" in bob(*arguments).stdout, arguments
    for arguments in (["describe", "a"], ["describe", "node", node["name"]]):
        assert "* simulated" in bob(*arguments).stdout, arguments


def test_the_headline_figure_stands_below_the_nodes(bob):
    averages = bob("top").stdout.splitlines()[-4:-1]

    assert [line.partition(":")[0] for line in averages] == [
        "last hour",
        "last 24 hours",
        "last 7 days",
    ]
    assert all(line.endswith("allocated on average") for line in averages)


@pytest.mark.parametrize("words", [["exp1"], ["job", "exp1"], ["vision/exp1"]], ids=" ".join)
def test_a_workload_is_described_by_any_of_its_names(bob, words):
    bob("submit", "exp1", "-g", "1", *SLEEP)

    lines = bob("describe", *words).stdout.splitlines()

    assert lines[0].split() == ["Name:", "exp1"]
    assert ["Command:", "sleep", "600"] in [line.split() for line in lines]
    assert "History:" in lines


def test_what_a_job_reports_of_itself_is_described_while_it_runs_and_after(bob, eventually):
    report = """if True:
        import pathlib, time
        from runai.reporter import Reporter
        with Reporter() as reporter:
            for name, value in [("epoch", 3), ("overall_epochs", 10), ("loss", 0.25)]:
                reporter.reportMetric(name, value)
            reporter.reportParameter("optimizer", "Adam")
        while not pathlib.Path("go").exists():
            time.sleep(0.02)
    """
    bob("submit", "exp1", "-g", "1", "--", PYTHON, "-c", report)

    def is_told() -> bool:  # one after the other
        progress = bob.described("exp1")["progress"]
        return bool(progress) and progress["done"] == 0.3

    eventually(is_told, within=60)
    Path("go").touch()
    eventually(lambda: state(bob, "exp1") == "succeeded", within=60)
    lines = [line.split(maxsplit=1) for line in bob("describe", "exp1").stdout.splitlines()]
    assert ["Progress:", "3 of 10 epochs · loss 0.25"] in lines
    assert ["Reported:", "epoch 3, overall_epochs 10, loss 0.25, optimizer Adam"] in lines


def test_a_project_is_described(bob):
    assert bob("describe", "project", "vision").stdout.splitlines()[0].split() == [
        "Name:",
        "vision",
    ]


def test_what_is_not_there_is_not_found(bob):
    result = bob("describe", "exp9")

    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "Error: There is no workload 'exp9' that you may see.",
        "Hint: `runai list` shows those there are.",
    ]


def test_of_two_workloads_of_a_name_one_must_be_chosen(as_user, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    both = as_user("ana")
    for project in ("vision", "nlp"):
        both("submit", "exp1", "-p", project, *SLEEP)

    result = both("describe", "exp1")

    assert result.exit_code == 1
    assert "Say which: nlp/exp1, vision/exp1." in result.stderr
    monkeypatch.setenv("RUNAI_PROJECT", "nlp")
    assert both.described("exp1")["project"] == "nlp"


# -- logs and exec -------------------------------------------------------------------------------


def test_a_followed_log_ends_with_the_job(bob):
    bob("submit", "exp1", "--", PYTHON, "-c", "[print(i) for i in range(5)]")

    assert bob("logs", "exp1", "-f").stdout.splitlines() == list("01234")
    assert bob("logs", "exp1", "--tail", "2").stdout.splitlines() == ["3", "4"]


def test_a_job_without_output_says_why(bob):
    bob("submit", "exp1", "-g", "8", *SLEEP)

    result = bob("logs", "exp1")

    assert result.stdout == ""
    assert result.stderr.startswith("vision/exp1 has written nothing (queued: no node has 8 GPUs")


def test_lines_of_several_workers_are_told_apart(bob):
    program = "import os; print('rank', os.environ['RANK'], flush=True)"
    bob("submit", "exp1", "--workers", "2", "--wait", "--", PYTHON, "-c", program)

    assert sorted(bob("logs", "exp1").stdout.splitlines()) == ["[0] rank 0", "[1] rank 1"]
    assert bob("logs", "exp1", "--worker", "1").stdout == "rank 1\n"


def test_exec_runs_a_program_on_the_workloads_devices(bob, eventually, tmp_path):
    bob("submit", "exp1", "-g", "0.5", "-e", "OWN=yes", *SLEEP)
    eventually(lambda: state(bob, "exp1") == "running")
    program = (
        "import os, sys; e = os.environ; "
        "print(e['RUNAI_WORKLOAD'], e['RUNAI_GPU_FRACTION'], e['OWN'], os.getcwd()); sys.exit(7)"
    )

    done = subprocess.run(
        [*COMMAND, "exec", "-it", "exp1", "--", PYTHON, "-c", program],
        env=os.environ | bob.environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 7
    assert done.stdout.split() == ["vision/exp1", "0.5", "yes", str(tmp_path)]


# -- suspend, resume, delete ---------------------------------------------------------------------


def test_a_suspended_job_gives_its_devices_back_and_resumes(bob, eventually):
    bob("submit", "exp1", "-g", "1", *SLEEP)
    eventually(lambda: state(bob, "exp1") == "running")

    suspended = bob("suspend", "exp1")
    eventually(lambda: bob.described("exp1")["state"] == "suspended")
    resumed = bob("resume", "job", "exp1")

    assert suspended.stdout.startswith("job vision/exp1 ")
    assert resumed.stdout.startswith("job vision/exp1 ")
    eventually(lambda: state(bob, "exp1") == "running")


def test_several_are_deleted_at_once(bob, eventually):
    bob("submit", "a", *SLEEP)
    bob("submit", "b", *SLEEP)

    result = bob("delete", "a", "vision/b")

    assert [line.split()[1] for line in result.stdout.splitlines()] == ["vision/a", "vision/b"]
    eventually(lambda: json.loads(bob("list", "-o", "json").stdout) == [])


def test_one_that_is_refused_does_not_keep_the_others(bob, eventually):
    bob("submit", "done", "--wait", "--", "true")
    bob("submit", "runs", "-g", "1", *SLEEP)
    eventually(lambda: state(bob, "runs") == "running")

    result = bob("suspend", "done", "runs")

    assert result.exit_code == 1
    assert result.stdout.startswith("job vision/runs ")
    assert result.stderr.startswith("Error: ")


def test_all_finished_are_deleted_and_no_other(bob, eventually):
    bob("submit", "done", "--wait", "--", "true")
    bob("submit", "runs", *SLEEP)

    bob("delete", "--all-finished")

    eventually(
        lambda: [w["name"] for w in json.loads(bob("list", "-o", "json").stdout)] == ["runs"]
    )


@pytest.mark.parametrize("arguments", [[], ["a", "--all-finished"]], ids=["nothing", "both"])
def test_delete_wants_names_or_all_that_is_finished(bob, arguments):
    assert bob("delete", *arguments).exit_code == 2


def test_anothers_job_cannot_be_stopped(bob, as_user):
    bob("submit", "exp1", *SLEEP)

    result = as_user("patty")("delete", "vision/exp1")

    assert result.exit_code == 1
    assert "There is no workload 'vision/exp1' that you may see." in result.stderr
    assert state(bob, "exp1") != "stopping"


def test_ctrl_c_ends_the_waiting_and_not_the_job(bob, eventually):
    waiting = subprocess.Popen(
        [*COMMAND, "submit", "exp1", "--wait", *SLEEP],
        env=os.environ | bob.environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert waiting.stderr is not None
    while not waiting.stderr.readline().startswith("vision/exp1 running"):
        assert waiting.poll() is None
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=120)

    assert waiting.returncode == 130
    assert "runai delete vision/exp1" in said
    assert state(bob, "exp1") == "running"


def test_waiting_outlives_the_service(start_service, command_line, tmp_path, eventually):
    gate = tmp_path / "gate"
    program = (
        f"import pathlib, time\nwhile not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.02)"
    )
    with start_service(leaves_jobs=True) as service:
        bob = command_line(service, "bob")
        waiting = subprocess.Popen(
            [*COMMAND, "submit", "exp1", "-g", "1", "--wait", "--", PYTHON, "-c", program],
            env=os.environ | bob.environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        eventually(lambda: state(bob, "exp1") == "running")
    with start_service(port=service.port):
        gate.touch()
        _, said = waiting.communicate(timeout=120)

    assert waiting.returncode == 0
    assert said.splitlines()[-1] == "vision/exp1 succeeded: exit code 0"


# -- the terminal --------------------------------------------------------------------------------


def test_names_are_completed(bob):
    bob("submit", "exp1", *SLEEP)
    done = subprocess.run(
        COMMAND,
        env=os.environ
        | bob.environment
        | {"_RUNAI_COMPLETE": "bash_complete", "COMP_WORDS": "runai logs ex", "COMP_CWORD": "2"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == ["plain,exp1"]


def test_a_token_is_never_shown(bob):
    token = bob.environment["JUPYTERHUB_API_TOKEN"]

    for arguments in (["whoami"], ["config"], ["doctor"], ["config", "show", "-o", "json"]):
        assert token not in bob(*arguments).output, arguments
    assert WhoAmI.model_validate_json(bob("whoami", "-o", "json").stdout).name == "bob"
